/* SPDX-License-Identifier: Apache-2.0 */
/* How a rail that was given up comes back. It is tried with a PING that stays on it, over the
 * connection that it had or, where that is closed, over a new one; the PONG over the same rail
 * shows that both ways work. Late frames of its earlier life do no harm: a message's bytes are
 * taken once, and a life that is behind is no news. The time until the first try doubles with
 * every loss, so a rail that comes and goes stops its transfers a few times and then hardly ever.
 */
#include "comm/transport/rails/rails.h"

/* In rail timeouts: until the first try; the longest time between two; and how long a rail must
 * have been well for its losses to be forgotten. */
enum { FIRST_WAIT = 2, LONGEST_WAIT = 64, WELL = 32 };

static void wait_longer(const xm_rails_transport_t *self, xm_rails_health_t *health)
{
    int64_t longest = LONGEST_WAIT * self->rail_timeout;

    health->retry_at = self->clock + health->wait;
    health->wait = 2 * health->wait < longest ? 2 * health->wait : longest;
}

/* The clock is that of the progress call in which the loss was found. */
void xm_rails_comeback_plan(xm_rails_t *rails, int lane)
{
    const xm_rails_transport_t *self = rails->peer->owner;
    xm_rails_health_t *health = &rails->lanes[lane];

    if (health->wait == 0 || self->clock - health->back_at > WELL * self->rail_timeout) {
        health->wait = FIRST_WAIT * self->rail_timeout;
    }
    wait_longer(self, health);
}

/* True when a lane may be tried again. Nothing is tried while the PING before is still on its way.
 */
static bool is_due(const xm_rails_t *rails, int lane)
{
    const xm_rails_transport_t *self = rails->peer->owner;
    const xm_rails_health_t *health = &rails->lanes[lane];

    return (rails->life[lane] & 1) != 0 && rails->peer->connected && !self->closing &&
           (rails->retired >> lane & 1) == 0 && self->clock >= health->retry_at &&
           health->given == 0;
}

void xm_rails_comeback_try(xm_rails_t *rails)
{
    const xm_rails_lanes_t *lanes = rails->peer->owner->lanes;
    xm_rails_frame_t frame = {.kind = XM_RAILS_FRAME_PING};

    for (int lane = 0; lane < rails->peer->stripe.rails; ++lane) {
        if (!is_due(rails, lane) || !lanes->attempt(rails->peer, lane)) {
            continue;
        }
        wait_longer(rails->peer->owner, &rails->lanes[lane]);
        if (lanes->ready(rails->peer, lane)) {
            (void)xm_rails_answer(rails, lane, &frame);
        }
    }
}

/* Uses the lane again, as much as the others from now on and not until it has caught up with
 * them. */
void xm_rails_comeback_take(xm_rails_t *rails, int lane)
{
    xm_rails_peer_t *peer = rails->peer;
    xm_rails_transport_t *self = peer->owner;
    xm_rails_health_t *health = &rails->lanes[lane];
    uint64_t load = UINT64_MAX;

    for (int other = 0; other < peer->stripe.rails; ++other) {
        if (xm_rails_uses(rails, other) && rails->lanes[other].load < load) {
            load = rails->lanes[other].load;
        }
    }
    ++rails->life[lane];
    health->load = load < UINT64_MAX ? load : health->load;
    health->broken = health->learnt = false;
    health->asked_at = health->alone_at = 0;
    health->heard_at = health->moved_at = health->back_at = self->clock;
    xm_rails_nic(rails, lane)->lost = false;
    /* The next progress joins the lane, if it is not. */
    peer->connected = peer->connected && health->joined;
    xm_log_info("rank %d: NIC %s towards rank %d is back", self->base.rank,
                xm_rails_nic(rails, lane)->name, peer->rank);
    xm_rails_set_due(rails);
}

/* The peer tries the lane, or answers. Only a frame of the life that this rank knows counts: any
 * other one is late, or the peer does not know yet that the lane was given up. A lane whose
 * connection has just failed is not taken. */
void xm_rails_comeback_heard(xm_rails_t *rails, int lane, const xm_rails_frame_t *frame)
{
    xm_rails_frame_t answer = {.kind = XM_RAILS_FRAME_PONG};
    bool ours;

    xm_rails_failover_learn(rails, frame->life);
    ours = (rails->life[lane] & 1) != 0 && frame->life[lane] == rails->life[lane] &&
           (rails->retired >> lane & 1) == 0;
    if (ours && frame->kind == XM_RAILS_FRAME_PING) {
        (void)xm_rails_answer(rails, lane, &answer);
    } else if (ours && frame->kind == XM_RAILS_FRAME_PONG) {
        xm_rails_comeback_take(rails, lane);
        xm_rails_failover_ping(rails);
    }
}
