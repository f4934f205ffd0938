/* SPDX-License-Identifier: Apache-2.0 */
/* What a lost lane carried goes by another one. A connection keeps the order of what it carries, so
 * all that its two ends have to tell each other is a number: how much had come when it was closed.
 * Each end closes its queue pair, waits until the device has given everything back, and then says
 * so over another lane; when it hears the same of the peer, it knows which of its messages and
 * pieces have arrived, and sends the rest again, and after that what still waited. So nothing
 * arrives twice but bytes of a piece, which are written to the same place, and the messages of a
 * tag keep their order. No byte lands late: the receiver's queue pair is gone before the sender may
 * send again what ends the receive. While no lane is lost all this costs is to remember what was
 * sent. */
#include <inttypes.h>

#include "comm/transport/verbs/transport_verbs_private.h"

/* The next lane that works. There is one, or the peer would have failed. */
static xm_verbs_lane_t *next_of(const xm_verbs_lane_t *lane)
{
    xm_verbs_peer_t *peer = lane->peer;
    int rail = lane->rail;

    do {
        rail = (rail + 1) % peer->stripe.rails;
    } while (!xm_verbs_lane_works(&peer->lanes[rail]) && rail != lane->rail);
    return &peer->lanes[rail];
}

/* A NIC that is lost leads to many peers, and is lost once. */
static void report(const xm_verbs_lane_t *lane, const xm_verbs_lane_t *to, uint32_t moved)
{
    xm_verbs_port_t *port = xm_verbs_port_of(lane);

    xm_log_warn("rank %d: NIC %s towards rank %d is lost (%s): %" PRIu32
                " fragments of messages were moved to %s, which carries on",
                lane->peer->owner->base.rank, port->offer.name, lane->peer->rank, lane->reason,
                moved, xm_verbs_port_of(to)->offer.name);
    if (!port->lost) {
        port->lost = true;
        xm_count_failover(port->counters);
    }
}

/* Sends again what was sent last; true when that is needed. Credits are of one lane only. */
static bool again(xm_verbs_lane_t *to, xm_verbs_wr_t *wr)
{
    if (wr->kind == XM_VERBS_CREDIT) {
        xm_verbs_lane_forget(to, wr);
        return false;
    }
    wr->begin = wr->start;
    to->unsent += wr->kind == XM_VERBS_AGAIN;
    xm_count_retry(xm_verbs_port_of(to)->counters);
    xm_verbs_lane_append(to, wr);
    return true;
}

/* Both ends have closed the lane, and both know what has arrived. */
static void move(xm_verbs_lane_t *lane)
{
    xm_verbs_lane_t *to = next_of(lane);
    uint32_t known = lane->sent, moved = 0, arrived;

    if (lane->peer->failed) {
        return; /* with the last lane that worked */
    }
    for (const xm_verbs_wr_t *wr = lane->first_sent; wr != NULL; wr = wr->next) {
        --known;
    }
    arrived = lane->there - known;
    if (arrived > lane->sent - known) {
        xm_verbs_fail(lane->peer, "%" PRIu32 " of %" PRIu32 " messages came to it over %s",
                      lane->there, lane->sent, xm_verbs_port_of(lane)->offer.name);
        return;
    }
    /* Those that had this one instead, and the one that was away itself, have its queue now. */
    for (int rail = 0; rail < lane->peer->stripe.rails; ++rail) {
        xm_verbs_lane_t *other = &lane->peer->lanes[rail];

        if (other->instead == lane) {
            other->instead = other == to ? NULL : to;
        }
    }
    lane->instead = lane->instead != NULL ? lane->instead : to;
    lane->moved = true;
    lane->unsent = 0;
    xm_verbs_comeback_plan(lane);
    while (lane->first_sent != NULL) {
        xm_verbs_wr_t *wr = xm_verbs_lane_take_sent(lane);

        if (arrived == 0) {
            moved += again(to, wr);
            continue;
        }
        --arrived;
        if (wr->kind == XM_VERBS_PIECE) {
            xm_verbs_wrote(lane, wr->number);
        }
        xm_verbs_lane_forget(lane, wr);
    }
    while (lane->first != NULL) {
        xm_verbs_wr_t *wr = lane->first;

        lane->first = wr->next;
        moved += again(to, wr);
    }
    lane->last = &lane->first;
    report(lane, to, moved);
}

/* Tells the peer what has come over the lane. */
static void tell(xm_verbs_lane_t *lane)
{
    xm_verbs_wr_t wr = {.kind = XM_VERBS_LOST, .number = (uint32_t)lane->rail, .came = lane->came};

    if (xm_verbs_lane_send(next_of(lane), &wr) == XM_ERR_NO_MEMORY) {
        xm_verbs_fail(lane->peer, "it cannot be answered (%s)", xm_last_error());
    }
}

void xm_verbs_failover_closed(xm_verbs_lane_t *lane)
{
    if (lane->peer->failed) {
        return;
    }
    lane->owed = 0;
    lane->unsent = 1; /* until it is known what has arrived */
    tell(lane);
    /* The peer may be gone, and with it all lanes: all are asked at once. */
    for (int rail = 0; rail < lane->peer->stripe.rails; ++rail) {
        xm_verbs_lane_beat(&lane->peer->lanes[rail]);
    }
    if (lane->told) {
        move(lane);
    }
}

void xm_verbs_failover_told(xm_verbs_peer_t *peer, uint32_t rail, uint32_t came)
{
    xm_verbs_lane_t *lane = rail < XM_NICS_MAX ? &peer->lanes[rail] : NULL;

    /* The peer has used it again already, as this rank would have with the next message; or before
     * this rank has given the try up, so that nothing has come. */
    if (lane != NULL && lane->trying) {
        xm_verbs_comeback_take(lane);
    }
    if (lane != NULL && xm_verbs_lane_rests(lane)) {
        lane->came = 0;
        tell(lane);
        return;
    }
    if (lane == NULL || lane->told || (lane->qp == NULL && !lane->lost)) {
        xm_verbs_fail(peer, "it has lost a connection that there is not (rail %" PRIu32 ")", rail);
        return;
    }
    lane->told = true;
    lane->there = came;
    if (lane->qp == NULL) {
        move(lane);
    } else {
        xm_verbs_lose(lane, "rank %d says so", peer->rank);
    }
}
