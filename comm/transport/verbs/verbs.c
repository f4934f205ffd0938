/* The verbs transport: posting, cancelling, progress. */
#include "comm/transport/verbs.h"

#include <inttypes.h>
#include <stdio.h>

#include "comm/base.h"
#include "comm/transport/verbs/transport_verbs_private.h"

static const uint64_t tag_limit = UINT64_C(1) << 48;

/* Busy progress calls between two looks at what does not come as a completion. */
enum { EVENTS_EVERY = 1024 };

/* The longest message that is copied into a slot of the peer. */
static size_t eager_limit(const xm_verbs_peer_t *peer)
{
    return peer->slot_size - XM_VERBS_HEADER_SIZE;
}

/* What every post checks. */
static xm_status_t check(xm_verbs_transport_t *self, int rank, uint64_t tag, const void *buffer,
                         size_t length, const xm_op_t *op)
{
    if (rank < 0 || rank >= self->base.size || rank == self->base.rank) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "rank %d: no peer %d among %d ranks",
                            self->base.rank, rank, self->base.size);
    }
    if (tag >= tag_limit || length == 0 || buffer == NULL) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "rank %d: message of %zu bytes with tag %" PRIu64
                            "; at least 1 byte and a tag below 2^48 are needed",
                            self->base.rank, length, tag);
    }
    if (op->priv.kind != XM_VERBS_IDLE) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "rank %d: operation with tag %" PRIu64 " is posted while in flight",
                            self->base.rank, op->priv.tag);
    }
    if (self->closing || self->fenced) {
        return xm_error_set(XM_ERR_CANCELED, "rank %d: the transport %s", self->base.rank,
                            self->closing ? "is being destroyed" : "was closed for good");
    }
    return XM_OK;
}

static xm_status_t refuse(xm_verbs_transport_t *self, const xm_verbs_peer_t *peer)
{
    if (self->base.failed_peer < 0) {
        self->base.failed_peer = peer->rank;
    }
    return xm_verbs_peer_error(peer);
}

static void start(xm_verbs_transport_t *self, xm_list_t *list, xm_op_t *op, int peer, uint64_t tag,
                  void *buffer, size_t length, int kind)
{
    op->priv.owner = self;
    op->priv.peer = peer;
    op->priv.tag = tag;
    op->priv.buffer = buffer;
    op->priv.length = length;
    op->priv.received = 0;
    op->priv.kind = kind;
    op->priv.handle = NULL;
    op->priv.status = XM_IN_PROGRESS;
    xm_list_append(list, &op->priv.link);
    ++self->in_flight;
    self->peers[peer].users += tag < XM_TRANSPORT_TAG_OWN;
}

/* Takes back what start() did, for an operation that is not in flight after all. */
static xm_status_t undo(xm_verbs_transport_t *self, xm_op_t *op, xm_status_t status)
{
    xm_verbs_end_op(op, status);
    xm_list_remove(&op->priv.link);
    op->priv.kind = XM_VERBS_IDLE;
    if (status == XM_ERR_PEER_DIED && self->base.failed_peer < 0) {
        self->base.failed_peer = op->priv.peer;
    }
    return status;
}

/* Makes the operation a rendezvous, with its buffer registered. */
static xm_status_t make_rndv(xm_verbs_transport_t *self, xm_op_t *op, xm_memory_t *memory)
{
    xm_verbs_rndv_t *rndv = xm_verbs_take_rndv(self, op);

    if (rndv == NULL) {
        return XM_ERR_NO_MEMORY;
    }
    op->priv.handle = rndv;
    rndv->memory = memory;
    rndv->borrowed = memory != NULL;
    if (rndv->borrowed) {
        xm_count_registration(self->base.counters, true);
    }
    return memory != NULL ? XM_OK
                          : xm_verbs_memory_hold(self, op->priv.buffer, op->priv.length,
                                                 op->priv.kind == XM_VERBS_RECEIVE, &rndv->memory);
}

static bool is_short(const xm_verbs_peer_t *peer, size_t length)
{
    return length <= eager_limit(peer) && peer->eager_sent - peer->eager_taken < XM_VERBS_UNMATCHED;
}

static xm_status_t verbs_send(xm_transport_t *transport, int rank, uint64_t tag, const void *buffer,
                              size_t length, xm_memory_t *memory, xm_op_t *op)
{
    xm_verbs_transport_t *self = (xm_verbs_transport_t *)transport;
    xm_status_t status = check(self, rank, tag, buffer, length, op);
    xm_verbs_wr_t wr = {.kind = XM_VERBS_EAGER, .op = op};
    xm_verbs_peer_t *peer;

    if (status < 0) {
        return status;
    }
    peer = &self->peers[rank];
    if (peer->failed) {
        return refuse(self, peer);
    }
    start(self, &peer->busy, op, rank, tag, (void *)(uintptr_t)buffer, length, XM_VERBS_SEND);
    if (is_short(peer, length)) {
        ++peer->eager_sent;
    } else {
        status = make_rndv(self, op, memory);
        wr = (xm_verbs_wr_t){.kind = XM_VERBS_REQUEST, .rndv = op->priv.handle};
    }
    if (status == XM_OK) {
        status = xm_verbs_lane_send(&peer->lanes[xm_stripe_rail(&peer->stripe, tag)], &wr);
    }
    if (status < 0 && wr.kind == XM_VERBS_EAGER) {
        --peer->eager_sent;
    }
    return status < 0 || (status == XM_OK && wr.kind == XM_VERBS_EAGER) ? undo(self, op, status)
                                                                        : XM_IN_PROGRESS;
}

static xm_status_t verbs_receive(xm_transport_t *transport, int rank, uint64_t tag, void *buffer,
                                 size_t length, xm_memory_t *memory, xm_op_t *op)
{
    xm_verbs_transport_t *self = (xm_verbs_transport_t *)transport;
    xm_status_t status = check(self, rank, tag, buffer, length, op);
    xm_verbs_peer_t *peer;

    if (status < 0) {
        return status;
    }
    peer = &self->peers[rank];
    if (peer->failed) {
        return refuse(self, peer);
    }
    start(self, &peer->receives, op, rank, tag, buffer, length, XM_VERBS_RECEIVE);
    if (memory != NULL || length > self->offer.slot_size - XM_VERBS_HEADER_SIZE) {
        status = make_rndv(self, op, memory);
    }
    if (status < 0) {
        return undo(self, op, status);
    }
    xm_verbs_match_stored(peer, op);
    if (op->priv.status != XM_OK) {
        return XM_IN_PROGRESS;
    }
    xm_list_remove(&op->priv.link);
    op->priv.kind = XM_VERBS_IDLE;
    return XM_OK;
}

/* What nobody else knows of yet can be taken back. */
static void verbs_cancel(xm_transport_t *transport, xm_op_t *op)
{
    xm_verbs_transport_t *self = (xm_verbs_transport_t *)transport;
    xm_verbs_peer_t *peer;
    bool alone = false;

    if (op->priv.kind == XM_VERBS_IDLE || op->priv.status != XM_IN_PROGRESS) {
        return;
    }
    peer = &self->peers[op->priv.peer];
    if (op->priv.kind == XM_VERBS_SEND) {
        xm_verbs_lane_t *lane = &peer->lanes[xm_stripe_rail(&peer->stripe, op->priv.tag)];

        alone = xm_verbs_lane_unqueue(lane, op);
        peer->eager_sent -= alone && op->priv.handle == NULL;
    } else {
        for (xm_list_t *at = xm_list_first(&peer->receives); at != NULL && !alone;
             at = xm_list_next(&peer->receives, at)) {
            alone = xm_op_of(at) == op;
        }
    }
    if (alone) {
        xm_verbs_end_op(op, XM_ERR_CANCELED);
    }
}

static int verbs_progress(xm_transport_t *transport)
{
    xm_verbs_transport_t *self = (xm_verbs_transport_t *)transport;
    int count = xm_verbs_poll(self);

    if (self->slept || ++self->calls % EVENTS_EVERY == 0) {
        xm_verbs_events_read(self);
    }
    xm_verbs_close_failed(self);
    xm_verbs_flush_lanes(self);
    xm_verbs_close_failed(self);
    return count + xm_verbs_deliver(self);
}

static int verbs_event_fd(const xm_transport_t *transport)
{
    const xm_verbs_transport_t *self = (const xm_verbs_transport_t *)transport;

    return self->spin ? -1 : self->epoll;
}

static int64_t verbs_now(const xm_transport_t *transport)
{
    (void)transport;
    return xm_clock_ns();
}

static bool verbs_waits(const xm_transport_t *transport, int rank, uint64_t *moved)
{
    const xm_verbs_peer_t *peer = &((const xm_verbs_transport_t *)transport)->peers[rank];

    *moved = peer->moved;
    return peer->users > 0;
}

/* Devices write to the user's memory by themselves, so the connections go. */
static void verbs_fence(xm_transport_t *transport)
{
    xm_verbs_transport_t *self = (xm_verbs_transport_t *)transport;

    if (!self->fenced) {
        self->fenced = true;
        xm_verbs_sever(self);
        (void)xm_verbs_deliver(self);
    }
}

xm_status_t xm_transport_verbs_lanes(xm_transport_t *transport, int rank, char *buffer, size_t size)
{
    const xm_verbs_transport_t *self = (const xm_verbs_transport_t *)transport;
    const xm_verbs_peer_t *peer;

    if (transport->ops != &xm_verbs_ops || rank < 0 || rank >= transport->size ||
        rank == transport->rank || size == 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "lanes: no verbs peer %d", rank);
    }
    peer = &self->peers[rank];
    buffer[0] = '\0';
    for (int rail = 0; rail < peer->stripe.rails; ++rail) {
        size_t used = strlen(buffer);

        if (xm_stripe_uses(&peer->stripe, rail)) {
            (void)snprintf(buffer + used, size - used, "%s%s > %s", used > 0 ? " + " : "",
                           self->offer.port[rail].name, peer->there[rail]);
        }
    }
    return XM_OK;
}

static void verbs_path(xm_transport_t *transport, int rank, char *buffer, size_t size)
{
    if (xm_transport_verbs_lanes(transport, rank, buffer, size) < 0 && size > 0) {
        buffer[0] = '\0';
    }
}

const xm_transport_ops_t xm_verbs_ops = {.name = "verbs",
                                         .memory_register = xm_verbs_memory_register,
                                         .memory_deregister = xm_verbs_memory_deregister,
                                         .send = verbs_send,
                                         .receive = verbs_receive,
                                         .cancel = verbs_cancel,
                                         .progress = verbs_progress,
                                         .arm = xm_verbs_arm,
                                         .event_fd = verbs_event_fd,
                                         .peer_failed = xm_verbs_peer_failed,
                                         .now = verbs_now,
                                         .waits = verbs_waits,
                                         .fence = verbs_fence,
                                         .path = verbs_path,
                                         .destroy = xm_verbs_destroy};
