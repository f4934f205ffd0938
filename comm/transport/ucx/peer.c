/* SPDX-License-Identifier: Apache-2.0 */
/* The endpoints of a peer, and what UCX reports of them. An endpoint is made at the first
 * message, not at the start: connecting all ranks to all others would cost descriptors and
 * memory for pairs that never talk. Error callbacks run inside UCX's progress, where endpoints
 * must not be closed, so they only mark the peer or the rail, and progress acts afterwards. How
 * an endpoint is let go of depends on whether UCX watches the peer: without error handling it
 * cannot be closed against the peer's will, and is leaked. */
#include <stdlib.h>

#include "comm/transport/ucx/transport_ucx_private.h"

/* Called by UCX for endpoints with error handling; the argument tells peer and lane, since
 * several endpoints share a worker. */
static void on_endpoint_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    xm_ucx_lane_t *lane = arg;

    /* The endpoint that a lane had before it was lost says nothing of the one that it has now. */
    if (lane->peer->base.rails == NULL || lane->ep == ep) {
        xm_rails_broken(&lane->peer->base, (int)(lane - lane->peer->lanes), "%s",
                        ucs_status_string(status));
    }
}

/* True for what UCX says of a peer whose memory or port is gone, and not of one that it has no
 * transport for. "Unreachable" may be either; over TCP it is what a connection is refused with at
 * once when the own NIC is down or has no route, and whose fault that is the detectors know. */
static bool means_gone(const xm_ucx_rail_t *rail, ucs_status_t status)
{
    return status == UCS_ERR_SHMEM_SEGMENT || xm_ucx_status(status, false) == XM_ERR_PEER_DIED ||
           (status == UCS_ERR_UNREACHABLE && rail->tcp_only);
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
    /* To an RDMA device it is joined when something has passed. */
    if (peer->base.rails != NULL && !xm_ucx_fetches(peer)) {
        peer->base.rails->lanes[lane].joined = way->ep != NULL;
    }
    return status;
}

/* Makes the endpoints that are missing. Lanes that have one already, after a failure half way,
 * keep it. A path that UCX does not find is an error for the peer, but with rails only that
 * of a rail: the others may do. A rank that died before its first message is reported like one
 * that died later. */
xm_status_t xm_ucx_connect(xm_ucx_peer_t *peer)
{
    for (int i = 0; i < peer->base.stripe.rails; ++i) {
        ucs_status_t status;

        if (peer->lanes[i].address == NULL ||
            (peer->base.rails != NULL && !xm_rails_uses(peer->base.rails, i))) {
            continue;
        }
        status = xm_ucx_connect_lane(peer, i);
        if (status != UCS_OK) {
            const char *tls = getenv("UCX_TLS");

            if (peer->base.rails != NULL) {
                xm_rails_broken(&peer->base, i, "%s", ucs_status_string(status));
                continue;
            }
            if (means_gone(xm_ucx_rail_of(peer, i), status)) {
                xm_rails_report(&peer->base, "its connection failed (%s%s%s)",
                                ucs_status_string(status), tls != NULL ? ", UCX_TLS=" : "",
                                tls != NULL ? tls : "");
                return xm_rails_peer_error(&peer->base);
            }
            return xm_error_set(XM_ERR_UNREACHABLE, "rank %d: UCX has no path to rank %d: %s%s%s",
                                peer->base.owner->base.rank, peer->base.rank,
                                ucs_status_string(status), tls != NULL ? ", UCX_TLS=" : "",
                                tls != NULL ? tls : "");
        }
    }
    peer->base.connected = true;
    return XM_OK;
}

/* Closes an endpoint by force, which ends all that UCX has of it, and forgets it. UCX frees the
 * request of a close that does not end at once when it can. Without error handling it cannot be
 * closed without the peer, nor can its rail at the end; and one of an RDMA device whose connection
 * is half made must not be: UCX 1.13 aborts (ucp_request.c, "got REQ message"). */
static void drop(xm_ucx_peer_t *peer, int lane)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};
    xm_ucx_lane_t *way = &peer->lanes[lane];
    ucs_status_ptr_t request = NULL;

    if (xm_ucx_watches(peer) && (!xm_ucx_fetches(peer) || peer->base.rails->lanes[lane].joined)) {
        request = ucp_ep_close_nbx(way->ep, &param);
    } else {
        ++xm_ucx_rail_of(peer, lane)->stuck;
    }
    if (request != NULL && !UCS_PTR_IS_ERR(request)) {
        ucp_request_free(request);
    }
    way->ep = NULL;
}

/* Starts closing the endpoints. An orderly close flushes what was sent and is waited for in
 * destroy; one by force may never end when the peer is dead. */
void xm_ucx_close_endpoints(xm_ucx_peer_t *peer, bool force)
{
    static const ucp_request_param_t in_order = {.op_attr_mask = 0};

    peer->base.connected = false; /* what comes while they close is not answered any more */
    for (int i = 0; i < peer->base.stripe.rails; ++i) {
        xm_ucx_lane_t *lane = &peer->lanes[i];
        ucs_status_ptr_t request;

        if (lane->ep == NULL) {
            continue;
        }
        if (force) {
            drop(peer, i);
            continue;
        }
        request = ucp_ep_close_nbx(lane->ep, &in_order);
        lane->ep = NULL;
        lane->closing = UCS_PTR_IS_ERR(request) ? NULL : request;
    }
}

/* Lets go of the endpoint of a lane that was given up: its peer cannot be reached over it. */
void xm_ucx_retire_lane(xm_ucx_peer_t *peer, int lane)
{
    if (peer->lanes[lane].ep != NULL) {
        drop(peer, lane);
        peer->base.rails->lanes[lane].joined = false;
    }
}
