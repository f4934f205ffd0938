/* The verbs transport: closing the connections with failed peers, and with all of them at the end.
 */
#include <sched.h>
#include <stdlib.h>

#include "comm/transport/verbs/transport_verbs_private.h"

/* How long closed queue pairs get to give back what was posted. They do so at once, or never. */
static const int64_t drain_ns = 500000000;

/* How long destroy waits for what was sent to be acknowledged. */
static const int64_t settle_ns = 1000000000;

/* Makes the queue pairs of lanes useless, waits until they have let go of everything, and destroys
 * them. */
static void close_lanes(xm_verbs_transport_t *self, xm_verbs_peer_t *first, int count)
{
    int64_t deadline = xm_transport_now(&self->base) + drain_ns;
    struct ibv_qp_attr broken = {.qp_state = IBV_QPS_ERR};
    bool idle;

    for (int i = 0; i < count * XM_NICS_MAX; ++i) {
        xm_verbs_lane_t *lane = &first[i / XM_NICS_MAX].lanes[i % XM_NICS_MAX];

        if (lane->qp != NULL) {
            (void)ibv_modify_qp(lane->qp, &broken, IBV_QP_STATE);
        }
    }
    do {
        idle = true;
        if (xm_verbs_poll(self) == 0) {
            (void)sched_yield();
        }
        for (int i = 0; i < count * XM_NICS_MAX; ++i) {
            const xm_verbs_lane_t *lane = &first[i / XM_NICS_MAX].lanes[i % XM_NICS_MAX];

            idle = idle && (lane->qp == NULL || lane->posted == 0);
        }
    } while (!idle && xm_transport_now(&self->base) < deadline);
    for (int i = 0; i < count * XM_NICS_MAX; ++i) {
        xm_verbs_lane_t *lane = &first[i / XM_NICS_MAX].lanes[i % XM_NICS_MAX];

        xm_verbs_lane_drop_wrs(lane);
        if (lane->qp != NULL) {
            (void)ibv_destroy_qp(lane->qp);
        }
        lane->qp = NULL;
    }
}

static void close_peer(xm_verbs_peer_t *peer)
{
    xm_verbs_transport_t *self = peer->owner;
    xm_list_t *lists[] = {&peer->receives, &peer->busy};

    peer->closed = true;
    --self->failures;
    close_lanes(self, peer, 1);
    for (int i = 0; i < 2; ++i) {
        while (!xm_list_is_empty(lists[i])) {
            xm_verbs_end_op(xm_op_of(lists[i]->next), XM_ERR_PEER_DIED);
        }
    }
    xm_verbs_forget_stored(peer);
}

void xm_verbs_close_failed(xm_verbs_transport_t *self)
{
    /* Closing one looks at completions, which may show that another has failed. */
    while (self->failures > 0) {
        for (int rank = 0; rank < self->base.size; ++rank) {
            if (self->peers[rank].failed && !self->peers[rank].closed) {
                close_peer(&self->peers[rank]);
            }
        }
    }
}

void xm_verbs_peer_failed(xm_transport_t *transport, int rank)
{
    xm_verbs_transport_t *self = (xm_verbs_transport_t *)transport;

    if (rank >= 0 && rank < self->base.size && rank != self->base.rank) {
        xm_verbs_peer_t *peer = &self->peers[rank];

        if (!peer->failed) {
            peer->failed = true;
            ++self->failures;
            peer->reason[0] = '\0';
        }
        xm_verbs_close_failed(self);
    }
}

static bool all_sent(const xm_verbs_transport_t *self)
{
    for (int i = 0; i < self->base.size * XM_NICS_MAX; ++i) {
        const xm_verbs_lane_t *lane = &self->peers[i / XM_NICS_MAX].lanes[i % XM_NICS_MAX];

        if (lane->qp != NULL && !lane->peer->failed && lane->unsent > 0) {
            return false;
        }
    }
    return true;
}

static void end_list(const xm_list_t *list)
{
    while (!xm_list_is_empty(list)) {
        xm_verbs_end_op(xm_op_of(list->next), XM_ERR_CANCELED);
    }
}

void xm_verbs_sever(xm_verbs_transport_t *self)
{
    /* From here on nothing that comes is looked at. */
    for (int rank = 0; rank < self->base.size; ++rank) {
        self->peers[rank].failed = self->peers[rank].closed = true;
    }
    self->failures = 0;
    close_lanes(self, self->peers, self->base.size);
    for (int rank = 0; rank < self->base.size; ++rank) {
        end_list(&self->peers[rank].receives);
        end_list(&self->peers[rank].busy);
        xm_verbs_forget_stored(&self->peers[rank]);
    }
}

void xm_verbs_destroy(xm_transport_t *transport)
{
    xm_verbs_transport_t *self = (xm_verbs_transport_t *)transport;
    int64_t deadline = xm_transport_now(transport) + settle_ns;

    self->closing = true;
    while (!self->fenced && !all_sent(self) && xm_transport_now(transport) < deadline) {
        (void)transport->ops->progress(transport);
    }
    xm_verbs_sever(self);
    (void)xm_verbs_deliver(self);
    xm_verbs_memory_forget(self);
    for (int i = 0; i < self->port_count; ++i) {
        xm_verbs_strip_port(&self->ports[i]);
    }
    xm_verbs_events_close(self);
    xm_verbs_ports_close(self->ports, self->port_count);
    xm_verbs_free_pools(self);
    free(self->peers);
    free(self);
}
