/* The verbs transport: how operations end. */
#include <inttypes.h>

#include "comm/transport/verbs/transport_verbs_private.h"

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

/* The sentence that goes with the failure of an operation. */
static void explain(xm_verbs_transport_t *self, const xm_op_t *op)
{
    const char *verb = op->priv.kind == XM_VERBS_SEND ? "send to" : "receive from";

    switch (op->priv.status) {
    case XM_ERR_CORRUPT:
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
