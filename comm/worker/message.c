#include "comm/worker/message.h"

#include <inttypes.h>
#include <stdlib.h>

#include "comm/base.h"
#include "comm/worker/worker.h"

enum { CHANNEL_SHIFT = 40, DRAIN_CALLS = 1000 };

struct xm_message {
    xm_op_t op;
    xm_transport_t *transport;
    int peer;
    xm_error_t end; /* its status is XM_IN_PROGRESS until then */
};

static void on_end(xm_op_t *op, xm_status_t status)
{
    xm_message_t *message = op->arg;

    xm_error_save(&message->end, status);
}

static xm_status_t check(const xm_worker_t *worker, int peer, uint64_t tag, size_t length)
{
    int rank = xm_worker_rank(worker), size = xm_worker_size(worker);

    if (peer < 0 || peer >= size || peer == rank) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "rank %d cannot exchange a message with rank %d of %d", rank, peer,
                            size);
    }
    if (tag > XM_MESSAGE_MAX_TAG || length == 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "no message has tag %" PRIu64 " and %zu bytes",
                            tag, length);
    }
    return XM_OK;
}

static uint64_t wire_tag(uint64_t tag)
{
    return (uint64_t)XM_MESSAGE_CHANNEL << CHANNEL_SHIFT | tag;
}

static xm_status_t create(xm_worker_t *worker, int peer, xm_message_t **message)
{
    xm_message_t *self = calloc(1, sizeof(*self));

    if (self == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a message");
    }
    self->op.done = on_end;
    self->op.arg = self;
    self->transport = xm_worker_transport(worker);
    self->peer = peer;
    self->end.status = XM_IN_PROGRESS;
    *message = self;
    return XM_OK;
}

/* What the transport said of the post. */
static xm_status_t posted(xm_message_t *self, xm_status_t status, xm_message_t **message)
{
    if (status < 0) {
        free(self);
        return status;
    }
    self->end.status = status;
    *message = self;
    return XM_OK;
}

xm_status_t xm_message_send(xm_worker_t *worker, int peer, uint64_t tag, const void *buffer,
                            size_t length, xm_message_t **message)
{
    xm_message_t *self = NULL;
    xm_status_t status;

    if (XM_IS_NULL(worker) || XM_IS_NULL(buffer) || XM_IS_NULL(message)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    status = check(worker, peer, tag, length);
    if (status == XM_OK) {
        status = create(worker, peer, &self);
    }
    if (status < 0) {
        return status;
    }
    status =
        xm_transport_send(self->transport, peer, wire_tag(tag), buffer, length, NULL, &self->op);
    return posted(self, status, message);
}

xm_status_t xm_message_receive(xm_worker_t *worker, int peer, uint64_t tag, void *buffer,
                               size_t length, xm_message_t **message)
{
    xm_message_t *self = NULL;
    xm_status_t status;

    if (XM_IS_NULL(worker) || XM_IS_NULL(buffer) || XM_IS_NULL(message)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    status = check(worker, peer, tag, length);
    if (status == XM_OK) {
        status = create(worker, peer, &self);
    }
    if (status < 0) {
        return status;
    }
    status =
        xm_transport_receive(self->transport, peer, wire_tag(tag), buffer, length, NULL, &self->op);
    return posted(self, status, message);
}

xm_status_t xm_message_test(const xm_message_t *message)
{
    if (XM_IS_NULL(message)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    return message->end.status < 0 ? xm_error_restore(&message->end) : message->end.status;
}

static bool drain(xm_message_t *message)
{
    for (int i = 0; i < DRAIN_CALLS && message->end.status == XM_IN_PROGRESS; ++i) {
        (void)xm_transport_progress(message->transport);
    }
    return message->end.status != XM_IN_PROGRESS;
}

void xm_message_destroy(xm_message_t *message)
{
    if (message == NULL) {
        return;
    }
    if (message->end.status == XM_IN_PROGRESS) {
        xm_transport_cancel(message->transport, &message->op);
        if (!drain(message)) {
            xm_transport_peer_failed(message->transport, message->peer);
            if (!drain(message)) {
                return; /* the transport still has it, so it has to stay */
            }
        }
    }
    free(message);
}
