/* SPDX-License-Identifier: Apache-2.0 */
/* Failover of the multi-rail channel: finding rails that are lost, and going on without them.
 * The problem is to tell a dead rail from a dead peer, a slow peer and a rank that did not
 * look: each of them is silent. A rail is blamed only if the peer answers on another one
 * meanwhile, time in which this rank itself did not look is not counted, and a NIC's link state
 * or UCX's errors shorten the wait. The decision needs no agreement: each frame carries the
 * bits of the rails its sender has given up. */
#include <inttypes.h>
#include <stdio.h>

#include "comm/base.h"
#include "comm/transport/ucx/multirail.h"

/* Parts of the timeout: until a quiet lane is asked, or a NIC that is down is believed to stay so;
 * and how late a look may come before what it sees is no evidence. */
enum { QUIET = 4, LATE = 4 };

/* How long the errors of all lanes of a peer may take to come when it has died. */
static const int64_t together_ns = 20000000;

static const char *nic_of(const xm_ucx_multirail_t *multirail, int lane)
{
    return multirail->peer->owner->nics.nic[lane].device;
}

/* How many rails the channel still uses; at 0 the peer is lost. */
static int lanes_alive(const xm_ucx_multirail_t *multirail)
{
    int count = 0;

    for (int lane = 0; lane < multirail->peer->stripe.rails; ++lane) {
        count += xm_ucx_multirail_uses(multirail, lane);
    }
    return count;
}

/* All rails are asked, not only the quiet one, because the answer on another rail is what shows
 * that the peer lives. */
void xm_ucx_failover_ping(xm_ucx_multirail_t *multirail)
{
    xm_ucx_frame_t frame = {.kind = XM_UCX_FRAME_PING};

    for (int lane = 0; lane < multirail->peer->stripe.rails; ++lane) {
        if (xm_ucx_multirail_uses(multirail, lane) && multirail->lanes[lane].asked_at == 0) {
            multirail->lanes[lane].asked_at = multirail->peer->owner->clock;
            xm_ucx_multirail_answer(multirail, lane, &frame);
        }
    }
}

/* A NIC that is lost leads to many peers, and is lost once. */
static void count_failover(xm_ucx_rail_t *rail)
{
    if (!rail->lost) {
        rail->lost = true;
        xm_count_failover(rail->counters);
    }
}

/* What UCX has of a rail goes out late or never, so it does not count any more. */
static void disown(xm_ucx_health_t *health)
{
    for (xm_list_t *at = xm_list_first(&health->posted); at != NULL;
         at = xm_list_next(&health->posted, at)) {
        xm_list_entry(at, xm_ucx_packet_t, link)->stale = true;
    }
    health->given = 0;
}

/* Stops using a rail; `reason` goes into the warning, and `status` is what the peer fails with if
 * this was the last rail. What went over the rail is queued again for the others, and the peer is
 * told by a PING over each of them. An endpoint that has failed is only marked: this may run
 * inside a callback of UCX, where endpoints cannot be closed. One that has not stays, because the
 * rail may come back with it. */
static void give_up(xm_ucx_multirail_t *multirail, int lane, const char *reason,
                    ucs_status_t status)
{
    xm_ucx_health_t *health = &multirail->lanes[lane];

    ++multirail->life[lane];
    multirail->retired |= health->error != UCS_OK ? 1u << lane : 0;
    multirail->peer->owner->broken = true;
    disown(health);
    xm_ucx_comeback_plan(multirail, lane);
    if (lanes_alive(multirail) == 0) {
        xm_ucx_report(multirail->peer, status);
        return;
    }
    if (!multirail->peer->connected && multirail->next_number == 0 && multirail->slot_count == 0) {
        return; /* a peer that this rank has nothing to do with: the first frame will tell it */
    }
    (void)snprintf(health->reason, sizeof(health->reason), "%s", reason);
    health->moved = xm_ucx_tx_queue_resend(multirail, lane);
    count_failover(xm_ucx_rail_of(multirail->peer, lane));
    multirail->unsaid |= 1u << lane;
    /* The peer has to know, and to show that it lives. */
    for (int other = 0; other < multirail->peer->stripe.rails; ++other) {
        multirail->lanes[other].asked_at = 0;
    }
    xm_ucx_failover_ping(multirail);
    xm_ucx_failover_arm(multirail->peer->owner);
}

/* Warns of lost rails. It is called when the peer has been heard since, so the peer is not dead
 * itself: a death would otherwise begin with a misleading warning about each NIC. */
static void say(xm_ucx_multirail_t *multirail)
{
    const xm_ucx_peer_t *peer = multirail->peer;
    char left[XM_NICS_MAX * (XM_NICS_NAME_SIZE + 2)] = "";
    size_t used = 0;

    for (int lane = 0; lane < peer->stripe.rails; ++lane) {
        if (xm_ucx_multirail_uses(multirail, lane) && used < sizeof(left)) {
            used += (size_t)snprintf(left + used, sizeof(left) - used, "%s%s", used > 0 ? ", " : "",
                                     nic_of(multirail, lane));
        }
    }
    for (int lane = 0; lane < peer->stripe.rails; ++lane) {
        if ((multirail->unsaid >> lane & 1) != 0) {
            xm_log_warn("rank %d: NIC %s towards rank %d is lost (%s): %" PRIu64
                        " fragments of messages were moved to %s, which carries on alone",
                        peer->owner->base.rank, nic_of(multirail, lane), peer->rank,
                        multirail->lanes[lane].reason, multirail->lanes[lane].moved, left);
        }
    }
    multirail->unsaid = 0;
}

/* What the peer has given up is useless here as well: it drops what comes that way. Lives are
 * compared modulo 256, because frames overtake each other on different rails: news of the past is
 * none. */
void xm_ucx_failover_learn(xm_ucx_multirail_t *multirail, const uint8_t *life)
{
    int rails = multirail->peer->stripe.rails;

    /* First what is back: the last rail may go with the same frame. */
    for (int i = 0; i < 2 * rails; ++i) {
        int lane = i % rails;
        bool dead = i >= rails;
        uint8_t ahead = (uint8_t)(life[lane] - multirail->life[lane]);

        if (life[lane] % 2 != dead || ahead == 0 || ahead > INT8_MAX ||
            !xm_stripe_uses(&multirail->peer->stripe, lane)) {
            continue;
        }
        if (xm_ucx_multirail_uses(multirail, lane)) {
            char reason[64];

            (void)snprintf(reason, sizeof(reason), "rank %d says so", multirail->peer->rank);
            multirail->lanes[lane].learnt = true;
            give_up(multirail, lane, reason, UCS_ERR_CONNECTION_RESET);
        }
        multirail->life[lane] = (uint8_t)(life[lane] - !dead);
        if (!dead) {
            xm_ucx_comeback_take(multirail, lane);
        }
    }
}

/* A frame came. This rail is in order; for every other rail whose PING is unanswered the clock
 * of its silence begins now, because only from now on is it known that the peer lives and
 * answers. */
void xm_ucx_failover_heard(xm_ucx_multirail_t *multirail, int lane, const uint8_t *life)
{
    int64_t now = multirail->peer->owner->clock;

    multirail->lanes[lane].heard_at = multirail->lanes[lane].moved_at = now;
    multirail->lanes[lane].asked_at = multirail->lanes[lane].alone_at = 0;
    for (int other = 0; other < multirail->peer->stripe.rails; ++other) {
        xm_ucx_health_t *health = &multirail->lanes[other];

        if (health->asked_at != 0 && health->alone_at == 0) {
            health->alone_at = now;
        }
    }
    /* Learning comes before the warning, so that one warning names all losses. */
    xm_ucx_failover_learn(multirail, life);
    if (multirail->unsaid != 0 && xm_ucx_multirail_uses(multirail, lane)) {
        say(multirail);
    }
}

/* Endpoints of lanes that were given up. This cannot be done inside UCX's callbacks. */
static void retire(xm_ucx_multirail_t *multirail)
{
    for (int lane = 0; lane < multirail->peer->stripe.rails; ++lane) {
        if ((multirail->retired >> lane & 1) != 0) {
            xm_ucx_retire_lane(multirail->peer, lane);
            disown(&multirail->lanes[lane]);
        }
    }
    multirail->retired = 0;
}

/* Gives up rails with errors, once it is clear that not all have one. If all fail within 20 ms
 * the peer has died, and give_up() of the last rail reports that instead of warnings. */
static void act_on_errors_of(xm_ucx_multirail_t *multirail)
{
    const xm_ucx_transport_t *self = multirail->peer->owner;
    int well = 0;

    for (int lane = 0; lane < multirail->peer->stripe.rails; ++lane) {
        well += xm_ucx_multirail_uses(multirail, lane) && multirail->lanes[lane].error == UCS_OK;
    }
    if (well > 0 && self->clock - multirail->broken_at < together_ns) {
        multirail->peer->owner->broken = true; /* soon again */
        return;
    }
    multirail->broken_at = 0;
    for (int lane = 0; lane < multirail->peer->stripe.rails; ++lane) {
        ucs_status_t error = multirail->lanes[lane].error;

        if (error != UCS_OK && xm_ucx_multirail_uses(multirail, lane)) {
            give_up(multirail, lane, ucs_status_string(error), error);
        }
    }
    /* Posting was held back while the errors were undecided; now the queue may move again. */
    xm_ucx_multirail_set_due(multirail);
}

/* Acts on what callbacks have noted. The flag is cleared first: a channel that has to wait sets
 * it again, and arming then refuses to sleep until it is decided. */
static void act_on_errors(xm_ucx_transport_t *self)
{
    self->broken = false;
    for (int rank = 0; rank < self->base.size; ++rank) {
        xm_ucx_multirail_t *multirail = self->peers[rank].multirail;

        if (multirail != NULL && multirail->broken_at != 0 && !self->peers[rank].failed) {
            act_on_errors_of(multirail);
        }
        if (multirail != NULL && multirail->retired != 0) {
            retire(multirail);
        }
    }
}

/* Moves a time forward by so much, but not past now. */
static int64_t later_of(int64_t time, int64_t by, int64_t now)
{
    return time + by < now ? time + by : now;
}

/* Asks quiet rails, and gives up those that stay silent although the peer answers on others.
 * For `late` nanoseconds before this call nobody was there to hear anything, so the begin of
 * each silence is moved forward by that much. */
static void look_at(xm_ucx_multirail_t *multirail, int64_t late)
{
    xm_ucx_transport_t *self = multirail->peer->owner;
    bool quiet = false;

    for (int lane = 0; lane < multirail->peer->stripe.rails; ++lane) {
        xm_ucx_health_t *health = &multirail->lanes[lane];

        if (health->alone_at != 0) {
            health->alone_at = later_of(health->alone_at, late, self->clock);
        }
        quiet = quiet || (xm_ucx_multirail_uses(multirail, lane) && health->asked_at == 0 &&
                          self->clock - health->moved_at >= self->rail_timeout / QUIET);
    }
    for (int lane = 0; lane < multirail->peer->stripe.rails; ++lane) {
        const xm_ucx_health_t *health = &multirail->lanes[lane];
        bool heard = false;

        for (int other = 0; other < multirail->peer->stripe.rails; ++other) {
            heard =
                heard || (other != lane && xm_ucx_multirail_uses(multirail, other) &&
                          self->clock - multirail->lanes[other].heard_at < self->rail_timeout / 2);
        }
        if (xm_ucx_multirail_uses(multirail, lane) && health->alone_at != 0 && heard &&
            self->clock - health->alone_at >= self->rail_timeout) {
            char reason[64];

            (void)snprintf(reason, sizeof(reason), "silent for %.1f s, while others are not",
                           (double)(self->clock - health->asked_at) * 1e-9);
            give_up(multirail, lane, reason, UCS_ERR_TIMED_OUT);
        }
    }
    if (quiet) {
        xm_ucx_failover_ping(multirail);
    }
}

/* Acts on links that are down, and returns true while one is down but still in use. A link must
 * stay down for a quarter of the timeout before its rail is given up: links flap, and a rail that
 * was given up is not taken back soon. */
static bool look_at_nics(xm_ucx_transport_t *self)
{
    bool doubted = false;

    (void)xm_nic_watch_read(&self->watch, &self->nics);
    for (int nic = 0; nic < self->nics.count; ++nic) {
        bool down = (self->watch.down >> nic & 1) != 0;

        self->down_at[nic] = !down ? 0 : self->down_at[nic] != 0 ? self->down_at[nic] : self->clock;
        for (int rank = 0; rank < self->base.size && down; ++rank) {
            xm_ucx_multirail_t *multirail = self->peers[rank].multirail;

            if (multirail == NULL || !xm_ucx_multirail_uses(multirail, nic) ||
                self->peers[rank].failed) {
                continue;
            }
            if (self->clock - self->down_at[nic] < self->rail_timeout / QUIET) {
                doubted = true;
            } else if (lanes_alive(multirail) > 1) {
                give_up(multirail, nic, "its link is down", UCS_ERR_UNREACHABLE);
            }
        }
    }
    return doubted;
}

/* The periodic check, called from each progress. It costs two comparisons unless something
 * broke or a tick has passed. When no message is unfinished and no link is in doubt, the timer
 * is stopped, so that an idle rank sleeps without interruption. */
void xm_ucx_failover_look(xm_ucx_transport_t *self)
{
    int64_t tick = self->rail_timeout / XM_UCX_MULTIRAIL_LOOKS,
            late = self->clock - self->next_look;
    bool busy;

    if (self->broken) {
        act_on_errors(self);
    }
    if (self->clock < self->next_look) {
        return;
    }
    /* A check that comes late is normal for a rank that computes; it just must not count the
     * gap as silence. */
    late = self->armed && late > self->rail_timeout / LATE ? late : 0;
    self->next_look = self->clock + tick;
    busy = look_at_nics(self);
    for (int rank = 0; rank < self->base.size; ++rank) {
        xm_ucx_multirail_t *multirail = self->peers[rank].multirail;

        if (multirail == NULL || self->peers[rank].failed || self->peers[rank].reported) {
            continue;
        }
        xm_ucx_comeback_try(multirail);
        if (!xm_list_is_empty(&multirail->unfinished)) {
            look_at(multirail, late);
            busy = true;
        }
    }
    if (!busy && self->armed) {
        xm_ucx_failover_unwind(self);
    }
}
