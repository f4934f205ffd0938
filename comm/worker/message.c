/* SPDX-License-Identifier: Apache-2.0 */
/* Messages as objects, for bindings to other languages: they own the operation, so a caller
 * whose buffers are managed by a garbage collector has one handle to hold. The status with its
 * sentence is kept from the callback, because the caller asks later. Tags are of a channel of
 * their own and cannot meet those of reshards. */
#include "comm/worker/message.h"

#include <crossmesh/group.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/worker/worker.h"

enum { CHANNEL_SHIFT = 40, DRAIN_CALLS = 1000 };

struct xm_message {
    xm_op_t op;
    xm_prover_t prover;
    xm_proven_t proven;
    bool proves; /* by XM_VERIFY=chunk */
    xm_worker_t *worker;
    xm_transport_t *transport;
    int peer;
    xm_error_t end; /* its status is XM_IN_PROGRESS until then */
};

/* Called from progress. It keeps the sentence as well, which the next error would overwrite. */
static void on_end(xm_op_t *op, xm_status_t status)
{
    xm_message_t *message = op->arg;

    xm_error_save(&message->end, status);
}

/* Callers of bindings pass any number, so everything is checked before memory is taken. */
static xm_status_t check(const xm_worker_t *worker, int peer, uint64_t tag, size_t length)
{
    int rank = xm_worker_rank(worker), size = xm_worker_size(worker);

    if (peer < 0 || peer >= size || peer == rank) {
        return XM_INVALID("rank %d cannot exchange a message with rank %d of %d", rank, peer, size);
    }
    if (tag > XM_MESSAGE_MAX_TAG || length == 0) {
        return XM_INVALID("no message has tag %" PRIu64 " and %zu bytes", tag, length);
    }
    return XM_OK;
}

/* The channel in the upper bits separates these messages from all others. */
static uint64_t wire_tag(int channel, uint64_t tag)
{
    return (uint64_t)channel << CHANNEL_SHIFT | tag;
}

static xm_status_t create(xm_worker_t *worker, int peer, xm_message_t **message)
{
    xm_message_t *self = calloc(1, sizeof(*self));

    XM_NEED_MEMORY(self, "a message");
    self->op.done = on_end;
    self->op.arg = self;
    self->worker = worker;
    self->proves = xm_message_proves();
    self->transport = xm_worker_transport(worker);
    self->peer = peer;
    /* The status changes once, in the callback, and then stays. */
    self->end.status = XM_IN_PROGRESS;
    *message = self;
    return XM_OK;
}

bool xm_message_proves(void)
{
    return strcmp(xm_config_string(XM_CONFIG_VERIFY), "chunk") == 0;
}

static xm_status_t post(xm_message_t *self, bool sends, uint64_t tag, void *buffer, size_t length)
{
    uint64_t wire = wire_tag(XM_MESSAGE_CHANNEL, tag);

    if (self->proves) {
        xm_prover_begin(&self->prover, self->transport, self->peer, sends,
                        wire_tag(XM_MESSAGE_HASH_CHANNEL, tag),
                        wire_tag(XM_MESSAGE_ANSWER_CHANNEL, tag), NULL);
        xm_prover_add(&self->prover, &self->proven, &self->op);
        xm_proven_post(&self->proven, wire, buffer, length, NULL);
        return xm_message_test(self);
    }
    return sends ? xm_transport_send(self->transport, self->peer, wire, buffer, length, NULL,
                                     &self->op)
                 : xm_transport_receive(self->transport, self->peer, wire, buffer, length, NULL,
                                        &self->op);
}

static xm_status_t start(xm_worker_t *worker, bool sends, int peer, uint64_t tag, void *buffer,
                         size_t length, xm_message_t **message)
{
    xm_message_t *self = NULL;
    xm_status_t status;

    XM_TRY(check(worker, peer, tag, length));
    XM_TRY(create(worker, peer, &self));
    status = post(self, sends, tag, buffer, length);
    if (status < 0) { /* after a refusal there is no message */
        free(self);
        return status;
    }
    self->end.status = status;
    *message = self;
    return XM_OK;
}

/* Sends; the buffer must stay until the message has ended. */
xm_status_t xm_message_send(xm_worker_t *worker, int peer, uint64_t tag, const void *buffer,
                            size_t length, xm_message_t **message)
{
    XM_NEED_ARGUMENTS(worker, buffer, message);
    return start(worker, true, peer, tag, (void *)(uintptr_t)buffer, length, message);
}

/* Posts a receive; the buffer must stay until the message has ended. */
xm_status_t xm_message_receive(xm_worker_t *worker, int peer, uint64_t tag, void *buffer,
                               size_t length, xm_message_t **message)
{
    XM_NEED_ARGUMENTS(worker, buffer, message);
    return start(worker, false, peer, tag, buffer, length, message);
}

/* It does not make progress: the caller's loop does, for all of its messages at once. */
xm_status_t xm_message_test(const xm_message_t *message)
{
    XM_NEED_ARGUMENTS(message);
    if (message->end.status == XM_ERR_CORRUPT && message->proves) {
        xm_group_abort(message->worker, message->end.sentence); /* so that all ranks hear of it */
    }
    /* A failure brings its own sentence back, so it may be asked for late and more than once. */
    return message->end.status < 0 ? xm_error_restore(&message->end) : message->end.status;
}

/* Makes progress for a while; true when the operation has ended. */
static bool drain(xm_message_t *message)
{
    for (int i = 0; i < DRAIN_CALLS && message->end.status == XM_IN_PROGRESS; ++i) {
        (void)xm_transport_progress(message->transport);
    }
    return message->end.status != XM_IN_PROGRESS;
}

/* Ends a message. One in flight is cancelled; if it cannot be, its peer is given up, since the
 * caller wants its buffer back. If even that does not end it the object stays, because the
 * transport still points to it. */
void xm_message_destroy(xm_message_t *message)
{
    if (message == NULL) {
        return;
    }
    if (message->end.status == XM_IN_PROGRESS) {
        if (message->proves) {
            xm_prover_cancel(&message->prover);
        } else {
            xm_transport_cancel(message->transport, &message->op);
        }
        if (!drain(message)) {
            xm_transport_peer_failed(message->transport, message->peer);
            if (!drain(message)) {
                return; /* the transport still has it, so it has to stay */
            }
        }
    }
    free(message);
}
