/* SPDX-License-Identifier: Apache-2.0 */
/* Closing lanes that are lost, those of failed peers, and all of them at the end. The order is what
 * keeps user memory safe: a queue pair is put into the error state, then the device gives back
 * every request, then the queue pair is destroyed, and only then do the operations end and the
 * buffers go back to the caller. Nothing here waits for the peer, so a dead one cannot hold
 * this rank up; each wait has a bound. */
#include <sched.h>
#include <stdlib.h>

#include "comm/transport/verbs/transport_verbs_private.h"

/* How long closed queue pairs get to give back what was posted. They do so at once, or never;
 * destroying them is safe in both cases. */
static const int64_t drain_ns = 500000000;

/* How long destroy waits for what was sent to be acknowledged by the peers' devices. Without
 * that a send that has ended could be lost when its sender leaves first. */
static const int64_t settle_ns = 1000000000;

/* Puts the queue pairs of lost lanes and failed peers into the error state, polls until they have
 * given back everything, and destroys them. All lanes are treated together, so that a whole fence
 * takes one such wait. What comes meanwhile by others is handled as usual. */
static void close_lanes(xm_verbs_transport_t *self, xm_verbs_peer_t *first, int count)
{
    int64_t deadline = xm_transport_now(&self->base) + drain_ns;
    struct ibv_qp_attr broken = {.qp_state = IBV_QPS_ERR};
    bool idle;

    for (int i = 0; i < count * XM_NICS_MAX; ++i) {
        xm_verbs_lane_t *lane = &first[i / XM_NICS_MAX].lanes[i % XM_NICS_MAX];

        lane->closing = lane->qp != NULL && !xm_verbs_lane_works(lane) &&
                        !(lane->trying && !lane->peer->failed);
        if (lane->closing) {
            (void)ibv_modify_qp(lane->qp, &broken, IBV_QP_STATE);
        }
    }
    /* The device gives requests back through the completion queue, so polling is what the wait
     * consists of. */
    do {
        idle = true;
        if (xm_verbs_poll(self) == 0) {
            (void)sched_yield();
        }
        for (int i = 0; i < count * XM_NICS_MAX; ++i) {
            const xm_verbs_lane_t *lane = &first[i / XM_NICS_MAX].lanes[i % XM_NICS_MAX];

            idle = idle && (!lane->closing || lane->posted == 0);
        }
    } while (!idle && xm_transport_now(&self->base) < deadline);
    for (int i = 0; i < count * XM_NICS_MAX; ++i) {
        xm_verbs_lane_t *lane = &first[i / XM_NICS_MAX].lanes[i % XM_NICS_MAX];

        /* Work requests that were still queued are forgotten: their operations end elsewhere. */
        if (first[i / XM_NICS_MAX].failed) {
            xm_verbs_lane_drop_wrs(lane);
        }
        if (lane->closing) {
            (void)ibv_destroy_qp(lane->qp);
            lane->qp = NULL;
            lane->closing = lane->trying = false;
            /* What a lane that was only tried carried before, others carry already. */
            if (!lane->moved) {
                xm_verbs_failover_closed(lane);
            }
        }
    }
}

/* Ends a failed peer. `closed` is set first, so that a failure that is found during the poll
 * below does not come back to this peer. */
static void close_peer(xm_verbs_peer_t *peer)
{
    xm_verbs_transport_t *self = peer->owner;
    xm_list_t *lists[] = {&peer->receives, &peer->busy};

    peer->closed = true;
    close_lanes(self, peer, 1);
    for (int i = 0; i < 2; ++i) {
        while (!xm_list_is_empty(lists[i])) {
            xm_verbs_end_op(xm_op_of(lists[i]->next), XM_ERR_PEER_DIED);
        }
    }
    xm_verbs_forget_stored(peer);
}

/* Closes lost lanes and failed peers, one peer after the other, until none is left. */
void xm_verbs_close_failed(xm_verbs_transport_t *self)
{
    /* Closing one polls for completions, which may show that another one is lost; hence the
     * loop. */
    while (self->failures > 0) {
        self->failures = 0;
        for (int rank = 0; rank < self->base.size; ++rank) {
            xm_verbs_peer_t *peer = &self->peers[rank];
            bool lost = false;

            for (int rail = 0; rail < peer->stripe.rails; ++rail) {
                lost = lost || (peer->lanes[rail].lost && peer->lanes[rail].qp != NULL &&
                                !peer->lanes[rail].trying);
            }
            if (peer->failed && !peer->closed) {
                close_peer(peer);
            } else if (lost) {
                close_lanes(self, peer, 1);
            }
        }
    }
}

/* The fault channel says that a rank died. The empty reason makes peer_error() say "died"
 * instead of describing a connection. */
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

/* True when every request that carries something for a peer's caller has been acknowledged.
 * Heartbeats and credits are not counted: nobody waits for them. */
static bool all_sent(const xm_verbs_transport_t *self)
{
    for (int i = 0; i < self->base.size * XM_NICS_MAX; ++i) {
        const xm_verbs_lane_t *lane = &self->peers[i / XM_NICS_MAX].lanes[i % XM_NICS_MAX];

        if (!lane->peer->failed && lane->unsent > 0) {
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

/* Closes everything at once: for a fence, and as the first step of destroy. Afterwards no queue
 * pair exists, so no peer can write here any more, and all operations have ended. */
void xm_verbs_sever(xm_verbs_transport_t *self)
{
    /* From here on, completions only give back resources; what they bring is ignored. */
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

/* Destroys the transport in the reverse order of its making: connections, then memory, then
 * ports, since a protection domain cannot be freed while regions or queue pairs use it. Destroy
 * also serves failures half way through creation, so each part may be missing. */
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
    free(self->offers);
    free(self->peers);
    free(self);
}
