/* SPDX-License-Identifier: Apache-2.0 */
/* Where frames of the multi-rail channel arrive from UCX, and where channels are taken apart.
 * One handler for all peers is registered on each worker, because UCX's active messages do not
 * tell the sender: the frame does. The handler runs inside ucp_worker_progress(), so it may
 * queue packets and end operations, but it must not close endpoints or call the user back. */
#include "comm/transport/ucx/multirail.h"

/* Handles one frame; UCX keeps nothing of it afterwards, so bytes that are needed later are
 * copied. Frames that make no sense, or come from ranks without a channel, are dropped: nothing
 * of theirs can be trusted enough to blame a peer for it. */
static ucs_status_t on_frame(void *arg, const void *header, size_t header_length, void *data,
                             size_t length, const ucp_am_recv_param_t *param)
{
    xm_ucx_listener_t *listener = arg;
    xm_ucx_transport_t *self = listener->transport;
    const uint8_t *bytes = data;
    xm_ucx_frame_t frame;
    xm_ucx_peer_t *peer;
    int lane;

    (void)param;
    if (self->fenced || xm_ucx_frame_decode(header, header_length, &frame) < 0 ||
        frame.sender >= self->base.size || self->peers[frame.sender].multirail == NULL) {
        return UCS_OK;
    }
    peer = &self->peers[frame.sender];
    lane = listener->rail - peer->rail;
    if (peer->failed || peer->reported || lane >= peer->stripe.rails ||
        xm_ucx_multirail_is_closed(peer)) {
        return UCS_OK;
    }
    /* A rail that this rank has given up may still deliver. Its payload is dropped, or a byte
     * could land late; what it says of the rails is news all the same. */
    if (!xm_ucx_multirail_uses(peer->multirail, lane)) {
        xm_ucx_comeback_heard(peer->multirail, lane, &frame);
    }
    if (!xm_ucx_multirail_uses(peer->multirail, lane)) {
        return UCS_OK;
    }
    xm_ucx_failover_heard(peer->multirail, lane, frame.life);
    switch (frame.kind) {
    /* An answer to a message of this rank: it asks for a segment, or it acknowledges. */
    case XM_UCX_FRAME_GRANT:
        xm_ucx_tx_queue_on_grant(peer->multirail, &frame);
        break;
    /* The PONG goes back by the rail of the PING, for it is that rail whose life is in question. */
    case XM_UCX_FRAME_PING:
        frame.kind = XM_UCX_FRAME_PONG;
        xm_ucx_multirail_answer(peer->multirail, lane, &frame);
        break;
    case XM_UCX_FRAME_PONG:
        break;
    /* After FIN the peer answers nothing more, so destroy need not wait for it. */
    case XM_UCX_FRAME_FIN:
        peer->multirail->left = true;
        break;
    /* Bytes count only if their last one says that the sender still had them all when UCX
     * packed them; a message that had ended meanwhile was padded with zeros. */
    default:
        if (length == 0 || bytes[length - 1] == 1 || frame.kind == XM_UCX_FRAME_START) {
            xm_ucx_rx_queue_on_frame(peer->multirail, lane, &frame, bytes,
                                     length > 0 ? length - 1 : 0);
        }
    }
    return UCS_OK;
}

/* Registers the handler with the worker of one rail. WHOLE_MSG has UCX assemble the frame
 * first, so that the handler sees it once and completely. */
xm_status_t xm_ucx_multirail_listen(xm_ucx_transport_t *self, int rail)
{
    xm_ucx_listener_t *listener = &self->listeners[rail];
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = XM_UCX_MULTIRAIL_FRAMES,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = on_frame,
        .arg = listener};
    ucs_status_t status;

    *listener = (xm_ucx_listener_t){.transport = self, .rail = rail};
    /* The datatype is made by whoever comes first; it belongs to the transport and not to a
     * rail. */
    status = xm_ucx_multirail_make_type(self);
    if (status == UCS_OK) {
        status = ucp_worker_set_am_recv_handler(self->rails[rail].worker, &param);
    }
    return status == UCS_OK
               ? XM_OK
               : xm_error_set(XM_ERR_UNSUPPORTED, "rank %d: UCX has no active messages for %s: %s",
                              self->base.rank, self->nics.nic[rail - XM_UCX_RAIL_NIC].device,
                              ucs_status_string(status));
}

/* Ends all operations with the peer. Messages that are arriving lose their receive first, so a
 * chunk that is still handled afterwards finds no buffer to write into. */
void xm_ucx_multirail_abandon(xm_ucx_peer_t *peer, xm_status_t status)
{
    while (!xm_list_is_empty(&peer->in_flight)) {
        xm_op_t *op = xm_op_of(peer->in_flight.next);

        if (op->priv.kind == XM_UCX_RECEIVE && op->priv.handle != NULL) {
            ((xm_ucx_incoming_t *)op->priv.handle)->op = NULL;
        }
        xm_ucx_end_op(op, status);
    }
    xm_ucx_tx_queue_clear(peer->multirail);
}
