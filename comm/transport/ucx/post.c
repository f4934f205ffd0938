/* SPDX-License-Identifier: Apache-2.0 */
/* Posting operations, and taking them back. A send or receive is cut into fragments here, one
 * for each rail in use if it is long enough, and both ends cut alike because both compute it
 * from the length. UCX may complete a fragment inside the posting call, and the peer may fail
 * between two fragments, so the operation holds a count of its own while it is being posted: it
 * can neither end nor be called back under the hands of this code. Rails
 * (comm/transport/rails.h) take whole messages instead. */
#include <inttypes.h>

#include "comm/transport/ucx/op.h"

/* A receiver connects as well: only then does UCX watch whether the peer lives. */
static xm_status_t prepare(xm_ucx_transport_t *self, int rank, uint64_t tag, const void *buffer,
                           size_t length, const xm_op_t *op)
{
    xm_status_t status = xm_rails_check(&self->base, rank, tag, buffer, length, op);

    return status < 0 || self->peers[rank].base.connected ? status
                                                          : xm_ucx_connect(&self->peers[rank]);
}

/* A message before it is cut into fragments. */
typedef struct {
    xm_ucx_peer_t *peer;
    uint64_t wire_tag;
    uint64_t mask;
    uint8_t *buffer;
    size_t length;
    xm_memory_t *memory;
    bool split;
} message_t;

/* Hands one fragment to UCX. UCS_INPROGRESS: its callback will come; UCS_OK with *called: it
 * came inside the call and has done the counting; UCS_OK without: the send is complete and UCX
 * keeps nothing. */
static ucs_status_t post_fragment(const message_t *message, xm_op_t *op, int lane, bool *called)
{
    size_t begin = 0, end = message->length;
    ucp_request_param_t param = {.op_attr_mask =
                                     UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA};
    xm_ucx_peer_t *peer = message->peer;
    xm_ucx_fragment_t *fragment;
    ucs_status_ptr_t request;

    if (message->split) {
        begin = lane > 0 ? xm_stripe_end(&peer->base.stripe, message->length, lane - 1) : 0;
        end = xm_stripe_end(&peer->base.stripe, message->length, lane);
    }
    fragment = xm_ucx_take_fragment(peer, op, lane, end - begin);
    if (fragment == NULL) {
        return UCS_ERR_NO_MEMORY;
    }
    param.user_data = fragment;
    if (message->memory != NULL) {
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
        param.memh = message->memory->handle[peer->rail + lane];
    }
    if (op->priv.kind == XM_RAILS_SEND) {
        param.cb.send = xm_ucx_on_sent;
        request = ucp_tag_send_nbx(peer->lanes[lane].ep, message->buffer + begin, end - begin,
                                   message->wire_tag, &param);
    } else {
        /* UCX 1.13 tells the length of a message that was there already to the callback only. */
        param.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
        param.cb.recv = xm_ucx_on_received;
        request = ucp_tag_recv_nbx(xm_ucx_rail_of(peer, lane)->worker, message->buffer + begin,
                                   end - begin, message->wire_tag, message->mask, &param);
    }
    /* end_fragment() has seen that the request is not known yet and has left the rest to this
     * place. */
    if (fragment->ended) {
        *called = true;
        xm_ucx_give_fragment(fragment);
        return UCS_OK;
    }
    if (request == NULL || UCS_PTR_IS_ERR(request)) {
        xm_ucx_count_fragment(fragment, request == NULL ? XM_OK : XM_ERR_IO);
        xm_ucx_give_fragment(fragment);
        return request == NULL ? UCS_OK : UCS_PTR_STATUS(request);
    }
    fragment->request = request;
    return UCS_INPROGRESS;
}

/* A send that UCX refuses is the end of its peer, unless only memory was lacking. A refused
 * receive says nothing about the peer. */
static xm_status_t post_error(xm_ucx_transport_t *self, const xm_op_t *op, ucs_status_t status)
{
    bool send = op->priv.kind == XM_RAILS_SEND;

    if (send && status != UCS_ERR_NO_MEMORY) {
        xm_rails_report(&self->peers[op->priv.peer].base, "its connection failed (%s)",
                        ucs_status_string(status));
        (void)xm_rails_peer_error(&self->peers[op->priv.peer].base);
    }
    return xm_error_set(xm_ucx_status(status, send), "rank %d: %s rank %d with tag %" PRIu64 ": %s",
                        self->base.base.rank, send ? "send to" : "receive from", op->priv.peer,
                        op->priv.tag, ucs_status_string(status));
}

/* Posts the fragments. It returns XM_OK if a send was complete at once (then `done` is not
 * called), XM_IN_PROGRESS if `done` will come, or an error with the operation idle again. If a
 * later fragment fails, those before it are cancelled, and the operation ends when UCX has let
 * go of the last of them. */
static xm_status_t post(xm_ucx_transport_t *self, const message_t *message, xm_op_t *op)
{
    const xm_stripe_t *stripe = &message->peer->base.stripe;
    int first = message->split ? 0 : xm_stripe_rail(stripe, op->priv.tag);
    int last = message->split ? stripe->rails - 1 : first;
    bool called = false;

    ++op->priv.pending; /* fragments that end meanwhile do not end the operation */
    for (int lane = first; lane <= last && op->priv.status == XM_IN_PROGRESS; ++lane) {
        ucs_status_t status =
            xm_stripe_uses(stripe, lane) ? post_fragment(message, op, lane, &called) : UCS_OK;

        if (status < 0) {
            op->priv.status = post_error(self, op, status);
            xm_ucx_cancel_fragments(op->priv.handle);
        }
    }
    /* Some fragment is still with UCX; its callback ends the operation. */
    if (--op->priv.pending > 0) {
        return XM_IN_PROGRESS;
    }
    /* All fragments ended by callbacks inside the calls. `done` still has to come from
     * progress, as for every receive. */
    if (called) {
        xm_ucx_end_op(op, XM_OK);
        return XM_IN_PROGRESS;
    }
    xm_rails_leave(op);
    op->priv.kind = XM_RAILS_IDLE;
    return op->priv.status == XM_IN_PROGRESS ? XM_OK : op->priv.status;
}

/* Sends a message. With rails they do the rest; a message over UCX
 * that is not split takes the rail that a hash of its tag chooses, the same for all messages
 * with that tag, because only one rail keeps their order. */
xm_status_t xm_ucx_send(xm_transport_t *transport, int peer, uint64_t tag, const void *buffer,
                        size_t length, xm_memory_t *memory, xm_op_t *op)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    xm_status_t status = prepare(self, peer, tag, buffer, length, op);
    message_t message = {
        .buffer = (uint8_t *)(uintptr_t)buffer, .length = length, .memory = memory};

    if (status < 0) {
        return status;
    }
    message.peer = &self->peers[peer];
    message.split = xm_stripe_splits(&message.peer->base.stripe, length);
    message.wire_tag = (uint64_t)self->base.base.rank << XM_UCX_TAG_BITS | tag |
                       (message.split ? XM_UCX_TAG_SPLIT : 0);
    if (message.peer->base.rails != NULL) {
        return xm_rails_send(&message.peer->base, tag, buffer, length, memory, op);
    }
    xm_rails_start(&message.peer->base, op, tag, buffer, length, XM_RAILS_SEND);
    return post(self, &message, op);
}

/* Posts a receive. Its mask leaves the split bit out, so that a message of unexpected length is
 * still matched and can be reported, instead of two ends that wait for each other until the
 * deadline. */
xm_status_t xm_ucx_receive(xm_transport_t *transport, int peer, uint64_t tag, void *buffer,
                           size_t length, xm_memory_t *memory, xm_op_t *op)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    xm_status_t status = prepare(self, peer, tag, buffer, length, op);
    message_t message = {.buffer = buffer, .length = length, .memory = memory};

    if (status < 0) {
        return status;
    }
    message.peer = &self->peers[peer];
    message.split = xm_stripe_splits(&message.peer->base.stripe, length);
    message.wire_tag = (uint64_t)peer << XM_UCX_TAG_BITS | tag;
    message.mask = message.peer->base.stripe.used > 1 ? ~XM_UCX_TAG_SPLIT : UINT64_MAX;
    if (message.peer->base.rails != NULL) {
        return xm_rails_receive(&message.peer->base, tag, buffer, length, memory, op);
    }
    xm_rails_start(&message.peer->base, op, tag, buffer, length, XM_RAILS_RECEIVE);
    op->priv.flags = message.split ? XM_UCX_EXPECTS_SPLIT : 0;
    return post(self, &message, op);
}

/* Asks for an operation to end; `done` tells what came of it. A send is not stopped by UCX, and
 * a receive whose bytes are arriving ends when they have come. */
void xm_ucx_cancel(xm_transport_t *transport, xm_op_t *op)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    if (op->priv.kind == XM_RAILS_IDLE) {
        return;
    }
    if (self->peers[op->priv.peer].base.rails != NULL) {
        xm_rails_rx_cancel(self->peers[op->priv.peer].base.rails, op);
    } else {
        xm_ucx_cancel_fragments(op->priv.handle);
    }
}

/* Cancels the receives from one peer, orphans' included, which have no operation that could be
 * cancelled. */
void xm_ucx_cancel_receives(xm_ucx_peer_t *peer)
{
    if (peer->base.rails != NULL) {
        return; /* UCX has none of them */
    }
    for (xm_list_t *at = xm_list_first(&peer->base.in_flight), *next; at != NULL; at = next) {
        const xm_op_t *op = xm_op_of(at);

        next = xm_list_next(&peer->base.in_flight, at);
        if (op->priv.kind == XM_RAILS_RECEIVE) {
            xm_ucx_cancel_fragments(op->priv.handle);
        }
    }
    xm_ucx_cancel_fragments(peer->orphans);
}

/* UCX cannot end these requests, so they are marked: when a callback comes after all, it finds
 * the mark and touches neither fragment nor operation. The rail counts them, and is neither
 * progressed nor destroyed at the end. */
static void abandon_list(xm_ucx_fragment_t *fragment)
{
    while (fragment != NULL) {
        xm_ucx_fragment_t *next = fragment->next;

        ((xm_ucx_request_t *)fragment->request)->abandoned = true;
        ++xm_ucx_rail_of(fragment->peer, fragment->lane)->abandoned;
        xm_ucx_give_fragment(fragment);
        fragment = next;
    }
}

/* Ends all operations with a peer, whether UCX lets go of them or not. Receives are cancelled
 * first, since nearly all of them end by that and need no abandoning. */
void xm_ucx_abandon_ops(xm_ucx_peer_t *peer)
{
    if (peer->base.rails != NULL) {
        xm_rails_abandon(&peer->base, peer->base.failed ? XM_ERR_PEER_DIED : XM_ERR_CANCELED);
        return;
    }
    xm_ucx_cancel_receives(peer); /* most end right here */
    while (!xm_list_is_empty(&peer->base.in_flight)) {
        xm_op_t *op = xm_op_of(peer->base.in_flight.next);

        abandon_list(op->priv.handle);
        xm_ucx_end_op(op, peer->base.failed ? XM_ERR_PEER_DIED : XM_ERR_CANCELED);
    }
    abandon_list(peer->orphans);
}
