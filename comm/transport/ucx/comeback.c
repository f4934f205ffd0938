/* SPDX-License-Identifier: Apache-2.0 */
/* How a rail that was given up comes back. It is tried with a PING that stays on it, over the
 * endpoint that it had or, where that has failed, over a new one; the PONG over the same rail
 * shows that both ways work. Late frames of its earlier life do no harm: a message's bytes are
 * taken once, and a life that is behind is no news. The time until the first try doubles with
 * every loss, so a rail that comes and goes stops its transfers a few times and then hardly ever.
 */
#include "comm/transport/ucx/multirail.h"

/* In rail timeouts: until the first try; the longest time between two; and how long a rail must
 * have been well for its losses to be forgotten. */
enum { FIRST_WAIT = 2, LONGEST_WAIT = 64, WELL = 32 };

static void wait_longer(const xm_ucx_transport_t *self, xm_ucx_health_t *health)
{
    int64_t longest = LONGEST_WAIT * self->rail_timeout;

    health->retry_at = self->clock + health->wait;
    health->wait = 2 * health->wait < longest ? 2 * health->wait : longest;
}

/* The clock is that of the progress call in which the loss was found. */
void xm_ucx_comeback_plan(xm_ucx_multirail_t *multirail, int lane)
{
    const xm_ucx_transport_t *self = multirail->peer->owner;
    xm_ucx_health_t *health = &multirail->lanes[lane];

    if (health->wait == 0 || self->clock - health->back_at > WELL * self->rail_timeout) {
        health->wait = FIRST_WAIT * self->rail_timeout;
    }
    wait_longer(self, health);
}

/* True when it is this rank's turn to try the lane. Nothing can pass while its own NIC is down, or
 * while UCX still has the PING before; and a rank that has lost the lane only because its peer
 * said so leaves it to the peer, which knows better, to make a new connection. */
static bool is_due(const xm_ucx_multirail_t *multirail, int lane)
{
    const xm_ucx_transport_t *self = multirail->peer->owner;
    const xm_ucx_health_t *health = &multirail->lanes[lane];

    return (multirail->life[lane] & 1) != 0 && multirail->peer->connected && !self->closing &&
           self->clock >= health->retry_at && (self->watch.down >> lane & 1) == 0 &&
           health->given == 0 && (multirail->peer->lanes[lane].ep != NULL || !health->learnt);
}

void xm_ucx_comeback_try(xm_ucx_multirail_t *multirail)
{
    xm_ucx_frame_t frame = {.kind = XM_UCX_FRAME_PING};

    for (int lane = 0; lane < multirail->peer->stripe.rails; ++lane) {
        if (is_due(multirail, lane)) {
            wait_longer(multirail->peer->owner, &multirail->lanes[lane]);
            xm_ucx_multirail_answer(multirail, lane, &frame);
        }
    }
}

/* Uses the lane again, as much as the others from now on and not until it has caught up with
 * them. */
void xm_ucx_comeback_take(xm_ucx_multirail_t *multirail, int lane)
{
    xm_ucx_peer_t *peer = multirail->peer;
    xm_ucx_transport_t *self = peer->owner;
    xm_ucx_health_t *health = &multirail->lanes[lane];
    uint64_t load = UINT64_MAX;

    for (int other = 0; other < peer->stripe.rails; ++other) {
        if (xm_ucx_multirail_uses(multirail, other) && multirail->lanes[other].load < load) {
            load = multirail->lanes[other].load;
        }
    }
    ++multirail->life[lane];
    health->load = load < UINT64_MAX ? load : health->load;
    health->error = UCS_OK;
    health->learnt = false;
    health->asked_at = health->alone_at = 0;
    health->heard_at = health->moved_at = health->back_at = self->clock;
    xm_ucx_rail_of(peer, lane)->lost = false;
    /* The next progress makes the endpoint, if it is missing. */
    peer->connected = peer->connected && peer->lanes[lane].ep != NULL;
    xm_log_info("rank %d: NIC %s towards rank %d is back", self->base.rank,
                self->nics.nic[lane].device, peer->rank);
    xm_ucx_multirail_set_due(multirail);
}

/* The peer tries the lane, or answers. Only a frame of the life that this rank knows counts: any
 * other one is late, or the peer does not know yet that the lane was given up. A lane whose
 * endpoint has just failed is not taken. */
void xm_ucx_comeback_heard(xm_ucx_multirail_t *multirail, int lane, const xm_ucx_frame_t *frame)
{
    xm_ucx_frame_t answer = {.kind = XM_UCX_FRAME_PONG};
    bool ours;

    xm_ucx_failover_learn(multirail, frame->life);
    ours = (multirail->life[lane] & 1) != 0 && frame->life[lane] == multirail->life[lane] &&
           (multirail->retired >> lane & 1) == 0;
    if (ours && frame->kind == XM_UCX_FRAME_PING) {
        xm_ucx_multirail_answer(multirail, lane, &answer);
    } else if (ours && frame->kind == XM_UCX_FRAME_PONG) {
        xm_ucx_comeback_take(multirail, lane);
        xm_ucx_failover_ping(multirail);
    }
}
