#include "comm/transport_ucx.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/transport_ucx_private.h"

static const uint64_t max_tag = (UINT64_C(1) << XM_UCX_TAG_BITS) - 1;

static void ring_append(xm_op_t *head, xm_op_t *op)
{
    op->priv.next = head;
    op->priv.previous = head->priv.previous;
    head->priv.previous->priv.next = op;
    head->priv.previous = op;
}

static void ring_remove(xm_op_t *op)
{
    op->priv.previous->priv.next = op->priv.next;
    op->priv.next->priv.previous = op->priv.previous;
}

/* UCX is done with the operation. `done` is called later, outside of UCX and of posting calls. */
void xm_ucx_end_op(xm_op_t *op, xm_status_t status)
{
    xm_ucx_transport_t *self = op->priv.owner;

    ring_remove(op);
    op->priv.status = status;
    op->priv.handle = NULL;
    ring_append(&self->ended, op);
}

/* True when the operation of this request has ended already. UCX reuses requests, so the mark is
 * taken off. */
static bool was_abandoned(void *request)
{
    xm_ucx_request_t *ours = request;
    bool abandoned = ours->abandoned;

    ours->abandoned = false;
    return abandoned;
}

static void on_sent(void *request, ucs_status_t status, void *user_data)
{
    xm_op_t *op = user_data;
    const xm_ucx_transport_t *self;

    if (was_abandoned(request)) {
        ucp_request_free(request);
        return;
    }
    self = op->priv.owner;
    ucp_request_free(request);
    xm_ucx_end_op(op, xm_ucx_status(status, self->peers[op->priv.peer].failed));
}

static void on_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                        void *user_data)
{
    xm_op_t *op = user_data;
    const xm_ucx_transport_t *self;

    if (was_abandoned(request)) {
        ucp_request_free(request);
        return;
    }
    self = op->priv.owner;
    op->priv.received = status == UCS_OK ? info->length : 0;
    if (status == UCS_OK && info->length != op->priv.length) {
        status = UCS_ERR_MESSAGE_TRUNCATED;
    }
    ucp_request_free(request);
    xm_ucx_end_op(op, xm_ucx_status(status, self->peers[op->priv.peer].failed));
}

static void on_endpoint_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    xm_ucx_peer_t *peer = arg;

    (void)ep;
    if (!peer->reported && !peer->failed) {
        peer->reported = true;
        peer->reason = status;
        ++peer->owner->reports;
    }
}

static xm_status_t length_error(const xm_ucx_transport_t *self, int peer, uint64_t tag,
                                size_t length, size_t received)
{
    char shorter[64] = "a longer message came";

    if (received > 0) {
        (void)snprintf(shorter, sizeof(shorter), "a message of %zu bytes came", received);
    }
    return xm_error_set(XM_ERR_CORRUPT,
                        "rank %d: receive from rank %d with tag %" PRIu64 " expects %zu bytes, %s",
                        self->base.rank, peer, tag, length, shorter);
}

static xm_status_t peer_error(const xm_ucx_peer_t *peer)
{
    if (peer->reason == UCS_OK) {
        return xm_error_set(XM_ERR_PEER_DIED, "rank %d died", peer->rank);
    }
    return xm_error_set(XM_ERR_PEER_DIED, "rank %d is gone: its connection failed (%s)", peer->rank,
                        ucs_status_string(peer->reason));
}

/* The sentence that goes with the failure of an operation. */
static void explain(xm_ucx_transport_t *self, const xm_op_t *op)
{
    const char *verb = op->priv.kind == XM_UCX_SEND ? "send to" : "receive from";

    switch (op->priv.status) {
    case XM_ERR_CORRUPT:
        (void)length_error(self, op->priv.peer, op->priv.tag, op->priv.length, op->priv.received);
        break;
    case XM_ERR_PEER_DIED:
        (void)peer_error(&self->peers[op->priv.peer]);
        if (self->base.failed_peer < 0) {
            self->base.failed_peer = op->priv.peer;
        }
        break;
    default:
        (void)xm_error_set(op->priv.status, "rank %d: %s rank %d with tag %" PRIu64 ": %s",
                           self->base.rank, verb, op->priv.peer, op->priv.tag,
                           xm_status_string(op->priv.status));
    }
}

/* Calls `done` of everything that has ended; returns how many that were. */
int xm_ucx_deliver(xm_ucx_transport_t *self)
{
    int count = 0;

    while (!xm_ucx_ring_is_empty(&self->ended)) {
        xm_op_t *op = self->ended.priv.next;

        ring_remove(op);
        if (op->priv.status < 0) {
            explain(self, op);
        }
        op->priv.kind = XM_UCX_IDLE;
        op->done(op, op->priv.status);
        ++count;
    }
    return count;
}

xm_status_t xm_ucx_connect(xm_ucx_transport_t *self, xm_ucx_peer_t *peer)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = peer->address,
        .err_mode = xm_ucx_watches(peer) ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE,
        .err_handler = {.cb = on_endpoint_error, .arg = peer}};
    ucs_status_t status = ucp_ep_create(self->rails[peer->rail].worker, &params, &peer->ep);

    if (status != UCS_OK) {
        const char *tls = getenv("UCX_TLS");

        peer->ep = NULL;
        return xm_error_set(XM_ERR_UNREACHABLE, "rank %d: UCX has no path to rank %d: %s%s%s",
                            self->base.rank, peer->rank, ucs_status_string(status),
                            tls != NULL ? ", UCX_TLS=" : "", tls != NULL ? tls : "");
    }
    return XM_OK;
}

/* What every post checks and prepares. */
static xm_status_t prepare(xm_ucx_transport_t *self, int rank, uint64_t tag, const void *buffer,
                           size_t length, const xm_op_t *op)
{
    xm_ucx_peer_t *peer;

    if (rank < 0 || rank >= self->base.size || rank == self->base.rank) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "rank %d: no peer %d among %d ranks",
                            self->base.rank, rank, self->base.size);
    }
    if (tag > max_tag || length == 0 || buffer == NULL) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "rank %d: message of %zu bytes with tag %" PRIu64
                            "; at least 1 byte and a tag below 2^48 are needed",
                            self->base.rank, length, tag);
    }
    if (op->priv.kind != XM_UCX_IDLE) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "rank %d: operation with tag %" PRIu64 " is posted while in flight",
                            self->base.rank, op->priv.tag);
    }
    peer = &self->peers[rank];
    if (self->closing) {
        return xm_error_set(XM_ERR_CANCELED, "rank %d: the transport is being destroyed",
                            self->base.rank);
    }
    if (peer->failed || peer->reported) {
        if (self->base.failed_peer < 0) {
            self->base.failed_peer = rank;
        }
        return peer_error(peer);
    }
    /* A receiver connects as well: only then does UCX watch whether the peer lives. */
    return peer->ep != NULL ? XM_OK : xm_ucx_connect(self, peer);
}

static void set_param(ucp_request_param_t *param, const xm_memory_t *memory, int rail, xm_op_t *op)
{
    param->op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param->user_data = op;
    if (memory != NULL) {
        param->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
        param->memh = memory->handle[rail];
    }
}

/* Makes the operation in flight. That comes before UCX is called, because UCX may end it (a message
 * that is there already and too long) inside the call. */
static void start_op(xm_ucx_transport_t *self, xm_op_t *op, int peer, uint64_t tag, size_t length,
                     int kind)
{
    op->priv.owner = self;
    op->priv.peer = peer;
    op->priv.tag = tag;
    op->priv.length = length;
    op->priv.received = 0;
    op->priv.kind = kind;
    op->priv.handle = NULL;
    op->priv.status = XM_IN_PROGRESS;
    ring_append(&self->peers[peer].in_flight, op);
}

/* What a posting call returns for what UCX's call returned. */
static xm_status_t posted(xm_ucx_transport_t *self, xm_op_t *op, ucs_status_ptr_t request)
{
    ucs_status_t status = request == NULL ? UCS_OK : UCS_PTR_STATUS(request);

    if (op->priv.status != XM_IN_PROGRESS) {
        return XM_IN_PROGRESS; /* ended inside the call; `done` is due at the next progress */
    }
    if (request != NULL && !UCS_PTR_IS_ERR(request)) {
        op->priv.handle = request;
        return XM_IN_PROGRESS;
    }
    ring_remove(op);
    if (status != UCS_OK) {
        bool send = op->priv.kind == XM_UCX_SEND;

        op->priv.kind = XM_UCX_IDLE;
        if (send) {
            on_endpoint_error(&self->peers[op->priv.peer], NULL, status);
            self->base.failed_peer =
                self->base.failed_peer < 0 ? op->priv.peer : self->base.failed_peer;
        }
        return xm_error_set(xm_ucx_status(status, send),
                            "rank %d: %s rank %d with tag %" PRIu64 ": %s", self->base.rank,
                            send ? "send to" : "receive from", op->priv.peer, op->priv.tag,
                            ucs_status_string(status));
    }
    op->priv.kind = XM_UCX_IDLE;
    return XM_OK;
}

static xm_status_t ucx_send(xm_transport_t *transport, int peer, uint64_t tag, const void *buffer,
                            size_t length, xm_memory_t *memory, xm_op_t *op)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    uint64_t wire_tag = (uint64_t)self->base.rank << XM_UCX_TAG_BITS | tag;
    ucp_request_param_t param;
    xm_status_t status = prepare(self, peer, tag, buffer, length, op);

    if (status < 0) {
        return status;
    }
    set_param(&param, memory, self->peers[peer].rail, op);
    param.cb.send = on_sent;
    start_op(self, op, peer, tag, length, XM_UCX_SEND);
    return posted(self, op,
                  ucp_tag_send_nbx(self->peers[peer].ep, buffer, length, wire_tag, &param));
}

static xm_status_t ucx_receive(xm_transport_t *transport, int peer, uint64_t tag, void *buffer,
                               size_t length, xm_memory_t *memory, xm_op_t *op)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    uint64_t wire_tag = (uint64_t)peer << XM_UCX_TAG_BITS | tag;
    ucp_request_param_t param;
    xm_status_t status = prepare(self, peer, tag, buffer, length, op);

    if (status < 0) {
        return status;
    }
    set_param(&param, memory, self->peers[peer].rail, op);
    /* UCX 1.13 tells the length of a message that was there already to the callback only. */
    param.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    param.cb.recv = on_received;
    start_op(self, op, peer, tag, length, XM_UCX_RECEIVE);
    return posted(self, op,
                  ucp_tag_recv_nbx(self->rails[self->peers[peer].rail].worker, buffer, length,
                                   wire_tag, UINT64_MAX, &param));
}

static void ucx_cancel(xm_transport_t *transport, xm_op_t *op)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;

    if (op->priv.kind != XM_UCX_IDLE && op->priv.handle != NULL) {
        ucp_request_cancel(self->rails[self->peers[op->priv.peer].rail].worker, op->priv.handle);
    }
}

/* Starts closing the endpoint. An orderly close is waited for in destroy; one by force may never
 * end when the peer is dead, so its request is given back at once. */
void xm_ucx_close_endpoint(xm_ucx_peer_t *peer, bool force)
{
    ucp_request_param_t param = {.op_attr_mask = force ? (uint32_t)UCP_OP_ATTR_FIELD_FLAGS : 0u,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t request = ucp_ep_close_nbx(peer->ep, &param);

    peer->ep = NULL;
    if (request == NULL || UCS_PTR_IS_ERR(request)) {
        return;
    }
    if (force) {
        ucp_request_free(request);
    } else {
        peer->closing = request;
    }
}

/* UCX ends the sends when the endpoint closes by force; receives must be cancelled one by one. */
void xm_ucx_cancel_receives(xm_ucx_transport_t *self, xm_ucx_peer_t *peer)
{
    xm_op_t *op = peer->in_flight.priv.next;

    while (op != &peer->in_flight) {
        xm_op_t *next = op->priv.next;

        if (op->priv.kind == XM_UCX_RECEIVE) {
            ucp_request_cancel(self->rails[peer->rail].worker, op->priv.handle);
        }
        op = next;
    }
}

void xm_ucx_abandon(xm_ucx_transport_t *self, xm_ucx_peer_t *peer)
{
    xm_ucx_cancel_receives(self, peer); /* most end right here */
    while (!xm_ucx_ring_is_empty(&peer->in_flight)) {
        xm_op_t *op = peer->in_flight.priv.next;

        ((xm_ucx_request_t *)op->priv.handle)->abandoned = true;
        ++self->rails[peer->rail].abandoned;
        xm_ucx_end_op(op, peer->failed ? XM_ERR_PEER_DIED : XM_ERR_CANCELED);
    }
    if (peer->failed && peer->ep != NULL) {
        ++self->rails[peer->rail].abandoned; /* its endpoint cannot be closed without the peer */
    }
    peer->ep = NULL;
}

static void fail_peer(xm_ucx_transport_t *self, xm_ucx_peer_t *peer)
{
    peer->failed = true;
    if (!xm_ucx_watches(peer)) {
        xm_ucx_abandon(self, peer);
        return;
    }
    xm_ucx_cancel_receives(self, peer);
    if (peer->ep != NULL) {
        xm_ucx_close_endpoint(peer, true);
    }
}

static void ucx_peer_failed(xm_transport_t *transport, int rank)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;

    if (rank >= 0 && rank < self->base.size && rank != self->base.rank &&
        !self->peers[rank].failed) {
        fail_peer(self, &self->peers[rank]);
    }
}

static void act_on_reports(xm_ucx_transport_t *self)
{
    self->reports = 0;
    for (int rank = 0; rank < self->base.size; ++rank) {
        xm_ucx_peer_t *peer = &self->peers[rank];

        if (peer->reported && !peer->failed) {
            fail_peer(self, peer);
        }
    }
}

static int ucx_progress(xm_transport_t *transport)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    unsigned count = 0;

    for (int rail = 0; rail < XM_UCX_RAIL_COUNT; ++rail) {
        if (self->rails[rail].open) {
            count += ucp_worker_progress(self->rails[rail].worker);
        }
    }
    if (self->reports > 0) {
        act_on_reports(self);
    }
    return (int)(count & 0xffff) + xm_ucx_deliver(self);
}

static xm_status_t ucx_arm(xm_transport_t *transport)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;

    if (self->epoll < 0 || self->reports > 0 || !xm_ucx_ring_is_empty(&self->ended)) {
        return XM_IN_PROGRESS;
    }
    for (int rail = 0; rail < XM_UCX_RAIL_COUNT; ++rail) {
        ucs_status_t status = UCS_OK;

        if (self->rails[rail].open) {
            status = ucp_worker_arm(self->rails[rail].worker);
        }
        if (status == UCS_ERR_BUSY) {
            return XM_IN_PROGRESS;
        }
        if (status != UCS_OK) {
            return xm_error_set(XM_ERR_INTERNAL, "rank %d: ucp_worker_arm: %s", self->base.rank,
                                ucs_status_string(status));
        }
    }
    return XM_OK;
}

static int ucx_event_fd(const xm_transport_t *transport)
{
    return ((const xm_ucx_transport_t *)transport)->epoll;
}

static int64_t ucx_now(const xm_transport_t *transport)
{
    struct timespec now;

    (void)transport;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

const xm_transport_ops_t xm_ucx_ops = {.name = "ucx",
                                       .memory_register = xm_ucx_memory_register,
                                       .memory_deregister = xm_ucx_memory_deregister,
                                       .send = ucx_send,
                                       .receive = ucx_receive,
                                       .cancel = ucx_cancel,
                                       .progress = ucx_progress,
                                       .arm = ucx_arm,
                                       .event_fd = ucx_event_fd,
                                       .peer_failed = ucx_peer_failed,
                                       .now = ucx_now,
                                       .destroy = xm_ucx_destroy};
