/* SPDX-License-Identifier: Apache-2.0 */
/* Operations with peers that one rail reaches: each is one request of UCX, from its post until
 * UCX's callback. UCX may call back from inside the posting call, and callbacks come from progress
 * otherwise, so they only move the operation to the list `ended`; xm_rails_deliver() calls `done`
 * later, where the caller may post again. With peers that several rails reach the rails
 * (comm/transport/rails.h) do all of it. */
#include <inttypes.h>

#include "comm/transport/ucx/transport_ucx_private.h"

/* A receiver connects as well: only then does UCX watch whether the peer lives. */
static xm_status_t prepare(xm_ucx_transport_t *self, int rank, uint64_t tag, const void *buffer,
                           size_t length, const xm_op_t *op)
{
    xm_status_t status = xm_rails_check(&self->base, rank, tag, buffer, length, op);

    return status < 0 || self->peers[rank].base.connected ? status
                                                          : xm_ucx_connect(&self->peers[rank]);
}

static xm_ucx_peer_t *peer_of(const xm_op_t *op)
{
    xm_ucx_transport_t *self = op->priv.owner;

    return &self->peers[op->priv.peer];
}

static xm_ucx_rail_t *rail_of(const xm_op_t *op)
{
    const xm_ucx_peer_t *peer = peer_of(op);

    return xm_ucx_rail_of(peer, peer->lane);
}

static void count(const xm_op_t *op, xm_status_t status)
{
    xm_count_fragment(rail_of(op)->counters, op->priv.kind == XM_RAILS_SEND ? XM_SENT : XM_RECEIVED,
                      op->priv.length, status);
}

/* Gives a request back; false when its operation has been ended without UCX: the request's user
 * data may then be anything. UCX reuses requests, so the mark is taken off. */
static bool is_wanted(void *request)
{
    xm_ucx_request_t *ours = request;
    bool abandoned = ours->abandoned;

    ours->abandoned = false;
    ucp_request_free(request);
    return !abandoned;
}

static void end(xm_op_t *op, ucs_status_t ucs_status)
{
    xm_status_t status = xm_ucx_status(ucs_status, peer_of(op)->base.failed);

    count(op, status);
    xm_rails_end_op(op, status);
}

static ucp_request_param_t param_of(const xm_op_t *op, const xm_memory_t *memory)
{
    const xm_ucx_peer_t *peer = peer_of(op);
    ucp_request_param_t param = {.op_attr_mask =
                                     UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .user_data = (void *)(uintptr_t)op};

    if (memory != NULL) {
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
        param.memh = memory->handle[peer->rail + peer->lane];
    }
    return param;
}

static void on_left(void *request, ucs_status_t status, void *user_data)
{
    if (is_wanted(request)) {
        end(user_data, status);
    }
}

/* UCX has let go of a send's buffer. Over TCP it has copied up to a segment of it that the socket
 * did not take yet, and that moves only when this rank makes progress: who computes after its last
 * send would make the receiver wait for as long. So a send with none behind it, which would push it
 * out, is followed by an empty active message, and ends when the socket has taken that: usually at
 * once. UCX's own flush would ask the peer, and wait for its progress. Returns what the send has
 * come to, maybe UCS_INPROGRESS.
 *
 * The system call is felt where messages are short. Those go without while the socket took the last
 * empty one at once and less than XM_UCX_EAGER came since: where such a message itself finds the
 * socket full, its rest still waits for this rank's next progress. */
static ucs_status_t push_out(xm_op_t *op, ucs_status_t status)
{
    ucp_request_param_t param = param_of(op, NULL);
    xm_ucx_peer_t *peer = peer_of(op);
    ucp_ep_h ep = peer->lanes[peer->lane].ep;
    ucs_status_ptr_t request;

    peer->unpushed += op->priv.length;
    if (--peer->unsent > 0 || status != UCS_OK || !rail_of(op)->tcp_only || ep == NULL ||
        (peer->unpushed < XM_UCX_EAGER && !peer->full)) {
        return status;
    }
    param.cb.send = on_left;
    request = ucp_am_send_nbx(ep, XM_UCX_AM_EMPTY, NULL, 0, NULL, 0, &param);
    peer->unpushed = 0;
    peer->full = UCS_PTR_IS_PTR(request);
    if (peer->full) {
        op->priv.handle = request;
        op->priv.flags |= XM_UCX_LEAVING;
    }
    return UCS_PTR_STATUS(request);
}

/* UCX's callback for a send: the buffer is no longer read. It says nothing about the receiver
 * having matched the message, except for long ones, which are synchronous over TCP and elsewhere
 * have a rendezvous. */
static void on_sent(void *request, ucs_status_t status, void *user_data)
{
    if (is_wanted(request)) {
        status = push_out(user_data, status);
        if (status != UCS_INPROGRESS) {
            end(user_data, status);
        }
    }
}

/* Truncated is the code that becomes XM_ERR_CORRUPT, whichever way the lengths differ. */
static void on_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                        void *user_data)
{
    xm_op_t *op = user_data;

    if (!is_wanted(request)) {
        return;
    }
    if (status == UCS_OK || status == UCS_ERR_MESSAGE_TRUNCATED) {
        op->priv.received = info->length;
        status = info->length == op->priv.length ? status : UCS_ERR_MESSAGE_TRUNCATED;
    }
    end(op, status);
}

/* A send that UCX refuses is the end of its peer, unless only memory was lacking. A refused
 * receive says nothing about the peer. */
static xm_status_t post_error(const xm_op_t *op, ucs_status_t status)
{
    xm_rails_peer_t *peer = &peer_of(op)->base;
    bool send = op->priv.kind == XM_RAILS_SEND;

    if (send && status != UCS_ERR_NO_MEMORY) {
        xm_rails_report(peer, "its connection failed (%s)", ucs_status_string(status));
        (void)xm_rails_peer_error(peer);
    }
    return xm_error_set(xm_ucx_status(status, send), "rank %d: %s rank %d with tag %" PRIu64 ": %s",
                        peer->owner->base.rank, send ? "send to" : "receive from", op->priv.peer,
                        op->priv.tag, ucs_status_string(status));
}

/* What UCX has answered to a post. Where its callback has come already the operation has ended, and
 * `done` still has to come from progress; where UCX keeps nothing the operation is idle again. */
static xm_status_t posted(xm_op_t *op, ucs_status_ptr_t request)
{
    ucs_status_t answer = UCS_PTR_STATUS(request);
    xm_status_t status = XM_OK;

    if (op->priv.status != XM_IN_PROGRESS || (op->priv.flags & XM_UCX_LEAVING) != 0) {
        return XM_IN_PROGRESS;
    }
    if (answer == UCS_INPROGRESS) {
        op->priv.handle = request;
        return XM_IN_PROGRESS;
    }
    if (op->priv.kind == XM_RAILS_SEND) {
        answer = push_out(op, answer);
    }
    if (answer == UCS_INPROGRESS) {
        return XM_IN_PROGRESS;
    }
    if (answer != UCS_OK) {
        status = post_error(op, answer);
    }
    count(op, status);
    xm_rails_leave(op);
    op->priv.kind = XM_RAILS_IDLE;
    return status;
}

/* Over TCP a long message that fits into a segment goes at once as well, and UCX waits for the
 * receiver to have matched it. A rendezvous would need an answer first, which on a slow link waits
 * for what the receiver is sending itself, gradients behind which the next activations are: with it
 * eager-1F1B hides half of what it should. What nobody has matched yet is held by the receiver, at
 * most what the sender's operations have in flight. */
xm_status_t xm_ucx_send(xm_transport_t *transport, int peer, uint64_t tag, const void *buffer,
                        size_t length, xm_memory_t *memory, xm_op_t *op)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    xm_status_t status = prepare(self, peer, tag, buffer, length, op);
    xm_ucx_peer_t *to = &self->peers[peer];
    ucp_request_param_t param;
    ucs_status_ptr_t (*send)(ucp_ep_h, const void *, size_t, ucp_tag_t,
                             const ucp_request_param_t *);

    if (status < 0) {
        return status;
    }
    if (to->base.rails != NULL) {
        return xm_rails_send(&to->base, tag, buffer, length, memory, op);
    }
    xm_rails_start(&to->base, op, tag, buffer, length, XM_RAILS_SEND);
    param = param_of(op, memory);
    param.cb.send = on_sent;
    ++to->unsent;
    send =
        rail_of(op)->tcp_only && length >= XM_UCX_EAGER ? ucp_tag_send_sync_nbx : ucp_tag_send_nbx;
    return posted(op, send(to->lanes[to->lane].ep, buffer, length,
                           (uint64_t)self->base.base.rank << XM_UCX_TAG_BITS | tag, &param));
}

/* UCX 1.13 tells the length of a message that was there already to the callback only. */
xm_status_t xm_ucx_receive(xm_transport_t *transport, int peer, uint64_t tag, void *buffer,
                           size_t length, xm_memory_t *memory, xm_op_t *op)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    xm_status_t status = prepare(self, peer, tag, buffer, length, op);
    xm_ucx_peer_t *from = &self->peers[peer];
    ucp_request_param_t param;

    if (status < 0) {
        return status;
    }
    if (from->base.rails != NULL) {
        return xm_rails_receive(&from->base, tag, buffer, length, memory, op);
    }
    xm_rails_start(&from->base, op, tag, buffer, length, XM_RAILS_RECEIVE);
    param = param_of(op, memory);
    param.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    param.cb.recv = on_received;
    return posted(op,
                  ucp_tag_recv_nbx(rail_of(op)->worker, buffer, length,
                                   (uint64_t)peer << XM_UCX_TAG_BITS | tag, UINT64_MAX, &param));
}

/* UCX may call back at once or, for a message that is already arriving, when that has ended; it
 * ignores this for sends. One that only waits for what follows it has been sent. */
static void cancel(xm_op_t *op)
{
    if ((op->priv.flags & XM_UCX_LEAVING) != 0) {
        ((xm_ucx_request_t *)op->priv.handle)->abandoned = true;
        end(op, UCS_OK);
    } else if (op->priv.handle != NULL) {
        ucp_request_cancel(rail_of(op)->worker, op->priv.handle);
    }
}

/* Asks for an operation to end; `done` tells what came of it. */
void xm_ucx_cancel(xm_transport_t *transport, xm_op_t *op)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;

    if (op->priv.kind == XM_RAILS_IDLE) {
        return;
    }
    if (self->peers[op->priv.peer].base.rails != NULL) {
        xm_rails_rx_cancel(self->peers[op->priv.peer].base.rails, op);
    } else {
        cancel(op);
    }
}

void xm_ucx_cancel_receives(xm_ucx_peer_t *peer)
{
    if (peer->base.rails != NULL) {
        return; /* UCX has none of them */
    }
    for (xm_list_t *at = xm_list_first(&peer->base.in_flight), *next; at != NULL; at = next) {
        xm_op_t *op = xm_op_of(at);

        next = xm_list_next(&peer->base.in_flight, at);
        if (op->priv.kind == XM_RAILS_RECEIVE) {
            cancel(op);
        }
    }
}

/* Ends all operations with a peer, whether UCX lets go of them or not. Receives are cancelled
 * first, since nearly all of them end by that. Other requests are marked: when a callback comes
 * after all, it does not touch the operation. The rail counts them, and is neither progressed nor
 * destroyed at the end. */
void xm_ucx_abandon_ops(xm_ucx_peer_t *peer)
{
    xm_status_t status = peer->base.failed ? XM_ERR_PEER_DIED : XM_ERR_CANCELED;

    if (peer->base.rails != NULL) {
        for (int lane = 0; lane < peer->base.stripe.rails; ++lane) {
            xm_ucx_rail_of(peer, lane)->abandoned += peer->lanes[lane].held;
        }
        xm_rails_abandon(&peer->base, status);
        return;
    }
    xm_ucx_cancel_receives(peer); /* most end right here */
    while (!xm_list_is_empty(&peer->base.in_flight)) {
        xm_op_t *op = xm_op_of(peer->base.in_flight.next);

        ((xm_ucx_request_t *)op->priv.handle)->abandoned = true;
        ++rail_of(op)->abandoned;
        xm_rails_end_op(op, status);
    }
}
