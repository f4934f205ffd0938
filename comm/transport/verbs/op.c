/* SPDX-License-Identifier: Apache-2.0 */
/* How operations of the verbs transport end. There is one way only: off the ring, registration
 * and message number given back, on to the ring `ended`; `done` is called later, from
 * xm_verbs_deliver(). So every operation ends exactly once, and the callback may post again or
 * free the operation. */
#include <inttypes.h>

#include "comm/transport/verbs/transport_verbs_private.h"

/* Ends an operation. Its number is retired with it, so a late completion or message of the peer
 * finds nothing. */
void xm_verbs_end_op(xm_op_t *op, xm_status_t status)
{
    xm_verbs_transport_t *self = op->priv.owner;

    xm_list_remove(&op->priv.link);
    if (op->priv.handle != NULL) {
        xm_verbs_give_rndv(self, op->priv.handle);
        op->priv.handle = NULL;
    }
    op->priv.status = status;
    --self->in_flight;
    self->peers[op->priv.peer].users -= op->priv.tag < XM_TRANSPORT_TAG_OWN;
    ++self->peers[op->priv.peer].moved;
    xm_list_append(&self->ended, &op->priv.link);
}

/* Reliable connections complete a write only when it is acknowledged. A message ends with its last
 * fragment. An unknown number belongs to a message that has ended already. */
void xm_verbs_wrote(xm_verbs_lane_t *lane, uint32_t number)
{
    xm_verbs_rndv_t *rndv =
        xm_verbs_find_rndv(lane->peer->owner, number, lane->peer, XM_VERBS_SEND);

    if (rndv != NULL && --rndv->pieces == 0) {
        xm_verbs_end_op(rndv->op, XM_OK);
    }
}

/* Makes the sentence that goes with the failure of an operation, just before `done`, since
 * other errors may have come in between. The transport's own sentence says why this rank could
 * not take a message. */
static void explain(xm_verbs_transport_t *self, const xm_op_t *op)
{
    const char *verb = op->priv.kind == XM_VERBS_SEND ? "send to" : "receive from";

    switch (op->priv.status) {
    case XM_ERR_CORRUPT:
        /* The number of bytes that came is what the user compares with. */
        (void)xm_error_set(XM_ERR_CORRUPT,
                           "rank %d: receive from rank %d with tag %" PRIu64
                           " expects %zu bytes, a message of %zu bytes came",
                           self->base.rank, op->priv.peer, op->priv.tag, op->priv.length,
                           op->priv.received);
        break;
    case XM_ERR_PEER_DIED:
        (void)xm_verbs_peer_error(&self->peers[op->priv.peer]);
        if (self->base.failed_peer < 0) {
            self->base.failed_peer = op->priv.peer;
        }
        break;
    case XM_ERR_CANCELED:
        (void)xm_error_set(XM_ERR_CANCELED, "rank %d: %s rank %d with tag %" PRIu64 ": canceled",
                           self->base.rank, verb, op->priv.peer, op->priv.tag);
        break;
    default:
        (void)xm_error_set(op->priv.status, "%s (%s rank %d with tag %" PRIu64 ")", self->sentence,
                           verb, op->priv.peer, op->priv.tag);
    }
}

/* Calls `done` of all that has ended, also of what ends in those calls. The kind is read before
 * it is cleared, for the counters. */
int xm_verbs_deliver(xm_verbs_transport_t *self)
{
    int count = 0;

    while (!xm_list_is_empty(&self->ended)) {
        xm_op_t *op = xm_op_of(self->ended.next);
        xm_direction_t direction = op->priv.kind == XM_VERBS_SEND ? XM_SENT : XM_RECEIVED;

        xm_list_remove(&op->priv.link);
        if (op->priv.status < 0) {
            explain(self, op);
        }
        op->priv.kind = XM_VERBS_IDLE;
        xm_transport_end(&self->base, op, direction, op->priv.status);
        ++count;
    }
    return count;
}
