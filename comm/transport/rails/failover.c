/* SPDX-License-Identifier: Apache-2.0 */
/* Failover of the rails: finding rails that are lost, and going on without them.
 * The problem is to tell a dead rail from a dead peer, a slow peer and a rank that did not
 * look: each of them is silent. A rail is blamed only if the peer answers on another one
 * meanwhile, time in which this rank itself did not look is not counted, and a NIC's link state
 * or errors that lanes report shorten the wait. The decision needs no agreement: each frame carries
 * the bits of the rails its sender has given up. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "comm/base.h"
#include "comm/transport/rails/rails.h"

/* Parts of the timeout: until a quiet lane is asked, or a NIC that is down is believed to stay so;
 * and how late a look may come before what it sees is no evidence. */
enum { QUIET = 4, LATE = 4 };

/* How long the errors of all lanes of a peer may take to come when it has died. */
static const int64_t together_ns = 20000000;

/* How many rails are still used; at 0 the peer is lost. */
static int lanes_alive(const xm_rails_t *rails)
{
    int count = 0;

    for (int lane = 0; lane < rails->peer->stripe.rails; ++lane) {
        count += xm_rails_uses(rails, lane);
    }
    return count;
}

/* All rails are asked, not only the quiet one, because the answer on another rail is what shows
 * that the peer lives. */
void xm_rails_failover_ping(xm_rails_t *rails)
{
    xm_rails_frame_t frame = {.kind = XM_RAILS_FRAME_PING};

    for (int lane = 0; lane < rails->peer->stripe.rails; ++lane) {
        if (xm_rails_uses(rails, lane) && rails->lanes[lane].asked_at == 0) {
            rails->lanes[lane].asked_at = rails->peer->owner->clock;
            (void)xm_rails_answer(rails, lane, &frame);
        }
    }
}

/* A NIC that is lost leads to many peers, and is lost once. */
static void count_failover(xm_rails_nic_t *nic)
{
    if (!nic->lost) {
        nic->lost = true;
        xm_count_failover(nic->counters);
    }
}

/* What a lane has of a rail goes out late or never, so it does not count any more. */
static void disown(xm_rails_health_t *health)
{
    for (xm_list_t *at = xm_list_first(&health->posted); at != NULL;
         at = xm_list_next(&health->posted, at)) {
        xm_list_entry(at, xm_rails_packet_t, link)->stale = true;
    }
    health->given = 0;
}

/* Stops using a rail; `reason` goes into the warning, or is why the peer fails if this was the last
 * rail. What went over the rail is queued again for the others, and the peer is told by a PING over
 * each of them. The lane is only marked: this may run inside what it calls back, where it cannot be
 * closed. A lane that copies and has not failed stays, because the rail may come back with it;
 * others are always closed, because their bytes could land late. */
static void give_up(xm_rails_t *rails, int lane, const char *reason)
{
    xm_rails_health_t *health = &rails->lanes[lane];

    ++rails->life[lane];
    rails->retired |= health->broken || rails->way != XM_RAILS_COPY ? 1u << lane : 0;
    rails->peer->owner->broken = true;
    disown(health);
    xm_rails_comeback_plan(rails, lane);
    if (lanes_alive(rails) == 0 || !rails->peer->owner->failover) {
        xm_rails_report(rails->peer, "its connection failed (%s)", reason);
        return;
    }
    if (!rails->peer->connected && rails->next_number == 0 && rails->slot_count == 0) {
        return; /* a peer that this rank has nothing to do with: the first frame will tell it */
    }
    if (reason != health->reason) {
        (void)snprintf(health->reason, sizeof(health->reason), "%s", reason);
    }
    health->moved = xm_rails_tx_resend(rails, lane);
    count_failover(xm_rails_nic(rails, lane));
    rails->unsaid |= 1u << lane;
    /* The peer has to know, and to show that it lives. */
    for (int other = 0; other < rails->peer->stripe.rails; ++other) {
        rails->lanes[other].asked_at = 0;
    }
    xm_rails_failover_ping(rails);
    xm_rails_failover_arm(rails->peer->owner);
}

/* Without rails it is the end of the peer, and so it is where nobody wants failover; otherwise
 * progress first waits to see whether the other lanes fail as well; a lane that was given up before
 * needs a new connection. Errors of lanes that are closing already are expected and ignored. */
void xm_rails_broken(xm_rails_peer_t *peer, int lane, const char *format, ...)
{
    xm_rails_t *rails = peer->rails;
    char reason[XM_RAILS_REASON_SIZE];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    if (rails == NULL || !peer->owner->failover) {
        xm_rails_report(peer, "its connection failed (%s)", reason);
    } else if (xm_rails_is_closed(peer)) {
        return;
    } else if (!xm_rails_uses(rails, lane)) {
        rails->retired |= 1u << lane;
        peer->owner->broken = true;
    } else if (!rails->lanes[lane].broken) {
        rails->lanes[lane].broken = true;
        memcpy(rails->lanes[lane].reason, reason, sizeof(reason));
        if (rails->broken_at == 0) {
            rails->broken_at = xm_transport_now(&peer->owner->base);
        }
        peer->owner->broken = true;
    }
}

/* Warns of lost rails. It is called when the peer has been heard since, so the peer is not dead
 * itself: a death would otherwise begin with a misleading warning about each NIC. */
static void say(xm_rails_t *rails)
{
    const xm_rails_peer_t *peer = rails->peer;
    char left[XM_NICS_MAX * (XM_NICS_NAME_SIZE + 2)] = "";

    for (int lane = 0; lane < peer->stripe.rails; ++lane) {
        if (xm_rails_uses(rails, lane)) {
            xm_text_list_add(left, sizeof(left), ", ", "%s", xm_rails_nic(rails, lane)->name);
        }
    }
    for (int lane = 0; lane < peer->stripe.rails; ++lane) {
        if ((rails->unsaid >> lane & 1) != 0) {
            xm_log_warn("rank %d: NIC %s towards rank %d is lost (%s): %" PRIu64
                        " fragments of messages were moved to %s, which carries on alone",
                        peer->owner->base.rank, xm_rails_nic(rails, lane)->name, peer->rank,
                        rails->lanes[lane].reason, rails->lanes[lane].moved, left);
        }
    }
    rails->unsaid = 0;
}

/* What the peer has given up is useless here as well: it drops what comes that way. Lives are
 * compared modulo 256, because frames overtake each other on different rails: news of the past is
 * none. */
void xm_rails_failover_learn(xm_rails_t *rails, const uint8_t *life)
{
    int count = rails->peer->stripe.rails;

    /* First what is back: the last rail may go with the same frame. */
    for (int i = 0; i < 2 * count; ++i) {
        int lane = i % count;
        bool dead = i >= count;
        uint8_t ahead = (uint8_t)(life[lane] - rails->life[lane]);

        if (life[lane] % 2 != dead || ahead == 0 || ahead > INT8_MAX ||
            !xm_stripe_uses(&rails->peer->stripe, lane)) {
            continue;
        }
        if (xm_rails_uses(rails, lane)) {
            char reason[64];

            (void)snprintf(reason, sizeof(reason), "rank %d says so", rails->peer->rank);
            rails->lanes[lane].learnt = true;
            give_up(rails, lane, reason);
        }
        rails->life[lane] = (uint8_t)(life[lane] - !dead);
        if (!dead) {
            xm_rails_comeback_take(rails, lane);
        }
    }
}

/* A frame came. This rail is in order; for every other rail whose PING is unanswered the clock
 * of its silence begins now, because only from now on is it known that the peer lives and
 * answers. */
void xm_rails_failover_heard(xm_rails_t *rails, int lane, const uint8_t *life)
{
    int64_t now = rails->peer->owner->clock;

    rails->lanes[lane].heard_at = rails->lanes[lane].moved_at = now;
    rails->lanes[lane].asked_at = rails->lanes[lane].alone_at = 0;
    for (int other = 0; other < rails->peer->stripe.rails; ++other) {
        xm_rails_health_t *health = &rails->lanes[other];

        if (health->asked_at != 0 && health->alone_at == 0) {
            health->alone_at = now;
        }
    }
    /* Learning comes before the warning, so that one warning names all losses. */
    xm_rails_failover_learn(rails, life);
    if (rails->unsaid != 0 && xm_rails_uses(rails, lane)) {
        say(rails);
    }
}

/* Closes lanes that were given up. What passes meanwhile may show that another one has failed. */
static void retire(xm_rails_t *rails)
{
    unsigned retired = rails->retired;

    for (int lane = 0; lane < rails->peer->stripe.rails; ++lane) {
        if ((retired >> lane & 1) != 0) {
            rails->peer->owner->lanes->retire(rails->peer, lane);
            disown(&rails->lanes[lane]);
        }
    }
    rails->retired &= ~retired;
    xm_rails_set_due(rails);
}

/* Gives up rails with errors, once it is clear that not all have one. If all fail within 20 ms
 * the peer has died, and give_up() of the last rail reports that instead of warnings. */
static void act_on_errors_of(xm_rails_t *rails)
{
    const xm_rails_transport_t *self = rails->peer->owner;
    int well = 0;

    for (int lane = 0; lane < rails->peer->stripe.rails; ++lane) {
        well += xm_rails_uses(rails, lane) && !rails->lanes[lane].broken;
    }
    if (well > 0 && self->clock - rails->broken_at < together_ns) {
        rails->peer->owner->broken = true; /* soon again */
        return;
    }
    rails->broken_at = 0;
    for (int lane = 0; lane < rails->peer->stripe.rails; ++lane) {
        if (rails->lanes[lane].broken && xm_rails_uses(rails, lane)) {
            give_up(rails, lane, rails->lanes[lane].reason);
        }
    }
    /* Posting was held back while the errors were undecided; now the queue may move again. */
    xm_rails_set_due(rails);
}

/* Acts on what callbacks have noted. The flag is cleared first: rails that have to wait set
 * it again, and arming then refuses to sleep until it is decided. */
static void act_on_errors(xm_rails_transport_t *self)
{
    self->broken = false;
    for (int rank = 0; rank < self->base.size; ++rank) {
        xm_rails_t *rails = self->peers[rank]->rails;

        if (rails != NULL && rails->broken_at != 0 && !self->peers[rank]->failed) {
            act_on_errors_of(rails);
        }
        if (rails != NULL && rails->retired != 0) {
            retire(rails);
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
static void look_at(xm_rails_t *rails, int64_t late)
{
    xm_rails_transport_t *self = rails->peer->owner;
    bool quiet = false;

    for (int lane = 0; lane < rails->peer->stripe.rails; ++lane) {
        xm_rails_health_t *health = &rails->lanes[lane];

        if (health->alone_at != 0) {
            health->alone_at = later_of(health->alone_at, late, self->clock);
        }
        quiet = quiet || (xm_rails_uses(rails, lane) && health->asked_at == 0 &&
                          self->clock - health->moved_at >= self->rail_timeout / QUIET);
    }
    for (int lane = 0; lane < rails->peer->stripe.rails; ++lane) {
        const xm_rails_health_t *health = &rails->lanes[lane];
        bool heard = false;

        for (int other = 0; other < rails->peer->stripe.rails; ++other) {
            heard = heard || (other != lane && xm_rails_uses(rails, other) &&
                              self->clock - rails->lanes[other].heard_at < self->rail_timeout / 2);
        }
        if (xm_rails_uses(rails, lane) && health->alone_at != 0 && heard &&
            self->clock - health->alone_at >= self->rail_timeout) {
            char reason[64];

            (void)snprintf(reason, sizeof(reason), "silent for %.1f s, while others are not",
                           (double)(self->clock - health->asked_at) * 1e-9);
            give_up(rails, lane, reason);
        }
    }
    if (quiet) {
        xm_rails_failover_ping(rails);
    }
}

/* Acts on links that are down, and returns true while one is down but still in use. A link must
 * stay down for a quarter of the timeout before its rail is given up: links flap, and a rail that
 * was given up is not taken back soon. */
static bool look_at_nics(xm_rails_transport_t *self)
{
    unsigned bits = self->lanes->down(self);
    bool doubted = false;

    for (int nic = 0; nic < self->nic_count; ++nic) {
        bool down = (bits >> nic & 1) != 0;
        int64_t *down_at = &self->nics[nic].down_at;

        *down_at = !down ? 0 : *down_at != 0 ? *down_at : self->clock;
        for (int rank = 0; rank < self->base.size && down; ++rank) {
            xm_rails_t *rails = self->peers[rank]->rails;

            if (rails == NULL || !xm_rails_uses(rails, nic) || self->peers[rank]->failed) {
                continue;
            }
            if (self->clock - *down_at < self->rail_timeout / QUIET) {
                doubted = true;
            } else if (lanes_alive(rails) > 1) {
                give_up(rails, nic, "its link is down");
            }
        }
    }
    return doubted;
}

/* The periodic check, called from each progress. It costs two comparisons unless something
 * broke or a tick has passed. When no message is unfinished and no link is in doubt, the timer
 * is stopped, so that an idle rank sleeps without interruption. */
void xm_rails_failover_look(xm_rails_transport_t *self)
{
    int64_t tick = self->rail_timeout / XM_RAILS_LOOKS, late = self->clock - self->next_look;
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
        xm_rails_t *rails = self->peers[rank]->rails;

        if (rails == NULL || self->peers[rank]->failed || self->peers[rank]->reported) {
            continue;
        }
        xm_rails_comeback_try(rails);
        xm_rails_rx_catch_up(rails);
        /* Over lanes that copy a receiver learns of a dead peer from others (the fault channel). */
        if (!xm_list_is_empty(&rails->unfinished) ||
            (xm_rails_puts(rails) && !xm_list_is_empty(&rails->peer->in_flight))) {
            look_at(rails, late);
            busy = true;
        }
    }
    if (!busy && self->armed) {
        xm_rails_failover_unwind(self);
    }
}
