/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/pair/tampered_pair.h"

#include <stdlib.h>
#include <string.h>

enum { EAGER = 64, SENT, POSTED };

/* On its way. */
typedef struct {
    xm_list_t link;
    xm_op_t *send; /* in flight, whose buffer has the bytes; NULL: they are here */
    uint64_t tag;
    size_t length;
    unsigned char *bytes;
} message_t;

unsigned input_take(input_t *input)
{
    unsigned byte = input->left > 0 ? *input->bytes : 0;

    input->bytes += input->left > 0;
    input->left -= input->left > 0;
    return byte;
}

static message_t *message_of(xm_list_t *link)
{
    return xm_list_entry(link, message_t, link);
}

static tampered_end_t *other_end(tampered_end_t *end)
{
    return &end->pair->ends[1 - end->base.rank];
}

static void *copy_of(const void *bytes, size_t length)
{
    void *copy = malloc(length);

    if (copy == NULL) {
        abort();
    }
    memcpy(copy, bytes, length);
    return copy;
}

static void forget(message_t *message)
{
    xm_list_remove(&message->link);
    free(message->bytes);
    free(message);
}

/* Without an op the bytes go along. */
static void append(tampered_end_t *to, uint64_t tag, const void *bytes, size_t length,
                   xm_op_t *send)
{
    message_t *message = calloc(1, sizeof(*message));

    if (message == NULL) {
        abort();
    }
    message->tag = tag;
    message->length = length;
    message->send = send;
    message->bytes = send == NULL ? copy_of(bytes, length) : NULL;
    xm_list_append(&to->messages, &message->link);
}

static void note(xm_op_t *op, uint64_t tag, const void *buffer, size_t length, int kind)
{
    op->priv.tag = tag;
    op->priv.buffer = (void *)(uintptr_t)buffer;
    op->priv.length = length;
    op->priv.kind = kind;
}

static xm_status_t send(xm_transport_t *transport, int peer, uint64_t tag, const void *buffer,
                        size_t length, xm_memory_t *memory, xm_op_t *op)
{
    tampered_end_t *end = (tampered_end_t *)transport;
    bool leaves = end->pair->eager && length <= EAGER;

    (void)memory;
    if (end->gone) {
        return xm_error_set(XM_ERR_PEER_DIED, "rank %d died", peer);
    }
    append(other_end(end), tag, buffer, length, leaves ? NULL : op);
    note(op, tag, buffer, length, SENT);
    return leaves ? XM_OK : XM_IN_PROGRESS;
}

/* The first message with the tag. */
static message_t *find(tampered_end_t *end, uint64_t tag)
{
    for (xm_list_t *at = xm_list_first(&end->messages); at != NULL;
         at = xm_list_next(&end->messages, at)) {
        if (message_of(at)->tag == tag) {
            return message_of(at);
        }
    }
    return NULL;
}

static xm_status_t receive(xm_transport_t *transport, int peer, uint64_t tag, void *buffer,
                           size_t length, xm_memory_t *memory, xm_op_t *op)
{
    tampered_end_t *end = (tampered_end_t *)transport;
    message_t *there = find(end, tag);

    (void)memory;
    if (end->gone) {
        return xm_error_set(XM_ERR_PEER_DIED, "rank %d died", peer);
    }
    if (end->pair->eager && there != NULL && there->send == NULL && there->length == length) {
        memcpy(buffer, there->bytes, length);
        forget(there);
        return XM_OK;
    }
    note(op, tag, buffer, length, POSTED);
    xm_list_append(&end->receives, &op->priv.link);
    return XM_IN_PROGRESS;
}

static void end_receive(xm_op_t *op, xm_status_t status)
{
    xm_list_remove(&op->priv.link);
    op->done(op, status < 0 ? xm_error_set(status, "a receive has ended") : status);
}

/* Takes a send's message off its way. */
static void end_send(tampered_end_t *end, xm_op_t *op, xm_status_t status)
{
    xm_list_t *list = &other_end(end)->messages;

    for (xm_list_t *at = xm_list_first(list); at != NULL; at = xm_list_next(list, at)) {
        if (message_of(at)->send == op) {
            forget(message_of(at));
            op->done(op, xm_error_set(status, "a send has ended"));
            return;
        }
    }
}

static void cancel(xm_transport_t *transport, xm_op_t *op)
{
    tampered_end_t *end = (tampered_end_t *)transport;

    if (op->priv.kind == POSTED) {
        end_receive(op, XM_ERR_CANCELED);
    } else if (!end->pair->lingers) {
        end_send(end, op, XM_ERR_CANCELED);
    }
}

/* The first send that is in flight. */
static xm_op_t *first_send(tampered_end_t *end)
{
    xm_list_t *list = &other_end(end)->messages;

    for (xm_list_t *at = xm_list_first(list); at != NULL; at = xm_list_next(list, at)) {
        if (message_of(at)->send != NULL) {
            return message_of(at)->send;
        }
    }
    return NULL;
}

static void peer_failed(xm_transport_t *transport, int peer)
{
    tampered_end_t *end = (tampered_end_t *)transport;

    (void)peer;
    end->gone = true;
    while (!xm_list_is_empty(&end->receives)) {
        end_receive(xm_op_of(xm_list_first(&end->receives)), XM_ERR_PEER_DIED);
    }
    for (xm_op_t *op = first_send(end); op != NULL; op = first_send(end)) {
        end_send(end, op, XM_ERR_PEER_DIED);
    }
}

static xm_status_t memory_register(xm_transport_t *transport, void *address, size_t length,
                                   xm_memory_t **memory)
{
    (void)transport;
    (void)address;
    (void)length;
    *memory = NULL;
    return XM_OK;
}

static void memory_deregister(xm_transport_t *transport, xm_memory_t *memory)
{
    (void)transport;
    (void)memory;
}

/* Nothing happens by itself. */
static int progress(xm_transport_t *transport)
{
    (void)transport;
    return 0;
}

static int64_t now(const xm_transport_t *transport)
{
    (void)transport;
    return 1;
}

static const xm_transport_ops_t ops = {.name = "tampered",
                                       .memory_register = memory_register,
                                       .memory_deregister = memory_deregister,
                                       .send = send,
                                       .receive = receive,
                                       .cancel = cancel,
                                       .progress = progress,
                                       .peer_failed = peer_failed,
                                       .now = now};

void tampered_pair_begin(tampered_pair_t *pair, unsigned flags)
{
    *pair = (tampered_pair_t){.eager = (flags & 1) != 0, .lingers = (flags & 2) != 0};
    for (int rank = 0; rank < 2; ++rank) {
        tampered_end_t *end = &pair->ends[rank];

        end->base = (xm_transport_t){
            .ops = &ops, .rank = rank, .size = 2, .failed_peer = -1, .real_hosts = true};
        end->pair = pair;
        xm_list_init(&end->receives);
        xm_list_init(&end->messages);
    }
}

void tampered_pair_end(tampered_pair_t *pair)
{
    for (int rank = 0; rank < 2; ++rank) {
        tampered_end_t *end = &pair->ends[rank];

        if (!xm_list_is_empty(&end->receives) || first_send(end) != NULL) {
            abort();
        }
    }
    for (int rank = 0; rank < 2; ++rank) {
        while (!xm_list_is_empty(&pair->ends[rank].messages)) {
            forget(message_of(xm_list_first(&pair->ends[rank].messages)));
        }
    }
}

/* A receive for which there is a message, the choice-th modulo their number; NULL: there is none.
 */
static xm_op_t *choose(tampered_pair_t *pair, unsigned choice, tampered_end_t **end)
{
    unsigned count = 0;

    for (int pass = 0; pass < 2; ++pass) {
        unsigned left = count > 0 ? choice % count : 0;

        for (int rank = 0; rank < 2 && (pass == 0 || count > 0); ++rank) {
            xm_list_t *list = &pair->ends[rank].receives;

            *end = &pair->ends[rank];
            for (xm_list_t *at = xm_list_first(list); at != NULL; at = xm_list_next(list, at)) {
                if (find(*end, xm_op_of(at)->priv.tag) == NULL) {
                    continue;
                }
                if (pass == 1 && left-- == 0) {
                    return xm_op_of(at);
                }
                count += pass == 0;
            }
        }
    }
    return NULL;
}

/* A message of another length than that of its receive is a failure of the receive. */
static void deliver(tampered_end_t *end, xm_op_t *op)
{
    message_t *message = find(end, op->priv.tag);
    xm_op_t *sent = message->send;
    const void *bytes = message->bytes != NULL ? message->bytes : sent->priv.buffer;
    bool fits = message->length == op->priv.length;

    if (fits) {
        memcpy(op->priv.buffer, bytes, op->priv.length);
    }
    forget(message);
    end_receive(op, fits ? XM_OK : XM_ERR_CORRUPT);
    if (sent != NULL) {
        sent->done(sent, XM_OK);
    }
}

bool tampered_pair_deliver(tampered_pair_t *pair, unsigned choice)
{
    tampered_end_t *end;
    xm_op_t *op = choose(pair, choice, &end);

    if (op != NULL) {
        deliver(end, op);
    }
    return op != NULL;
}

bool tampered_pair_next(tampered_pair_t *pair, unsigned choice, uint64_t *tag)
{
    tampered_end_t *end;
    xm_op_t *op = choose(pair, choice, &end);

    *tag = op != NULL ? op->priv.tag : 0;
    return op != NULL;
}

bool tampered_pair_spoil(tampered_pair_t *pair, unsigned choice, input_t *input, size_t most,
                         uint64_t *tag)
{
    tampered_end_t *end;
    xm_op_t *op = choose(pair, choice, &end);
    message_t *message = op != NULL ? find(end, op->priv.tag) : NULL;
    size_t changes = input_take(input) % 16u + 1;

    if (message == NULL || message->length > most) {
        return false;
    }
    *tag = message->tag;
    if (message->bytes == NULL) {
        message->bytes = copy_of(message->send->priv.buffer, message->length);
    }
    for (; changes > 0; --changes) {
        size_t at = input_take(input) | (size_t)input_take(input) << 8;

        message->bytes[at % message->length] ^= (unsigned char)input_take(input);
    }
    deliver(end, op);
    return true;
}

void tampered_pair_inject(tampered_pair_t *pair, int to, uint64_t tag, size_t length,
                          input_t *input)
{
    unsigned char bytes[256];

    length = length < sizeof(bytes) ? length : sizeof(bytes);
    for (size_t i = 0; i < length; ++i) {
        bytes[i] = (unsigned char)input_take(input);
    }
    append(&pair->ends[to], tag, bytes, length, NULL);
}
