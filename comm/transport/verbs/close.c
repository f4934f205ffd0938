/* SPDX-License-Identifier: Apache-2.0 */
/* Closing lanes that were given up, those of failed peers, and all of them at the end. The order is
 * what keeps user memory safe: a queue pair is put into the error state, then the device gives back
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

/* The lanes of a number of peers, one after the other. */
static xm_verbs_lane_t *lane_at(xm_verbs_peer_t *first, int i)
{
    return &first[i / XM_NICS_MAX].lanes[i % XM_NICS_MAX];
}

/* Puts the queue pairs of lanes that are marked into the error state, polls until they have given
 * back everything, and destroys them. All are treated together, so that a whole fence takes one
 * such wait. What comes meanwhile by others is handled as usual. */
static void close_marked(xm_verbs_transport_t *self, xm_verbs_peer_t *first, int count)
{
    int64_t deadline = xm_transport_now(&self->base.base) + drain_ns;
    struct ibv_qp_attr broken = {.qp_state = IBV_QPS_ERR};
    bool idle;

    for (int i = 0; i < count * XM_NICS_MAX; ++i) {
        if (lane_at(first, i)->closing) {
            (void)ibv_modify_qp(lane_at(first, i)->qp, &broken, IBV_QP_STATE);
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
            idle = idle && (!lane_at(first, i)->closing || lane_at(first, i)->posted == 0);
        }
    } while (!idle && xm_transport_now(&self->base.base) < deadline);
    for (int i = 0; i < count * XM_NICS_MAX; ++i) {
        xm_verbs_lane_t *lane = lane_at(first, i);

        if (lane->closing) {
            (void)ibv_destroy_qp(lane->qp);
            lane->qp = NULL;
            lane->closing = false;
            xm_verbs_lane_drop(lane);
        }
    }
}

void xm_verbs_retire(xm_rails_peer_t *peer, int rail)
{
    xm_verbs_peer_t *whose = (xm_verbs_peer_t *)peer;

    whose->lanes[rail].closing = whose->lanes[rail].qp != NULL;
    close_marked(xm_verbs_owner(whose), whose, 1);
    peer->rails->lanes[rail].joined = false;
}

/* Nothing comes from these peers any more, and their lanes are marked. */
static void fail(xm_verbs_peer_t *first, int count)
{
    for (int i = 0; i < count * XM_NICS_MAX; ++i) {
        first[i / XM_NICS_MAX].base.failed = true;
        lane_at(first, i)->closing = lane_at(first, i)->qp != NULL;
    }
}

static void fail_peer(xm_verbs_peer_t *peer)
{
    fail(peer, 1);
    close_marked(xm_verbs_owner(peer), peer, 1);
    xm_rails_abandon(&peer->base, XM_ERR_PEER_DIED);
}

/* Closing one peer polls for completions, which may show that another one is lost; hence the loop.
 */
void xm_verbs_act_on_reports(xm_verbs_transport_t *self)
{
    while (self->base.reports > 0) {
        self->base.reports = 0;
        for (int rank = 0; rank < self->base.base.size; ++rank) {
            xm_verbs_peer_t *peer = &self->peers[rank];

            if (peer->base.reported && !peer->base.failed) {
                fail_peer(peer);
            }
        }
    }
}

/* The fault channel says that a rank died. */
void xm_verbs_peer_failed(xm_transport_t *transport, int rank)
{
    xm_verbs_transport_t *self = (xm_verbs_transport_t *)transport;

    if (rank >= 0 && rank < transport->size && rank != transport->rank &&
        !self->peers[rank].base.failed) {
        fail_peer(&self->peers[rank]);
    }
}

/* Closes everything at once: for a fence, and as the first step of destroy. Afterwards no queue
 * pair exists, so no peer can write here any more, and all operations have ended. */
void xm_verbs_sever(xm_verbs_transport_t *self)
{
    fail(self->peers, self->base.base.size);
    close_marked(self, self->peers, self->base.base.size);
    for (int rank = 0; rank < self->base.base.size; ++rank) {
        if (self->peers[rank].base.rails != NULL) {
            xm_rails_abandon(&self->peers[rank].base, XM_ERR_CANCELED);
        }
    }
}

/* Destroys the transport in the reverse order of its making: connections, then memory, then
 * ports, since a protection domain cannot be freed while regions or queue pairs use it. Destroy
 * also serves failures half way through creation, so each part may be missing. */
void xm_verbs_destroy(xm_transport_t *transport)
{
    xm_verbs_transport_t *self = (xm_verbs_transport_t *)transport;

    self->base.closing = true;
    xm_rails_part(&self->base, xm_transport_now(transport) + settle_ns);
    xm_verbs_sever(self);
    (void)xm_rails_deliver(&self->base);
    xm_verbs_memory_forget(self);
    for (int i = 0; i < self->port_count; ++i) {
        xm_verbs_strip_port(&self->ports[i]);
    }
    xm_verbs_events_close(self);
    xm_verbs_ports_close(self->ports, self->port_count);
    xm_blocks_clear(&self->base.blocks);
    free(self->offers);
    free((void *)self->base.peers);
    free(self->peers);
    free(self);
}
