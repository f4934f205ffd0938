/* The verbs transport: the failure of a peer, and the closing of connections. */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>

#include "comm/transport_verbs_private.h"

/* How long closed queue pairs get to give back what was posted. They do so at once, or never. */
static const int64_t drain_ns = 500000000;

void xm_verbs_fail(xm_verbs_peer_t *peer, const char *format, ...)
{
    va_list args;

    if (peer->failed) {
        return;
    }
    peer->failed = true;
    ++peer->owner->failures;
    va_start(args, format);
    (void)vsnprintf(peer->reason, sizeof(peer->reason), format, args);
    va_end(args);
}

xm_status_t xm_verbs_peer_error(const xm_verbs_peer_t *peer)
{
    if (peer->reason[0] == '\0') {
        return xm_error_set(XM_ERR_PEER_DIED, "rank %d died", peer->rank);
    }
    return xm_error_set(XM_ERR_PEER_DIED, "rank %d is gone: %s", peer->rank, peer->reason);
}

void xm_verbs_close_lanes(xm_verbs_transport_t *self, xm_verbs_peer_t *first, int count)
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

        xm_verbs_lane_drop_items(lane);
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
    xm_verbs_close_lanes(self, peer, 1);
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
