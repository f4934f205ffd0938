/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of a pipe: how a sender starts them, and a receiver brings them and its receives
 * together. Every message has a number and a header of fixed size, which carries short ones
 * completely. The receiver keeps receives for the next headers posted, so a header never waits
 * for a receive call; data follows right behind its header and is received when header and
 * receive have met. Acknowledgements by number bound how many messages can wait. All of this
 * runs under the pipe's lock. */
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "plugins/nccl/pipe/pipe_private.h"

/* One of the things that a request waits for has come to its end. */
static void close_one(xm_pipe_request_t *request)
{
    if (--request->open == 0) {
        --request->pipe->unfinished;
    }
}

/* The sender. */

static void on_sent(xm_op_t *op, xm_status_t status)
{
    xm_pipe_request_t *request = op->arg;

    if (status < 0) {
        request->failed = true;
        xm_pipe_mark_failed(request->pipe, status);
    }
    close_one(request);
}

static xm_status_t wait_for_ack(xm_pipe_t *pipe);

/* A number that goes back, or beyond what was sent, is ignored. */
static void read_ack(xm_pipe_t *pipe)
{
    uint64_t acked = xm_get_le(pipe->ack, XM_PIPE_ACK_SIZE);

    pipe->acked = acked > pipe->acked && acked <= pipe->sent ? acked : pipe->acked;
    pipe->landed = pipe->acked;
    ++pipe->acks;
}

static void on_ack(xm_op_t *op, xm_status_t status)
{
    xm_pipe_t *pipe = op->arg;

    if (status == XM_OK) {
        read_ack(pipe);
        status = wait_for_ack(pipe);
    }
    if (status < 0) {
        xm_pipe_mark_failed(pipe, status);
    }
}

/* Keeps one receive for the next acknowledgement posted. It is a loop because those that are
 * there already complete in the call. */
static xm_status_t wait_for_ack(xm_pipe_t *pipe)
{
    xm_status_t status;

    do {
        status = xm_transport_receive(pipe->transport, xm_pipe_other_rank(pipe),
                                      xm_pipe_tag(XM_PIPE_TAG_ACK, pipe->acks), pipe->ack,
                                      sizeof(pipe->ack), NULL, &pipe->ack_op);
        if (status == XM_OK) {
            read_ack(pipe);
        }
    } while (status == XM_OK);
    return status;
}

/* Hands one of the two parts of a message to the transport; a part that is complete at once
 * does not keep the request open. */
static xm_status_t post_send(xm_pipe_request_t *request, uint64_t tag, const void *buffer,
                             size_t length, xm_memory_t *memory, xm_op_t *op)
{
    xm_pipe_t *pipe = request->pipe;
    xm_status_t status;

    op->arg = request;
    op->done = on_sent;
    status = xm_transport_send(pipe->transport, xm_pipe_other_rank(pipe), tag, buffer, length,
                               memory, op);
    request->open += status == XM_IN_PROGRESS;
    return status;
}

/* Starts a message: header, then data if it does not fit into the header. The header is part of
 * the request, because the transport may read it until the operation ends. */
xm_status_t xm_pipe_start_send(xm_pipe_request_t *request, const void *buffer, size_t length,
                               int tag, xm_memory_t *memory)
{
    xm_pipe_t *pipe = request->pipe;
    xm_pipe_header_t header = {.length = length, .tag = tag, .number = (uint32_t)pipe->sent};
    xm_status_t status;

    request->number = pipe->sent++;
    request->slots[0].length = length;
    xm_pipe_pack_header(&header, buffer, request->header);
    status = post_send(request, xm_pipe_tag(XM_PIPE_TAG_HEADER, request->number), request->header,
                       sizeof(request->header), NULL, &request->header_op);
    if (status >= 0 && length > XM_PIPE_INLINE_MAX) {
        status = post_send(request, xm_pipe_tag(XM_PIPE_TAG_DATA, request->number), buffer, length,
                           memory, &request->slots[0].op);
    }
    pipe->unfinished += request->open > 0;
    return status < 0 ? status : XM_OK;
}

/* The receiver. */

static void land(xm_pipe_slot_t *slot)
{
    ++slot->request->pipe->landed;
    close_one(slot->request);
}

static void on_landed(xm_op_t *op, xm_status_t status)
{
    xm_pipe_slot_t *slot = op->arg;

    if (status < 0) {
        slot->request->failed = true;
        xm_pipe_mark_failed(slot->request->pipe, status);
        close_one(slot->request);
    } else {
        land(slot);
    }
}

/* The slot is found from the operation inside it. */
static void on_header(xm_op_t *op, xm_status_t status)
{
    xm_pipe_t *pipe = op->arg;
    xm_pipe_header_slot_t *slot =
        (xm_pipe_header_slot_t *)((char *)op - offsetof(xm_pipe_header_slot_t, op));

    if (status == XM_OK) {
        slot->here = true;
    } else if (status != XM_ERR_CANCELED) { /* the pipe itself cancels those that are left over */
        xm_pipe_mark_failed(pipe, status);
    }
}

/* Posts the receive for the header of a message. Slots are used in turn: that of number n is
 * free again when n has been read. */
static xm_status_t await_header(xm_pipe_t *pipe, uint64_t number)
{
    xm_pipe_header_slot_t *slot = &pipe->receiver->headers[number % XM_PIPE_HEADERS];
    xm_status_t status;

    slot->here = false;
    slot->op.arg = pipe;
    slot->op.done = on_header;
    status = xm_transport_receive(pipe->transport, xm_pipe_other_rank(pipe),
                                  xm_pipe_tag(XM_PIPE_TAG_HEADER, number), slot->bytes,
                                  sizeof(slot->bytes), NULL, &slot->op);
    slot->here = status == XM_OK;
    return status;
}

/* As many waiting messages as the window allows are allocated now: there can never be more. */
static xm_status_t start_receiver(xm_pipe_t *pipe)
{
    xm_pipe_receiver_t *receiver = calloc(1, sizeof(*receiver));
    xm_status_t status = XM_OK;

    XM_NEED_MEMORY(receiver, "the messages of a pipe");
    pipe->receiver = receiver;
    receiver->last = &receiver->first;
    for (int i = 0; i < XM_PIPE_WINDOW; ++i) {
        receiver->waiting[i].next = receiver->free_waiting;
        receiver->free_waiting = &receiver->waiting[i];
    }
    for (uint64_t number = 0; number < XM_PIPE_HEADERS && status >= 0; ++number) {
        status = await_header(pipe, number);
    }
    return status < 0 ? status : XM_OK;
}

xm_status_t xm_pipe_start(xm_pipe_t *pipe)
{
    xm_status_t status;

    pipe->requests = calloc(XM_PIPE_REQUESTS_MAX, sizeof(*pipe->requests));
    XM_NEED_MEMORY(pipe->requests, "the requests of a pipe");
    for (int i = XM_PIPE_REQUESTS_MAX - 1; i >= 0; --i) {
        pipe->requests[i].pipe = pipe;
        pipe->requests[i].next = pipe->free_requests;
        pipe->free_requests = &pipe->requests[i];
    }
    pipe->ack_op.arg = pipe;
    pipe->ack_op.done = on_ack;
    status = pipe->sender ? wait_for_ack(pipe) : start_receiver(pipe);
    if (status < 0) {
        return status;
    }
    return XM_OK;
}

/* Finds the oldest slot that is free for a message with this tag. */
static xm_pipe_slot_t *find_slot(const xm_pipe_t *pipe, int tag)
{
    for (xm_pipe_request_t *request = pipe->posted; request != NULL; request = request->next) {
        for (int i = 0; i < request->count; ++i) {
            if (!request->slots[i].taken && request->slots[i].tag == tag) {
                return &request->slots[i];
            }
        }
    }
    return NULL;
}

void xm_pipe_remove_posted(xm_pipe_t *pipe, const xm_pipe_request_t *request)
{
    xm_pipe_request_t **link = &pipe->posted;

    while (*link != request) {
        link = &(*link)->next;
    }
    *link = request->next;
    pipe->last_posted = request->next == NULL ? link : pipe->last_posted;
}

/* A message meets its slot. One that is longer than its slot breaks the pipe, since its bytes
 * have nowhere to go. Data is received into the slot's buffer directly. */
static xm_status_t deliver(xm_pipe_t *pipe, const xm_pipe_waiting_t *message, xm_pipe_slot_t *slot)
{
    const xm_pipe_header_t *header = &message->header;
    xm_pipe_request_t *request = slot->request;
    xm_status_t status = XM_OK;

    if (header->length > slot->size) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "a message of %llu bytes with tag %d came for a receive of %zu bytes",
                            (unsigned long long)header->length, header->tag, slot->size);
    }
    slot->taken = true;
    slot->length = (size_t)header->length;
    if (slot == request->slots) {
        request->number = header->number;
    }
    if (--request->untaken == 0) {
        xm_pipe_remove_posted(pipe, request);
    }
    if (header->length > XM_PIPE_INLINE_MAX) {
        slot->op.arg = slot;
        slot->op.done = on_landed;
        status = xm_transport_receive(pipe->transport, xm_pipe_other_rank(pipe),
                                      xm_pipe_tag(XM_PIPE_TAG_DATA, header->number), slot->buffer,
                                      slot->length, slot->memory, &slot->op);
    } else if (header->length > 0) {
        memcpy(slot->buffer, message->data, slot->length);
    }
    if (status == XM_OK) {
        land(slot);
    } else if (status < 0) {
        request->failed = true;
        close_one(request);
    }
    return status < 0 ? status : XM_OK;
}

/* Reads the headers that are there, in the order in which the messages were sent: one that is
 * missing stops the reading, even if later ones have come by another rail. */
static xm_status_t read_headers(xm_pipe_t *pipe)
{
    xm_pipe_receiver_t *receiver = pipe->receiver;
    xm_status_t status = XM_OK;

    while (status >= 0 && receiver->free_waiting != NULL &&
           receiver->headers[receiver->announced % XM_PIPE_HEADERS].here) {
        xm_pipe_waiting_t *message = receiver->free_waiting;
        const uint8_t *data;

        xm_pipe_read_header(receiver->headers[receiver->announced % XM_PIPE_HEADERS].bytes,
                            &message->header, &data);
        if (message->header.number != (uint32_t)receiver->announced) {
            return xm_error_set(XM_ERR_CORRUPT, "message %llu of a pipe calls itself %u",
                                (unsigned long long)receiver->announced, message->header.number);
        }
        if (data != NULL) {
            memcpy(message->data, data, (size_t)message->header.length);
        }
        receiver->free_waiting = message->next;
        message->next = NULL;
        *receiver->last = message;
        receiver->last = &message->next;
        status = await_header(pipe, receiver->announced + XM_PIPE_HEADERS);
        ++receiver->announced;
    }
    return status < 0 ? status : XM_OK;
}

/* Brings messages and receives together, in the order of the messages. A message without a slot
 * waits and does not hold up those with other tags. */
static xm_status_t match(xm_pipe_t *pipe)
{
    xm_pipe_receiver_t *receiver = pipe->receiver;
    xm_pipe_waiting_t **link = &receiver->first;

    while (*link != NULL && pipe->posted != NULL) {
        xm_pipe_waiting_t *message = *link;
        xm_pipe_slot_t *slot = find_slot(pipe, message->header.tag);
        xm_status_t status;

        if (slot == NULL) {
            link = &message->next;
            continue;
        }
        *link = message->next;
        receiver->last = message->next == NULL ? link : receiver->last;
        status = deliver(pipe, message, slot);
        message->next = receiver->free_waiting;
        receiver->free_waiting = message;
        if (status < 0) {
            return status;
        }
    }
    return XM_OK;
}

xm_status_t xm_pipe_take_messages(xm_pipe_t *pipe)
{
    XM_TRY(read_headers(pipe));

    return match(pipe);
}

static void on_ack_sent(xm_op_t *op, xm_status_t status)
{
    xm_pipe_t *pipe = op->arg;

    pipe->ack_flies = false;
    if (status < 0) {
        xm_pipe_mark_failed(pipe, status);
    }
}

/* Acknowledges what has landed: every XM_PIPE_ACK_EVERY messages while receives are pending, at
 * once when there are none, and when it is due. One acknowledgement flies at a time, because
 * its bytes are in the pipe. */
xm_status_t xm_pipe_acknowledge(xm_pipe_t *pipe, bool due)
{
    uint64_t news = pipe->landed - pipe->acked;
    xm_status_t status;

    if (pipe->ack_flies || news == 0 ||
        (news < XM_PIPE_ACK_EVERY && pipe->unfinished > 0 && !due)) {
        return XM_OK;
    }
    xm_put_le(pipe->ack, pipe->landed, XM_PIPE_ACK_SIZE);
    pipe->ack_op.done = on_ack_sent;
    status = xm_transport_send(pipe->transport, xm_pipe_other_rank(pipe),
                               xm_pipe_tag(XM_PIPE_TAG_ACK, pipe->acks), pipe->ack,
                               sizeof(pipe->ack), NULL, &pipe->ack_op);
    pipe->ack_flies = status == XM_IN_PROGRESS;
    pipe->acked = pipe->landed;
    ++pipe->acks;
    return status;
}
