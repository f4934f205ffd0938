/* SPDX-License-Identifier: Apache-2.0 */
/* The fragments of operations over UCX's own messages, and how those end. A message that
 * is split over rails is several requests of UCX, each with a fragment object that lives from
 * its post until UCX's callback; the operation ends when the last one is gone. Callbacks come
 * from inside posting calls and from progress, so they only move the operation to the ring
 * `ended`; xm_rails_deliver() calls `done` later, where the caller may post again. A receive that
 * does not take all of a split message leaves orphans behind, which are thrown away here. */
#include "comm/transport/ucx/op.h"

/* Asks UCX to cancel a request. UCX may call back at once or, for a message that is already
 * arriving, when that has ended; it ignores this for sends. */
static void cancel_fragment(xm_ucx_fragment_t *fragment)
{
    if (fragment->request != NULL) {
        ucp_request_cancel(xm_ucx_rail_of(fragment->peer, fragment->lane)->worker,
                           fragment->request);
    }
}

/* Cancels a list of fragments. Cancelling ends the fragment at once, or leaves it to UCX: no
 * other one leaves the list, so the next pointer that was read before stays valid. */
void xm_ucx_cancel_fragments(xm_ucx_fragment_t *fragment)
{
    while (fragment != NULL) {
        xm_ucx_fragment_t *next = fragment->next;

        cancel_fragment(fragment);
        fragment = next;
    }
}

/* A callback of UCX has ended the fragment. The first failure of a fragment is its operation's.
 * If the posting call has not returned yet, UCX owns nothing but the caller still uses the
 * fragment, so it is only marked. */
static void end_fragment(xm_ucx_fragment_t *fragment, xm_status_t status)
{
    xm_op_t *op = fragment->op;

    xm_ucx_count_fragment(fragment, status);
    if (op != NULL && status < 0 && op->priv.status == XM_IN_PROGRESS) {
        op->priv.status = status;
    }
    if (fragment->request == NULL) {
        fragment->ended = true; /* the posting call does the rest */
        return;
    }
    xm_ucx_give_fragment(fragment);
    if (op != NULL && op->priv.pending == 0) {
        xm_ucx_end_op(op, XM_OK);
    }
}

/* True when the fragment of this request has been given up already: the request's user data
 * then points to an object that may serve another message. UCX reuses requests, so the mark is
 * taken off. */
static bool was_abandoned(void *request)
{
    xm_ucx_request_t *ours = request;
    bool abandoned = ours->abandoned;

    ours->abandoned = false;
    return abandoned;
}

/* UCX's callback for a send: the buffer is no longer read. It says nothing about the receiver
 * having matched the message, except for long ones, whose rendezvous needs that. */
void xm_ucx_on_sent(void *request, ucs_status_t status, void *user_data)
{
    xm_ucx_fragment_t *fragment = user_data;
    bool abandoned = was_abandoned(request);

    ucp_request_free(request);
    if (!abandoned) {
        end_fragment(fragment, xm_ucx_status(status, fragment->peer->base.failed));
    }
}

/* A message, or a fragment of one, has come for a receive. Returns whether it is what was
 * expected. The flags remember on which lanes something came and of which kind, because they
 * alone tell later what of the message is still to come. */
static bool check_arrival(xm_ucx_fragment_t *fragment, const ucp_tag_recv_info_t *info)
{
    xm_op_t *op = fragment->op;
    bool several = fragment->peer->base.stripe.used > 1;
    bool split = several && (info->sender_tag & XM_UCX_TAG_SPLIT) != 0;
    bool expects_split = (op->priv.flags & XM_UCX_EXPECTS_SPLIT) != 0;

    op->priv.flags |= 1u << fragment->lane | (split ? XM_UCX_CAME_SPLIT : XM_UCX_CAME_WHOLE);
    op->priv.received += info->length;
    return split == expects_split && info->length == fragment->length;
}

/* UCX's callback for a receive. The lengths of the two ends decide whether a message is split,
 * so ends that disagree about the length may also disagree about that: an unsplit message then
 * takes one of several posted fragments, and the others would wait for ever unless they were
 * cancelled here. */
void xm_ucx_on_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                        void *user_data)
{
    xm_ucx_fragment_t *fragment = user_data;
    xm_op_t *op;

    if (was_abandoned(request)) {
        ucp_request_free(request);
        return;
    }
    op = fragment->op;
    if (op != NULL && (status == UCS_OK || status == UCS_ERR_MESSAGE_TRUNCATED) &&
        !check_arrival(fragment, info)) {
        /* Truncated is the code that becomes XM_ERR_CORRUPT, whichever way the lengths differ. */
        status = UCS_ERR_MESSAGE_TRUNCATED;
        if ((op->priv.flags & XM_UCX_EXPECTS_SPLIT) != 0 &&
            (op->priv.flags & XM_UCX_CAME_WHOLE) != 0) {
            op->priv.status = op->priv.status == XM_IN_PROGRESS ? XM_ERR_CORRUPT : op->priv.status;
            ++op->priv.pending; /* it ends below, not because of these */
            for (xm_ucx_fragment_t *other = op->priv.handle, *next; other != NULL; other = next) {
                next = other->next;
                if (other != fragment) {
                    cancel_fragment(other);
                }
            }
            --op->priv.pending;
        }
    }
    ucp_request_free(request);
    end_fragment(fragment, xm_ucx_status(status, fragment->peer->base.failed));
}

/* The lanes on which fragments of the split message that came for a receive are still to be
 * taken. */
static unsigned lanes_left(const xm_ucx_peer_t *peer, const xm_op_t *op)
{
    unsigned left = 0;

    for (int lane = 0; lane < peer->base.stripe.rails && (op->priv.flags & XM_UCX_CAME_SPLIT) != 0;
         ++lane) {
        left |= xm_stripe_uses(&peer->base.stripe, lane) ? 1u << lane : 0;
    }
    return left & ~op->priv.flags;
}

/* Posts a receive that throws away what comes on a lane. It has an empty buffer: UCX ends it as
 * truncated, and the sender is released like by any receive. Without memory the orphan stays in
 * UCX's queue, which costs memory but no correctness unless the tag is used again. */
static void post_orphan(xm_ucx_peer_t *peer, int lane, uint64_t tag)
{
    static char nothing;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
                                 .cb.recv = xm_ucx_on_received};
    xm_ucx_fragment_t *fragment = xm_ucx_take_fragment(peer, NULL, lane, 0);
    ucs_status_ptr_t request;

    if (fragment == NULL) {
        return;
    }
    param.user_data = fragment;
    request = ucp_tag_recv_nbx(
        xm_ucx_rail_of(peer, lane)->worker, &nothing, 0,
        (uint64_t)peer->base.rank << XM_UCX_TAG_BITS | tag | XM_UCX_TAG_SPLIT, UINT64_MAX, &param);
    /* The message was there already and is gone, or UCX refused the receive: nothing is left to
     * wait for. */
    if (fragment->ended || UCS_PTR_IS_ERR(request)) {
        xm_ucx_give_fragment(fragment);
    } else {
        fragment->request = request;
    }
}

/* A receive has ended without taking all fragments of a split message (it was cancelled too
 * late, or posted for a shorter one). The rest must end for its sender too, and must not meet a
 * later receive with that tag. Rails keep the order of messages, so it meets what is posted
 * now, before any later receive. */
static void throw_rest_away(const xm_op_t *op)
{
    const xm_ucx_transport_t *self = op->priv.owner;
    xm_ucx_peer_t *peer = &self->peers[op->priv.peer];
    unsigned left = lanes_left(peer, op);

    /* A peer that is gone sends no rest, and a transport that ends throws everything away by
     * itself. */
    if (peer->base.failed || peer->base.reported || self->base.closing || self->base.fenced) {
        return;
    }
    for (int lane = 0; lane < peer->base.stripe.rails; ++lane) {
        if ((left & 1u << lane) != 0) {
            post_orphan(peer, lane, op->priv.tag);
        }
    }
}

/* A failure that the operation has already stays, since it is the cause of what came later. How
 * much came is known only when all fragments were seen. */
void xm_ucx_end_op(xm_op_t *op, xm_status_t status)
{
    const xm_ucx_transport_t *self = op->priv.owner;

    xm_rails_end_op(op, status);
    if (op->priv.status < 0) {
        op->priv.received =
            lanes_left(&self->peers[op->priv.peer], op) == 0 ? op->priv.received : 0;
        throw_rest_away(op);
    }
}
