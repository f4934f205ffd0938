/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/resharding/execute/cuda_transport.h"

#include "xm_test.h"

typedef struct {
    xm_transport_t base;
    xm_transport_t *inner;
    xm_memory_space_t *space;
    int64_t messages;
} wrapper_t;

/* A message under way. */
typedef struct {
    xm_op_t op;
    xm_op_t *user;
    wrapper_t *wrapper;
    void *host;     /* its bytes, when they are on a device */
    void *received; /* where they go */
    size_t length;
} message_t;

static wrapper_t *wrapper_of(const xm_transport_t *transport)
{
    return (wrapper_t *)(uintptr_t)transport;
}

static void end(message_t *message, xm_status_t status)
{
    xm_op_t *user = message->user;

    if (status == XM_OK && message->received != NULL) {
        ck_assert_xm_ok(xm_memory_copy(message->wrapper->space, message->received, message->host,
                                       message->length));
    }
    message->wrapper->base.failed_peer = message->wrapper->inner->failed_peer;
    free(message->host);
    free(message);
    user->priv.handle = NULL;
}

static void done(xm_op_t *op, xm_status_t status)
{
    message_t *message = op->arg;
    xm_op_t *user = message->user;

    end(message, status);
    user->done(user, status);
}

static bool is_on_device(const void *buffer)
{
    xm_memory_place_t place;

    xm_memory_recognise(&buffer, 1, &place);
    return place.kind == XM_MEMORY_CUDA;
}

static message_t *make(wrapper_t *wrapper, const void *buffer, size_t length, xm_op_t *user)
{
    message_t *message = calloc(1, sizeof(*message));

    message->op.done = done;
    message->op.arg = message;
    message->op.order = user->order;
    message->user = user;
    message->wrapper = wrapper;
    message->length = length;
    if (is_on_device(buffer)) {
        message->host = malloc(length);
        ++wrapper->messages;
    }
    user->priv.handle = message;
    return message;
}

static xm_status_t posted(message_t *message, xm_status_t status)
{
    if (status != XM_IN_PROGRESS) {
        end(message, status);
    }
    return status;
}

static xm_status_t wrapped_send(xm_transport_t *transport, int peer, uint64_t tag,
                                const void *buffer, size_t length, xm_memory_t *memory, xm_op_t *op)
{
    wrapper_t *wrapper = wrapper_of(transport);
    message_t *message = make(wrapper, buffer, length, op);

    (void)memory;
    if (message->host != NULL) {
        ck_assert_xm_ok(xm_memory_copy(wrapper->space, message->host, buffer, length));
        buffer = message->host;
    }
    return posted(message,
                  xm_transport_send(wrapper->inner, peer, tag, buffer, length, NULL, &message->op));
}

static xm_status_t wrapped_receive(xm_transport_t *transport, int peer, uint64_t tag, void *buffer,
                                   size_t length, xm_memory_t *memory, xm_op_t *op)
{
    wrapper_t *wrapper = wrapper_of(transport);
    message_t *message = make(wrapper, buffer, length, op);

    (void)memory;
    if (message->host != NULL) {
        message->received = buffer;
        buffer = message->host;
    }
    return posted(message, xm_transport_receive(wrapper->inner, peer, tag, buffer, length, NULL,
                                                &message->op));
}

static xm_status_t wrapped_register(xm_transport_t *transport, void *address, size_t length,
                                    xm_memory_t **memory)
{
    (void)transport;
    (void)address;
    (void)length;
    *memory = NULL;
    return XM_OK;
}

static void wrapped_deregister(xm_transport_t *transport, xm_memory_t *memory)
{
    (void)transport;
    (void)memory;
}

static void wrapped_cancel(xm_transport_t *transport, xm_op_t *op)
{
    message_t *message = op->priv.handle;

    if (message != NULL) {
        xm_transport_cancel(wrapper_of(transport)->inner, &message->op);
    }
}

static int wrapped_progress(xm_transport_t *transport)
{
    return xm_transport_progress(wrapper_of(transport)->inner);
}

static xm_status_t wrapped_arm(xm_transport_t *transport)
{
    return xm_transport_arm(wrapper_of(transport)->inner);
}

static int wrapped_event_fd(const xm_transport_t *transport)
{
    return xm_transport_event_fd(wrapper_of(transport)->inner);
}

static void wrapped_peer_failed(xm_transport_t *transport, int peer)
{
    xm_transport_peer_failed(wrapper_of(transport)->inner, peer);
}

static int64_t wrapped_now(const xm_transport_t *transport)
{
    return xm_transport_now(wrapper_of(transport)->inner);
}

static void wrapped_destroy(xm_transport_t *transport)
{
    xm_transport_destroy(wrapper_of(transport)->inner);
    free(transport);
}

static const xm_transport_ops_t wrapped_ops = {.name = "wrapped",
                                               .memory_register = wrapped_register,
                                               .memory_deregister = wrapped_deregister,
                                               .send = wrapped_send,
                                               .receive = wrapped_receive,
                                               .cancel = wrapped_cancel,
                                               .progress = wrapped_progress,
                                               .arm = wrapped_arm,
                                               .event_fd = wrapped_event_fd,
                                               .peer_failed = wrapped_peer_failed,
                                               .now = wrapped_now,
                                               .destroy = wrapped_destroy};

void cuda_transport_wrap(xm_memory_space_t *space, xm_transport_t **transport)
{
    wrapper_t *wrapper = calloc(1, sizeof(*wrapper));

    wrapper->base = **transport;
    wrapper->base.ops = &wrapped_ops;
    wrapper->base.cuda = true;
    wrapper->inner = *transport;
    wrapper->space = space;
    *transport = &wrapper->base;
}

int64_t cuda_transport_messages(const xm_transport_t *transport)
{
    return wrapper_of(transport)->messages;
}
