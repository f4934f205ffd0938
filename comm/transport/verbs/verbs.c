/* SPDX-License-Identifier: Apache-2.0 */
/* The ops table of the verbs transport: posting, cancelling, progress. It does by hand what UCX
 * does elsewhere, because over RDMA three promises can be kept exactly that way: a send is
 * never refused for want of receive buffers (credits), long messages are written into the
 * user's memory without a copy, and after a failure nothing touches that memory any more (queue
 * pairs are destroyed before operations end, or before another rail does the lost one's work).
 * Devices act on their own, so fencing means closing connections, not just being passive. One
 * thread at a time may call; `done` runs from progress, fence and destroy only. */
#include "comm/transport/verbs.h"

#include <inttypes.h>
#include <stdio.h>

#include "comm/base.h"
#include "comm/transport/verbs/transport_verbs_private.h"

static const uint64_t tag_limit = UINT64_C(1) << 48;

/* How many busy calls of progress pass between two looks at what does not come as a completion:
 * asynchronous events and the timer. */
enum { EVENTS_EVERY = 1024 };

/* The longest message that is copied into a slot of the peer. */
static size_t eager_limit(const xm_verbs_peer_t *peer)
{
    return peer->slot_size - XM_VERBS_HEADER_SIZE;
}

/* The checks of every post, made before it changes anything; a refusal leaves the operation as it
 * was. */
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

/* Posts to a failed peer are refused with the reason of its failure; the worker learns whom to
 * blame. */
static xm_status_t refuse(xm_verbs_transport_t *self, const xm_verbs_peer_t *peer)
{
    if (self->base.failed_peer < 0) {
        self->base.failed_peer = peer->rank;
    }
    return xm_verbs_peer_error(peer);
}

/* Puts the operation on a ring of its peer. The transport's own messages (tags above
 * XM_TRANSPORT_TAG_OWN) do not count as users, because probes are sent only while users wait. */
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

/* Takes back what start() did, for an operation that is not in flight after all: it has never
 * been seen by `done`, so it must not stay on the ring of those that ended. */
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

/* Makes the operation a rendezvous, with its buffer registered. The caller's registration is
 * borrowed; without one the buffer is pinned until the operation ends, which costs a system
 * call for each new buffer. */
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

/* A message is sent at once if it fits into a slot of the peer and not too many of such wait
 * there without a receive. The second condition bounds what the peer has to store, whatever its
 * program does. */
static bool is_short(const xm_verbs_peer_t *peer, size_t length)
{
    return length <= eager_limit(peer) && peer->eager_sent - peer->eager_taken < XM_VERBS_UNMATCHED;
}

/* Sends: short ones go into a slot of the peer and are copied, so they end here; longer ones
 * send a request and wait for the grant. A tag's messages all start on the same rail, which
 * keeps their order. An eager message that finds no credit is queued and ends when it is sent. */
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
    /* The operation is in flight before anything is sent, because sending may find that the
     * peer has failed. */
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
    /* The message was not sent, so the peer will never count it as taken. */
    if (status < 0 && wr.kind == XM_VERBS_EAGER) {
        --peer->eager_sent;
    }
    /* An eager message that went out at once has ended: nothing will come back for it, and its
     * `done` is not called. */
    return status < 0 || (status == XM_OK && wr.kind == XM_VERBS_EAGER) ? undo(self, op, status)
                                                                        : XM_IN_PROGRESS;
}

/* Posts a receive. Long buffers are registered now rather than when the request comes, since a
 * grant should not wait for pinning. A message that is stored already is matched at once, and a
 * short one ends the receive inside this call. */
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
    /* Anything but an immediate success is reported through `done`: a grant was sent, or the
     * lengths differ. */
    if (op->priv.status != XM_OK) {
        return XM_IN_PROGRESS;
    }
    xm_list_remove(&op->priv.link);
    op->priv.kind = XM_VERBS_IDLE;
    return XM_OK;
}

/* Takes back what nobody else knows of yet: a send whose header is still queued, a receive that
 * has met no message. Everything else runs to its end, because the peer may be writing into the
 * buffer. */
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
        xm_verbs_lane_t *lane =
            xm_verbs_lane_now(&peer->lanes[xm_stripe_rail(&peer->stripe, op->priv.tag)]);

        alone = xm_verbs_lane_unqueue(lane, op);
        /* An eager message that was counted as sent has not been sent. */
        peer->eager_sent -= alone && op->priv.handle == NULL;
    } else {
        /* Only receives that have met no message are on this ring, so finding it there is the
         * test. */
        for (xm_list_t *at = xm_list_first(&peer->receives); at != NULL && !alone;
             at = xm_list_next(&peer->receives, at)) {
            alone = xm_op_of(at) == op;
        }
    }
    if (alone) {
        xm_verbs_end_op(op, XM_ERR_CANCELED);
    }
}

/* Handles completions, then events now and then, then sends what has found credits. Failed
 * peers are closed before and after sending: completions and refused requests both report them,
 * and their operations should end in the same call that found out. Callbacks come last, when
 * all state is consistent. */
static int verbs_progress(xm_transport_t *transport)
{
    xm_verbs_transport_t *self = (xm_verbs_transport_t *)transport;
    int count = xm_verbs_poll(self);

    /* After a sleep something is likely to be there; a busy rank looks now and then, so that
     * the timer and the devices are heard as well. */
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

/* Tells the worker whether a user waits for the peer, and a count that moves as long as
 * anything ends. */
static bool verbs_waits(const xm_transport_t *transport, int rank, uint64_t *moved)
{
    const xm_verbs_peer_t *peer = &((const xm_verbs_transport_t *)transport)->peers[rank];

    *moved = peer->moved;
    return peer->users > 0;
}

/* Devices write to the user's memory by themselves, so the connections go: only a destroyed
 * queue pair cannot be written through any more. The transport is of no use after that, which
 * is what a fence is for. */
static void verbs_fence(xm_transport_t *transport)
{
    xm_verbs_transport_t *self = (xm_verbs_transport_t *)transport;

    if (!self->fenced) {
        self->fenced = true;
        xm_verbs_sever(self);
        (void)xm_verbs_deliver(self);
    }
}

/* Describes the ports that join this rank with another, for logs and sentences. */
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

        if (xm_stripe_uses(&peer->stripe, rail) && !peer->lanes[rail].lost) {
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
