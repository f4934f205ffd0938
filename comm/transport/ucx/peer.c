/* SPDX-License-Identifier: Apache-2.0 */
/* The endpoints of a peer, and what UCX reports of them. An endpoint is made at the first
 * message, not at the start: connecting all ranks to all others would cost descriptors and
 * memory for pairs that never talk. Error callbacks run inside UCX's progress, where endpoints
 * must not be closed, so they only mark the peer or the rail, and progress acts afterwards. How
 * an endpoint is let go of depends on whether UCX watches the peer: without error handling it
 * cannot be closed against the peer's will, and is leaked. */
#include <stdlib.h>

#include "comm/transport/ucx/multirail.h"

/* The first report stays: later ones are consequences. */
void xm_ucx_report(xm_ucx_peer_t *peer, ucs_status_t reason)
{
    if (!peer->reported && !peer->failed) {
        peer->reported = true;
        peer->reason = reason;
        ++peer->owner->reports;
    }
}

/* An error of one rail. Without a channel it is the end of the peer; with one, progress first
 * waits to see whether the other rails fail as well; a rail that was given up before needs a new
 * connection. Errors of rails that are closing already are expected and ignored. */
void xm_ucx_failover_broken(xm_ucx_peer_t *peer, int lane, ucs_status_t status)
{
    xm_ucx_multirail_t *multirail = peer->multirail;

    if (multirail == NULL) {
        xm_ucx_report(peer, status);
    } else if (peer->owner->closing && !peer->connected) {
        return;
    } else if (!xm_ucx_multirail_uses(multirail, lane)) {
        multirail->retired |= 1u << lane;
        peer->owner->broken = true;
    } else {
        multirail->lanes[lane].error = status;
        if (multirail->broken_at == 0) {
            multirail->broken_at = xm_transport_now(&peer->owner->base);
        }
        peer->owner->broken = true;
    }
}

/* Called by UCX for endpoints with error handling; the argument tells peer and lane, since
 * several endpoints share a worker. */
static void on_endpoint_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    xm_ucx_lane_t *lane = arg;

    /* The endpoint that a lane had before it was lost says nothing of the one that it has now. */
    if (lane->peer->multirail == NULL || lane->ep == ep) {
        xm_ucx_failover_broken(lane->peer, (int)(lane - lane->peer->lanes), status);
    }
}

/* The sentence depends on who found out: the fault channel knows more than this transport and
 * adds its own. */
xm_status_t xm_ucx_peer_error(const xm_ucx_peer_t *peer)
{
    if (peer->reason == UCS_OK) {
        return xm_error_set(XM_ERR_PEER_DIED, "rank %d died", peer->rank);
    }
    return xm_error_set(XM_ERR_PEER_DIED, "rank %d is gone: its connection failed (%s)", peer->rank,
                        ucs_status_string(peer->reason));
}

/* True for what UCX says of a peer whose memory or port is gone, and not of one that it has no
 * transport for. */
static bool means_gone(ucs_status_t status)
{
    return status == UCS_ERR_SHMEM_SEGMENT || xm_ucx_status(status, false) == XM_ERR_PEER_DIED;
}

/* Makes the endpoint of a lane, unless it has one. */
ucs_status_t xm_ucx_connect_lane(xm_ucx_peer_t *peer, int lane)
{
    xm_ucx_lane_t *way = &peer->lanes[lane];
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = way->address,
        .err_mode = xm_ucx_watches(peer) ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE,
        .err_handler = {.cb = on_endpoint_error, .arg = way}};
    ucs_status_t status = UCS_OK;

    if (way->ep == NULL) {
        status = ucp_ep_create(xm_ucx_rail_of(peer, lane)->worker, &params, &way->ep);
        way->ep = status == UCS_OK ? way->ep : NULL;
    }
    return status;
}

/* Makes the endpoints that are missing. Lanes that have one already, after a failure half way,
 * keep it. A path that UCX does not find is an error for the peer, but for a channel only that
 * of a rail: the others may do. A rank that died before its first message is reported like one
 * that died later. */
xm_status_t xm_ucx_connect(xm_ucx_peer_t *peer)
{
    for (int i = 0; i < peer->stripe.rails; ++i) {
        ucs_status_t status;

        if (peer->lanes[i].address == NULL ||
            (peer->multirail != NULL && !xm_ucx_multirail_uses(peer->multirail, i))) {
            continue;
        }
        status = xm_ucx_connect_lane(peer, i);
        if (status != UCS_OK) {
            const char *tls = getenv("UCX_TLS");

            if (peer->multirail != NULL) {
                xm_ucx_failover_broken(peer, i, status); /* other lanes may do */
                continue;
            }
            if (means_gone(status)) {
                xm_ucx_report(peer, status);
                if (peer->owner->base.failed_peer < 0) {
                    peer->owner->base.failed_peer = peer->rank;
                }
                return xm_ucx_peer_error(peer);
            }
            return xm_error_set(XM_ERR_UNREACHABLE, "rank %d: UCX has no path to rank %d: %s%s%s",
                                peer->owner->base.rank, peer->rank, ucs_status_string(status),
                                tls != NULL ? ", UCX_TLS=" : "", tls != NULL ? tls : "");
        }
    }
    peer->connected = true;
    return XM_OK;
}

/* Starts closing the endpoints. An orderly close flushes what was sent and is waited for in
 * destroy; one by force may never end when the peer is dead, so its request is given back at
 * once and UCX frees it when it can. */
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

/* Lets go of the endpoint of a lane that was given up. By force and without waiting: its peer
 * cannot be reached over it. */
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
