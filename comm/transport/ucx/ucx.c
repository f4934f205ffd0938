/* SPDX-License-Identifier: Apache-2.0 */
/* The ops table of the UCX transport: progress, sleeping, fencing, and what happens when a peer
 * fails. Everything that ends is only queued by UCX's callbacks and by posts; the caller's
 * `done` runs from progress alone (xm_rails_deliver()), so no caller code ever runs inside UCX,
 * which is not reentrant. Where a fault channel reports deaths, UCX's own error handling is
 * off: it forbids kernel copies inside a host, and UCX 1.13 has assertions that abort a
 * survivor (docs/transport.md). One thread at a time may call in here. */
#include "comm/transport/ucx/ucx.h"

#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>

#include "comm/base.h"
#include "comm/transport/ucx/transport_ucx_private.h"

/* Ends everything with a peer. If UCX watches the peer, closing the endpoints by force makes
 * UCX call back for each send with an error, so only receives (which belong to no endpoint) are
 * cancelled by hand. Otherwise nothing would ever make UCX let go: the operations end here, and
 * UCX keeps its requests. `failed` is set first, because cancelled requests read it to choose
 * between "canceled" and "peer died". */
static void fail_peer(xm_ucx_peer_t *peer)
{
    peer->base.failed = true;
    if (peer->base.rails != NULL) {
        xm_ucx_abandon_ops(peer);
    }
    if (!xm_ucx_watches(peer)) {
        xm_ucx_abandon(peer);
        return;
    }
    xm_ucx_cancel_receives(peer);
    xm_ucx_close_endpoints(peer, true);
}

/* The fault channel names a rank that died. Repeated reports and reports about this rank itself
 * are ignored, so that several channels may tell the same news. */
static void ucx_peer_failed(xm_transport_t *transport, int rank)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;

    if (rank >= 0 && rank < self->base.base.size && rank != self->base.base.rank &&
        !self->peers[rank].base.failed) {
        fail_peer(&self->peers[rank]);
    }
}

/* UCX's callbacks may not close endpoints, so they only mark the peer; progress comes here
 * afterwards, outside UCX. A scan over all ranks is affordable since it happens once for each
 * loss. */
static void act_on_reports(xm_ucx_transport_t *self)
{
    self->base.reports = 0;
    for (int rank = 0; rank < self->base.base.size; ++rank) {
        xm_ucx_peer_t *peer = &self->peers[rank];

        if (peer->base.reported && !peer->base.failed) {
            fail_peer(peer);
        }
    }
}

/* Lets UCX move bytes, then looks after lost rails, then calls the caller back. A fenced
 * transport makes no progress except while it is destroyed, and that only on rails that
 * abandoned nothing: UCX writes to user memory from inside its progress, so this is where the
 * promise of the fence is kept. */
static int ucx_progress(xm_transport_t *transport)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    unsigned count = 0;

    if (self->base.fenced && !self->base.closing) {
        return xm_rails_deliver(&self->base);
    }
    /* One reading of the clock serves all frames of this call: timeouts are hundreds of
     * milliseconds. */
    if (self->base.railed > 0) {
        self->base.clock = xm_transport_now(transport);
    }
    for (int rail = 0; rail < XM_UCX_RAIL_COUNT; ++rail) {
        /* An abandoned request may name memory that its owner has freed since: a peer that answers
         * late would have it sent or written to. */
        if (self->rails[rail].open && !(self->base.closing && self->rails[rail].abandoned > 0)) {
            count += ucp_worker_progress(self->rails[rail].worker);
        }
    }
    if (self->base.railed > 0) {
        xm_rails_failover_look(&self->base);
        xm_rails_progress(&self->base);
    }
    if (self->base.reports > 0) {
        act_on_reports(self);
    }
    /* The count only says whether something moved; the mask keeps it positive as an int. */
    return (int)(count & 0xffff) + xm_rails_deliver(&self->base);
}

/* Says whether the caller may sleep. Everything that no descriptor announces (reports, due
 * callbacks, rails with packets to post, a timer that has fired) is checked first;
 * ucp_worker_arm() then closes the race with events that come meanwhile: it answers BUSY if one
 * is already there. All rails have to be armed, since any of them may bring the next message. */
static xm_status_t ucx_arm(xm_transport_t *transport)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;

    if (self->epoll < 0 || self->base.reports > 0 || !xm_list_is_empty(&self->base.ended)) {
        return XM_IN_PROGRESS;
    }
    if (self->base.railed > 0 && !self->base.fenced) {
        /* A changed link starts the timer, because whether it stays down has to be checked later.
         */
        bool news = xm_nic_watch_read(&self->watch, &self->nics);

        if (news) {
            xm_rails_failover_arm(&self->base);
        }
        if (xm_rails_rings(&self->base) || news) {
            return XM_IN_PROGRESS;
        }
    }
    for (int rail = 0; rail < XM_UCX_RAIL_COUNT; ++rail) {
        ucs_status_t status = UCS_OK;

        if (self->rails[rail].open && !self->base.fenced) {
            status = ucp_worker_arm(self->rails[rail].worker);
        }
        if (status == UCS_ERR_BUSY) {
            return XM_IN_PROGRESS;
        }
        if (status != UCS_OK) {
            return xm_error_set(XM_ERR_INTERNAL, "rank %d: ucp_worker_arm: %s",
                                self->base.base.rank, ucs_status_string(status));
        }
    }
    return XM_OK;
}

static int ucx_event_fd(const xm_transport_t *transport)
{
    return ((const xm_ucx_transport_t *)transport)->epoll;
}

/* Takes every descriptor out of the epoll set. Nothing reads them after a fence, so a readable
 * one would make each sleep return at once and turn a waiting rank into a spinning one. */
static void stop_waking(xm_ucx_transport_t *self)
{
    int fds[XM_UCX_RAIL_COUNT + 2], count = 0;

    for (int rail = 0; rail < XM_UCX_RAIL_COUNT; ++rail) {
        if (self->rails[rail].open) {
            fds[count++] = self->rails[rail].event_fd;
        }
    }
    fds[count++] = self->base.timer_fd;
    fds[count++] = self->watch.fd;
    for (int i = 0; i < count; ++i) {
        if (self->epoll >= 0 && fds[i] >= 0) {
            (void)epoll_ctl(self->epoll, EPOLL_CTL_DEL, fds[i], NULL);
        }
    }
}

/* UCX writes to the user's memory from inside its progress only, so none is made any more. All
 * operations end here with XM_ERR_CANCELED, and their callbacks run before this returns: when
 * it has, the buffers are the caller's again (except for RDMA reads that the NIC has begun
 * itself). */
static void ucx_fence(xm_transport_t *transport)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;

    self->base.fenced = true;
    stop_waking(self);
    for (int rank = 0; rank < self->base.base.size; ++rank) {
        xm_ucx_abandon_ops(&self->peers[rank]);
    }
    (void)xm_rails_deliver(&self->base);
}

int xm_transport_ucx_shares(const xm_transport_t *transport, int rank, size_t length,
                            size_t *shares)
{
    const xm_stripe_t *stripe = &((const xm_ucx_transport_t *)transport)->peers[rank].base.stripe;
    size_t begin = 0;

    for (int rail = 0; rail < stripe->rails; ++rail) {
        size_t end = xm_stripe_end(stripe, length, rail);

        shares[rail] = end - begin;
        begin = end;
    }
    return stripe->rails;
}

/* Describes the devices and protocols that UCX chose. It connects if need be, because UCX
 * decides only when it makes the endpoint; rails that were lost are left out. */
xm_status_t xm_transport_ucx_lanes(xm_transport_t *transport, int rank, char *buffer, size_t size)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    xm_ucx_peer_t *peer;
    xm_status_t status = XM_OK;

    if (transport->ops != &xm_ucx_ops || rank < 0 || rank >= transport->size ||
        rank == transport->rank || size == 0) {
        return XM_INVALID("lanes: no UCX peer %d", rank);
    }
    peer = &self->peers[rank];
    if (peer->base.failed || peer->base.reported) {
        return xm_error_set(XM_ERR_PEER_DIED, "lanes: rank %d is gone", rank);
    }
    if (!peer->base.connected) {
        status = xm_ucx_connect(peer);
    }
    buffer[0] = '\0';
    for (int lane = 0; lane < peer->base.stripe.rails && status == XM_OK; ++lane) {
        size_t used = strlen(buffer);

        if (peer->lanes[lane].ep == NULL ||
            (peer->base.rails != NULL && !xm_rails_uses(peer->base.rails, lane))) {
            continue;
        }
        (void)snprintf(buffer + used, size - used, "%s", used > 0 ? " + " : "");
        status = xm_ucx_rail_lanes(peer->lanes[lane].ep, buffer, size);
    }
    return status;
}

/* Watchdog sentences must not open connections, so a path that no message has used is described
 * as empty. */
static void ucx_path(xm_transport_t *transport, int peer, char *buffer, size_t size)
{
    const xm_ucx_transport_t *self = (const xm_ucx_transport_t *)transport;

    buffer[0] = '\0';
    if (self->peers[peer].base.connected) {
        (void)xm_transport_ucx_lanes(transport, peer, buffer, size);
    }
}

const xm_transport_ops_t xm_ucx_ops = {.name = "ucx",
                                       .memory_register = xm_ucx_memory_register,
                                       .memory_deregister = xm_ucx_memory_deregister,
                                       .send = xm_ucx_send,
                                       .receive = xm_ucx_receive,
                                       .cancel = xm_ucx_cancel,
                                       .progress = ucx_progress,
                                       .arm = ucx_arm,
                                       .event_fd = ucx_event_fd,
                                       .peer_failed = ucx_peer_failed,
                                       .now = xm_rails_now,
                                       .waits = xm_rails_waits,
                                       .fence = ucx_fence,
                                       .path = ucx_path,
                                       .destroy = xm_ucx_destroy};
