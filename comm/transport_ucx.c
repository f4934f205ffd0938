#include "comm/transport_ucx.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>

#include "comm/clock.h"
#include "comm/transport_ucx_mail.h"

void xm_ucx_report(xm_ucx_peer_t *peer, ucs_status_t reason)
{
    if (!peer->reported && !peer->failed) {
        peer->reported = true;
        peer->reason = reason;
        ++peer->owner->reports;
    }
}

static void on_endpoint_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    xm_ucx_lane_t *lane = arg;

    (void)ep;
    xm_ucx_failover_broken(lane->peer, (int)(lane - lane->peer->lanes), status);
}

xm_status_t xm_ucx_peer_error(const xm_ucx_peer_t *peer)
{
    if (peer->reason == UCS_OK) {
        return xm_error_set(XM_ERR_PEER_DIED, "rank %d died", peer->rank);
    }
    return xm_error_set(XM_ERR_PEER_DIED, "rank %d is gone: its connection failed (%s)", peer->rank,
                        ucs_status_string(peer->reason));
}

/* Lanes that have an endpoint already, after a failure half way, keep it. */
xm_status_t xm_ucx_connect(xm_ucx_peer_t *peer)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .err_mode = xm_ucx_watches(peer) ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE,
        .err_handler = {.cb = on_endpoint_error}};

    for (int i = 0; i < peer->stripe.rails; ++i) {
        xm_ucx_lane_t *lane = &peer->lanes[i];
        ucs_status_t status;

        if (lane->address == NULL || lane->ep != NULL ||
            (peer->mail != NULL && !xm_ucx_mail_uses(peer->mail, i))) {
            continue;
        }
        params.address = lane->address;
        params.err_handler.arg = lane;
        status = ucp_ep_create(xm_ucx_rail_of(peer, i)->worker, &params, &lane->ep);
        if (status != UCS_OK) {
            const char *tls = getenv("UCX_TLS");

            lane->ep = NULL;
            if (peer->mail != NULL) {
                xm_ucx_failover_broken(peer, i, status); /* other lanes may do */
                continue;
            }
            return xm_error_set(XM_ERR_UNREACHABLE, "rank %d: UCX has no path to rank %d: %s%s%s",
                                peer->owner->base.rank, peer->rank, ucs_status_string(status),
                                tls != NULL ? ", UCX_TLS=" : "", tls != NULL ? tls : "");
        }
    }
    peer->connected = true;
    return XM_OK;
}

/* Starts closing the endpoints. An orderly close is waited for in destroy; one by force may never
 * end when the peer is dead, so its request is given back at once. */
void xm_ucx_close_endpoints(xm_ucx_peer_t *peer, bool force)
{
    ucp_request_param_t param = {.op_attr_mask = force ? (uint32_t)UCP_OP_ATTR_FIELD_FLAGS : 0u,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};

    peer->connected = false; /* what comes while they close is not answered any more */
    for (int i = 0; i < peer->stripe.rails; ++i) {
        xm_ucx_lane_t *lane = &peer->lanes[i];
        ucs_status_ptr_t request;

        if (lane->ep == NULL) {
            continue;
        }
        request = ucp_ep_close_nbx(lane->ep, &param);
        lane->ep = NULL;
        if (request == NULL || UCS_PTR_IS_ERR(request)) {
            continue;
        }
        if (force) {
            ucp_request_free(request);
        } else {
            lane->closing = request;
        }
    }
}

void xm_ucx_retire_lane(xm_ucx_peer_t *peer, int lane)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t request = NULL;

    if (peer->lanes[lane].ep == NULL) {
        return;
    }
    if (xm_ucx_watches(peer)) {
        request = ucp_ep_close_nbx(peer->lanes[lane].ep, &param);
    } else {
        /* It cannot be closed without the peer, nor can its rail at the end. */
        ++xm_ucx_rail_of(peer, lane)->stuck;
    }
    if (request != NULL && !UCS_PTR_IS_ERR(request)) {
        ucp_request_free(request);
    }
    peer->lanes[lane].ep = NULL;
}

void xm_ucx_abandon(xm_ucx_peer_t *peer)
{
    xm_ucx_abandon_ops(peer);
    for (int i = 0; i < peer->stripe.rails; ++i) {
        if (peer->failed && peer->lanes[i].ep != NULL) {
            /* Its endpoint cannot be closed without the peer. With mail UCX has no memory of users,
             * so the rail may go on with what it has for others. */
            ++*(peer->mail != NULL ? &xm_ucx_rail_of(peer, i)->stuck
                                   : &xm_ucx_rail_of(peer, i)->abandoned);
        }
        peer->lanes[i].ep = NULL;
    }
    peer->connected = false;
}

static void fail_peer(xm_ucx_peer_t *peer)
{
    peer->failed = true;
    if (peer->mail != NULL) {
        xm_ucx_abandon_ops(peer);
    }
    if (!xm_ucx_watches(peer)) {
        xm_ucx_abandon(peer);
        return;
    }
    xm_ucx_cancel_receives(peer);
    xm_ucx_close_endpoints(peer, true);
}

static void ucx_peer_failed(xm_transport_t *transport, int rank)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;

    if (rank >= 0 && rank < self->base.size && rank != self->base.rank &&
        !self->peers[rank].failed) {
        fail_peer(&self->peers[rank]);
    }
}

static void act_on_reports(xm_ucx_transport_t *self)
{
    self->reports = 0;
    for (int rank = 0; rank < self->base.size; ++rank) {
        xm_ucx_peer_t *peer = &self->peers[rank];

        if (peer->reported && !peer->failed) {
            fail_peer(peer);
        }
    }
}

static int ucx_progress(xm_transport_t *transport)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    unsigned count = 0;

    if (self->fenced && !self->closing) {
        return xm_ucx_deliver(self);
    }
    if (self->mails > 0) {
        self->clock = xm_transport_now(transport);
    }
    for (int rail = 0; rail < XM_UCX_RAIL_COUNT; ++rail) {
        /* What was abandoned may name memory that its owner has freed since: a peer that answers
         * late would have it sent or written to. */
        if (self->rails[rail].open && !(self->closing && self->rails[rail].abandoned > 0)) {
            count += ucp_worker_progress(self->rails[rail].worker);
        }
    }
    if (self->mails > 0) {
        xm_ucx_failover_look(self);
        xm_ucx_mail_pump(self);
    }
    if (self->reports > 0) {
        act_on_reports(self);
    }
    return (int)(count & 0xffff) + xm_ucx_deliver(self);
}

static xm_status_t ucx_arm(xm_transport_t *transport)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;

    if (self->epoll < 0 || self->reports > 0 || !xm_list_is_empty(&self->ended)) {
        return XM_IN_PROGRESS;
    }
    if (self->mails > 0 && !self->fenced &&
        (self->broken || self->due_mail != NULL || xm_ucx_failover_rings(self))) {
        return XM_IN_PROGRESS;
    }
    for (int rail = 0; rail < XM_UCX_RAIL_COUNT; ++rail) {
        ucs_status_t status = UCS_OK;

        if (self->rails[rail].open && !self->fenced) {
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

static bool ucx_waits(const xm_transport_t *transport, int peer, uint64_t *moved)
{
    const xm_ucx_peer_t *other = &((const xm_ucx_transport_t *)transport)->peers[peer];

    *moved = other->moved;
    return other->users > 0;
}

/* What nobody acts upon any more must not keep a sleeper awake either. */
static void stop_waking(xm_ucx_transport_t *self)
{
    int fds[XM_UCX_RAIL_COUNT + 2], count = 0;

    for (int rail = 0; rail < XM_UCX_RAIL_COUNT; ++rail) {
        if (self->rails[rail].open) {
            fds[count++] = self->rails[rail].event_fd;
        }
    }
    fds[count++] = self->timer_fd;
    fds[count++] = self->watch.fd;
    for (int i = 0; i < count; ++i) {
        if (self->epoll >= 0 && fds[i] >= 0) {
            (void)epoll_ctl(self->epoll, EPOLL_CTL_DEL, fds[i], NULL);
        }
    }
}

/* UCX writes to the user's memory from inside its progress only, so none is made any more. */
static void ucx_fence(xm_transport_t *transport)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;

    self->fenced = true;
    stop_waking(self);
    for (int rank = 0; rank < self->base.size; ++rank) {
        xm_ucx_abandon_ops(&self->peers[rank]);
    }
    (void)xm_ucx_deliver(self);
}

static void ucx_path(xm_transport_t *transport, int peer, char *buffer, size_t size)
{
    const xm_ucx_transport_t *self = (const xm_ucx_transport_t *)transport;

    buffer[0] = '\0';
    if (self->peers[peer].connected) {
        (void)xm_transport_ucx_lanes(transport, peer, buffer, size);
    }
}

static int64_t ucx_now(const xm_transport_t *transport)
{
    (void)transport;
    return xm_clock_ns();
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
                                       .now = ucx_now,
                                       .waits = ucx_waits,
                                       .fence = ucx_fence,
                                       .path = ucx_path,
                                       .destroy = xm_ucx_destroy};
