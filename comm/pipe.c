/* The messages of a pipe, and its end. */
#include "comm/pipe.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/config.h"
#include "comm/little_endian.h"
#include "comm/pipe_keeper.h"
#include "comm/pipe_private.h"
#include "comm/transport_ucx.h"

/* How often the socket is looked at; how long an end waits for what is on its way when the other one
 * has closed: messages of a sender, or a receiver's answers to them; how long a sender that closes
 * waits for the receiver to take what was sent. */
static const int64_t look_ns = 10 * 1000000, messages_ns = 1000 * 1000000LL,
                     answers_ns = 100 * 1000000LL, linger_ns = 2000 * 1000000LL;

static uint64_t tag_of(uint64_t kind, uint64_t number)
{
    return kind | (number & UINT32_MAX);
}

void xm_pipe_condemn(xm_pipe_t *pipe, xm_status_t status)
{
    if (pipe->verdict == XM_OK) {
        pipe->verdict = status;
        (void)snprintf(pipe->sentence, sizeof(pipe->sentence), "%s", xm_last_error());
    }
}

static xm_status_t verdict_of(const xm_pipe_t *pipe)
{
    return xm_error_set(pipe->verdict, "%s", pipe->sentence);
}

/* The end's last word. The socket's buffer is empty, so it fits. */
static void say_word(const xm_pipe_t *pipe, xm_pipe_word_t word)
{
    uint8_t byte = (uint8_t)word;

    (void)send(pipe->fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* A failure that callbacks have noted becomes one of the transport: everything in flight ends, and
 * no memory is touched any more. */
static void settle(xm_pipe_t *pipe)
{
    if (pipe->verdict == XM_OK || pipe->fenced || pipe->transport == NULL) {
        return;
    }
    pipe->fenced = true;
    if (pipe->died) {
        xm_transport_peer_failed(pipe->transport, xm_pipe_other_rank(pipe));
    }
    xm_transport_fence(pipe->transport);
}

/* Requests. */

xm_status_t xm_pipe_create(bool sender, const char *nics, double timeout, xm_pipe_t **pipe)
{
    xm_pipe_t *self = calloc(1, sizeof(*self));

    if (self == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a pipe");
    }
    self->sender = sender;
    self->fd = -1;
    self->timeout = timeout > 0 ? timeout : xm_config_seconds(XM_CONFIG_TIMEOUT);
    self->nics = strdup(nics != NULL ? nics : "");
    self->last_posted = &self->posted;
    if (self->nics == NULL || pthread_mutex_init(&self->lock, NULL) != 0) {
        free(self->nics);
        free(self);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a pipe");
    }
    *pipe = self;
    return XM_OK;
}

static xm_pipe_request_t *take_request(xm_pipe_t *pipe, int count)
{
    xm_pipe_request_t *request = pipe->free_requests;

    pipe->free_requests = request->next;
    request->next = NULL;
    request->user = NULL;
    request->number = 0;
    request->count = count;
    request->open = 0;
    request->untaken = 0;
    request->failed = false;
    return request;
}

static void give_request(xm_pipe_request_t *request)
{
    request->next = request->pipe->free_requests;
    request->pipe->free_requests = request;
}

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
        xm_pipe_condemn(request->pipe, status);
    }
    close_one(request);
}

static xm_status_t wait_for_ack(xm_pipe_t *pipe);

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
        xm_pipe_condemn(pipe, status);
    }
}

static xm_status_t wait_for_ack(xm_pipe_t *pipe)
{
    xm_status_t status;

    do {
        status = xm_transport_receive(pipe->transport, xm_pipe_other_rank(pipe),
                                      tag_of(XM_PIPE_TAG_ACK, pipe->acks), pipe->ack,
                                      sizeof(pipe->ack), NULL, &pipe->ack_op);
        if (status == XM_OK) {
            read_ack(pipe);
        }
    } while (status == XM_OK);
    return status;
}

/* Hands one of the two parts of a message to the transport. */
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

static xm_status_t start_send(xm_pipe_request_t *request, const void *buffer, size_t length,
                              int tag, xm_memory_t *memory)
{
    xm_pipe_t *pipe = request->pipe;
    xm_pipe_header_t header = {.length = length, .tag = tag, .number = (uint32_t)pipe->sent};
    xm_status_t status;

    request->number = pipe->sent++;
    request->slots[0].length = length;
    xm_pipe_pack_header(&header, buffer, request->header);
    status = post_send(request, tag_of(XM_PIPE_TAG_HEADER, request->number), request->header,
                       sizeof(request->header), NULL, &request->header_op);
    if (status >= 0 && length > XM_PIPE_INLINE_MAX) {
        status = post_send(request, tag_of(XM_PIPE_TAG_DATA, request->number), buffer, length,
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
        xm_pipe_condemn(slot->request->pipe, status);
        close_one(slot->request);
    } else {
        land(slot);
    }
}

static void on_header(xm_op_t *op, xm_status_t status)
{
    xm_pipe_t *pipe = op->arg;
    xm_pipe_header_seat_t *seat =
        (xm_pipe_header_seat_t *)((char *)op - offsetof(xm_pipe_header_seat_t, op));

    if (status == XM_OK) {
        seat->here = true;
    } else if (status != XM_ERR_CANCELED) { /* the pipe itself cancels those that are left over */
        xm_pipe_condemn(pipe, status);
    }
}

static xm_status_t await_header(xm_pipe_t *pipe, uint64_t number)
{
    xm_pipe_header_seat_t *seat = &pipe->receiver->headers[number % XM_PIPE_HEADERS];
    xm_status_t status;

    seat->here = false;
    seat->op.arg = pipe;
    seat->op.done = on_header;
    status = xm_transport_receive(pipe->transport, xm_pipe_other_rank(pipe),
                                  tag_of(XM_PIPE_TAG_HEADER, number), seat->bytes,
                                  sizeof(seat->bytes), NULL, &seat->op);
    seat->here = status == XM_OK;
    return status;
}

static xm_status_t start_receiver(xm_pipe_t *pipe)
{
    xm_pipe_receiver_t *receiver = calloc(1, sizeof(*receiver));
    xm_status_t status = XM_OK;

    if (receiver == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the messages of a pipe");
    }
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
    if (pipe->requests == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the requests of a pipe");
    }
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
    return pipe->sender ? xm_pipe_keeper_add(pipe) : XM_OK;
}

/* The oldest slot that is free for a message with this tag. */
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

static void remove_posted(xm_pipe_t *pipe, const xm_pipe_request_t *request)
{
    xm_pipe_request_t **link = &pipe->posted;

    while (*link != request) {
        link = &(*link)->next;
    }
    *link = request->next;
    pipe->last_posted = request->next == NULL ? link : pipe->last_posted;
}

/* A message meets its slot. */
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
        remove_posted(pipe, request);
    }
    if (header->length > XM_PIPE_INLINE_MAX) {
        slot->op.arg = slot;
        slot->op.done = on_landed;
        status = xm_transport_receive(pipe->transport, xm_pipe_other_rank(pipe),
                                      tag_of(XM_PIPE_TAG_DATA, header->number), slot->buffer,
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

/* Reads the headers that are there, in the order in which the messages were sent. */
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

/* Brings messages and receives together. */
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

static void on_ack_sent(xm_op_t *op, xm_status_t status)
{
    xm_pipe_t *pipe = op->arg;

    pipe->ack_flies = false;
    if (status < 0) {
        xm_pipe_condemn(pipe, status);
    }
}

/* Says what has arrived: after so many messages, when nothing is expected, and when it is @p due. */
static xm_status_t acknowledge(xm_pipe_t *pipe, bool due)
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
                               tag_of(XM_PIPE_TAG_ACK, pipe->acks), pipe->ack, sizeof(pipe->ack),
                               NULL, &pipe->ack_op);
    pipe->ack_flies = status == XM_IN_PROGRESS;
    pipe->acked = pipe->landed;
    ++pipe->acks;
    return status;
}

/* Both ends. */

static void died(xm_pipe_t *pipe, const char *why)
{
    char peer[XM_PIPE_NAME_SIZE + 32];

    pipe->died = true;
    xm_pipe_condemn(pipe, xm_error_set(XM_ERR_PEER_DIED, "the other end of the pipe, %s, is gone: %s",
                                       xm_pipe_peer(pipe, peer, sizeof(peer)), why));
}

/* Something is on its way from an end that has closed, unless it owes nothing. */
static void be_patient(xm_pipe_t *pipe, int64_t now)
{
    pipe->patience_end =
        now + (pipe->unfinished == 0 ? 0 : pipe->sender ? answers_ns : messages_ns);
}

static void hear(xm_pipe_t *pipe, uint8_t word, int64_t now)
{
    char peer[XM_PIPE_NAME_SIZE + 32];

    (void)xm_pipe_peer(pipe, peer, sizeof(peer));
    if (word == XM_PIPE_REFUSE) {
        xm_pipe_condemn(pipe, xm_error_set(XM_ERR_CORRUPT,
                                           "%s refuses a message that is longer than its receive",
                                           peer));
    } else {
        pipe->stopping = true;
        be_patient(pipe, now);
    }
}

/* Looks whether the other end is still there. */
static void look(xm_pipe_t *pipe)
{
    int64_t now = xm_transport_now(pipe->transport);
    uint8_t word = 0;
    ssize_t count;

    if (now < pipe->next_look || pipe->verdict != XM_OK) {
        return;
    }
    pipe->next_look = now + look_ns;
    if (pipe->stopping) {
        if (now > pipe->patience_end) {
            char peer[XM_PIPE_NAME_SIZE + 32];

            xm_pipe_condemn(pipe, xm_error_set(XM_ERR_CANCELED, "%s has closed the pipe",
                                               xm_pipe_peer(pipe, peer, sizeof(peer))));
        }
        return;
    }
    count = recv(pipe->fd, &word, 1, MSG_DONTWAIT);
    if (count > 0) {
        hear(pipe, word, now);
    } else if (count == 0) {
        died(pipe, "its connection was closed without a word");
    } else if (errno != EAGAIN && errno != EINTR) {
        died(pipe, strerror(errno));
    }
}

void xm_pipe_progress(xm_pipe_t *pipe)
{
    uint64_t landed = pipe->landed;
    int unfinished = pipe->unfinished;
    xm_status_t status = XM_OK;

    (void)xm_transport_progress(pipe->transport);
    if (!pipe->sender && pipe->verdict == XM_OK) {
        status = read_headers(pipe);
        if (status == XM_OK) {
            status = match(pipe);
            if (status == XM_ERR_CORRUPT) {
                say_word(pipe, XM_PIPE_REFUSE);
            }
        }
        if (status == XM_OK) {
            status = acknowledge(pipe, xm_transport_now(pipe->transport) >= pipe->next_look);
        }
    }
    if (status < 0) {
        xm_pipe_condemn(pipe, status);
    }
    if (pipe->stopping && (pipe->landed != landed || pipe->unfinished != unfinished)) {
        be_patient(pipe, xm_transport_now(pipe->transport));
    }
    look(pipe);
    settle(pipe);
}

/* Every use begins with this: the pipe must be open, and have a request to spare. */
static xm_status_t enter(xm_pipe_t *pipe, bool sender)
{
    if (pipe->stage != XM_PIPE_STAGE_OPEN || pipe->sender != sender) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "a pipe's %s end does not %s",
                            pipe->sender ? "sending" : "receiving",
                            pipe->stage != XM_PIPE_STAGE_OPEN ? "work yet"
                            : sender                          ? "send"
                                                              : "receive");
    }
    if (pipe->verdict == XM_OK &&
        (pipe->free_requests == NULL || (sender && pipe->sent - pipe->acked >= XM_PIPE_WINDOW))) {
        xm_pipe_progress(pipe);
    }
    if (pipe->verdict != XM_OK) {
        return verdict_of(pipe);
    }
    return pipe->free_requests == NULL || (sender && pipe->sent - pipe->acked >= XM_PIPE_WINDOW)
               ? XM_IN_PROGRESS
               : XM_OK;
}

xm_status_t xm_pipe_send(xm_pipe_t *pipe, const void *buffer, size_t length, int tag,
                         xm_memory_t *memory, xm_pipe_request_t **request)
{
    xm_status_t status;

    *request = NULL;
    (void)pthread_mutex_lock(&pipe->lock);
    status = enter(pipe, true);
    if (status == XM_OK) {
        xm_pipe_request_t *taken = take_request(pipe, 1);

        status = start_send(taken, buffer, length, tag, memory);
        if (status < 0) {
            xm_pipe_condemn(pipe, status);
            settle(pipe);
            give_request(taken);
        } else {
            *request = taken;
        }
    }
    (void)pthread_mutex_unlock(&pipe->lock);
    if (*request != NULL) {
        xm_pipe_keeper_wake();
    }
    return status;
}

xm_status_t xm_pipe_receive(xm_pipe_t *pipe, int count, void *const *buffers, const size_t *sizes,
                            const int *tags, xm_memory_t *const *memories,
                            xm_pipe_request_t **request)
{
    xm_status_t status;

    *request = NULL;
    if (count < 1 || count > XM_PIPE_GROUP_MAX) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "a receive of %d messages; 1 to %d are possible",
                            count, XM_PIPE_GROUP_MAX);
    }
    (void)pthread_mutex_lock(&pipe->lock);
    status = enter(pipe, false);
    if (status == XM_OK) {
        xm_pipe_request_t *taken = take_request(pipe, count);

        for (int i = 0; i < count; ++i) {
            xm_pipe_slot_t *slot = &taken->slots[i];

            slot->request = taken;
            slot->buffer = buffers[i];
            slot->size = sizes[i];
            slot->length = 0;
            slot->tag = tags[i];
            slot->memory = memories != NULL ? memories[i] : NULL;
            slot->taken = false;
        }
        taken->open = taken->untaken = count;
        ++pipe->unfinished;
        *pipe->last_posted = taken;
        pipe->last_posted = &taken->next;
        *request = taken;
        xm_pipe_progress(pipe);
    }
    (void)pthread_mutex_unlock(&pipe->lock);
    return status;
}

xm_status_t xm_pipe_test(xm_pipe_request_t *request, size_t *lengths)
{
    xm_pipe_t *pipe = request->pipe;
    xm_status_t status = XM_IN_PROGRESS;

    (void)pthread_mutex_lock(&pipe->lock);
    if (request->open > 0 && pipe->verdict == XM_OK) {
        xm_pipe_progress(pipe);
    }
    if (request->open == 0 && !request->failed) {
        for (int i = 0; i < request->count && lengths != NULL; ++i) {
            lengths[i] = request->slots[i].length;
        }
        status = XM_OK;
        give_request(request);
    } else if (pipe->verdict != XM_OK) {
        status = verdict_of(pipe);
        if (request->untaken > 0) {
            remove_posted(pipe, request);
        }
        pipe->unfinished -= request->open > 0;
        give_request(request);
    }
    (void)pthread_mutex_unlock(&pipe->lock);
    return status;
}

xm_status_t xm_pipe_advance(xm_pipe_t *pipe)
{
    xm_status_t status = XM_OK;

    (void)pthread_mutex_lock(&pipe->lock);
    if (pipe->verdict != XM_OK) {
        status = verdict_of(pipe);
    } else if (pipe->stage != XM_PIPE_STAGE_OPEN || pipe->out_length > 0) {
        status = xm_pipe_shake_hands(pipe);
        if (status < 0) {
            xm_pipe_condemn(pipe, status);
        }
    }
    (void)pthread_mutex_unlock(&pipe->lock);
    return status;
}

xm_status_t xm_pipe_register(xm_pipe_t *pipe, void *address, size_t length, xm_memory_t **memory)
{
    xm_status_t status;

    (void)pthread_mutex_lock(&pipe->lock);
    status = pipe->stage == XM_PIPE_STAGE_OPEN
                 ? xm_transport_memory_register(pipe->transport, address, length, memory)
                 : xm_error_set(XM_ERR_INVALID_ARGUMENT, "the pipe is not open yet");
    (void)pthread_mutex_unlock(&pipe->lock);
    return status;
}

void xm_pipe_deregister(xm_pipe_t *pipe, xm_memory_t *memory)
{
    (void)pthread_mutex_lock(&pipe->lock);
    xm_transport_memory_deregister(pipe->transport, memory);
    (void)pthread_mutex_unlock(&pipe->lock);
}

void xm_pipe_request_set_user(xm_pipe_request_t *request, void *user)
{
    request->user = user;
}

void *xm_pipe_request_user(const xm_pipe_request_t *request)
{
    return request->user;
}

int xm_pipe_request_count(const xm_pipe_request_t *request)
{
    return request->count;
}

xm_pipe_t *xm_pipe_request_pipe(const xm_pipe_request_t *request)
{
    return request->pipe;
}

uint64_t xm_pipe_request_number(const xm_pipe_request_t *request)
{
    return request->number;
}

int xm_pipe_shares(xm_pipe_t *pipe, uint64_t number, size_t length, size_t *shares)
{
    uint64_t kind = length > XM_PIPE_INLINE_MAX ? XM_PIPE_TAG_DATA : XM_PIPE_TAG_HEADER;

    return pipe->own.machine == pipe->other.machine
               ? 0
               : xm_transport_ucx_shares(pipe->transport, xm_pipe_other_rank(pipe),
                                         tag_of(kind, number), length, shares);
}

char *xm_pipe_path(xm_pipe_t *pipe, char *buffer, size_t size)
{
    buffer[0] = '\0';
    (void)pthread_mutex_lock(&pipe->lock);
    if (pipe->stage == XM_PIPE_STAGE_OPEN && pipe->verdict == XM_OK) {
        xm_transport_path(pipe->transport, xm_pipe_other_rank(pipe), buffer, size);
    }
    (void)pthread_mutex_unlock(&pipe->lock);
    return buffer;
}

char *xm_pipe_peer(const xm_pipe_t *pipe, char *buffer, size_t size)
{
    (void)snprintf(buffer, size, "%s pid %u", pipe->other.name, pipe->other.pid);
    return buffer;
}

const xm_counters_t *xm_pipe_counters(const xm_pipe_t *pipe)
{
    return pipe->counters;
}

/* What was sent and has ended well may still be on its way. */
static void linger(xm_pipe_t *pipe)
{
    int64_t end = xm_transport_now(pipe->transport) + linger_ns;

    while (pipe->verdict == XM_OK && pipe->unfinished == 0 && pipe->acked < pipe->sent &&
           xm_transport_now(pipe->transport) < end) {
        xm_pipe_progress(pipe);
        (void)poll(NULL, 0, pipe->acked < pipe->sent);
    }
}

/* Lets go of what is in flight. Returns what is to be said last; ' ': it has been. */
static char leave(xm_pipe_t *pipe)
{
    if (pipe->sender) {
        linger(pipe);
    } else if (pipe->verdict == XM_OK) {
        (void)acknowledge(pipe, true);
    }
    if (pipe->verdict != XM_OK) {
        return ' ';
    }
    if (pipe->unfinished == 0 && (!pipe->sender || pipe->acked == pipe->sent)) {
        return XM_PIPE_BYE; /* when the transport has sent off its last answers */
    }
    say_word(pipe, XM_PIPE_STOP);
    if (pipe->unfinished > 0) {
        xm_pipe_condemn(pipe, xm_error_set(XM_ERR_CANCELED, "this end has closed the pipe"));
        settle(pipe);
    }
    return ' ';
}

void xm_pipe_destroy(xm_pipe_t *pipe)
{
    char word = ' ';

    if (pipe == NULL) {
        return;
    }
    xm_pipe_keeper_remove(pipe);
    if (pipe->stage == XM_PIPE_STAGE_OPEN) {
        word = leave(pipe);
    }
    xm_transport_destroy(pipe->transport);
    if (word != ' ') {
        say_word(pipe, (xm_pipe_word_t)word);
    }
    xm_counters_destroy(pipe->counters);
    if (pipe->fd >= 0) {
        (void)close(pipe->fd);
    }
    (void)pthread_mutex_destroy(&pipe->lock);
    free(pipe->receiver);
    free(pipe->requests);
    free(pipe->nics);
    free(pipe->out);
    free(pipe->in);
    free(pipe->blob);
    free(pipe);
}
