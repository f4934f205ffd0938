/* SPDX-License-Identifier: Apache-2.0 */
/* How a lane that was lost is used again. When what it carried goes by others, and some time has
 * passed, the rank with the lower number makes a new queue pair and tells its number over another
 * lane (BACK); the peer makes one, too, connects it, and answers (HERE). An empty write then shows
 * that packets and their acknowledgements pass, and the first message over the lane tells the peer.
 * Neither uses the lane before. A try that fails closes the queue pair, and nothing else has
 * happened. The lane carries pieces of long messages again, which have no order; messages of its
 * tags stay where they went when it was lost. */
#include "comm/transport/verbs/transport_verbs_private.h"

/* In ticks of half a second: until the first try, between two at most, and how long a try, or the
 * time without a loss after which those before are forgotten, takes. */
enum { FIRST_WAIT = 4, LONGEST_WAIT = 192, TRY = 16, WELL = 96 };

/* Each loss, and each try that failed, makes the wait longer: a port that comes and goes is soon
 * left alone. */
void xm_verbs_comeback_plan(xm_verbs_lane_t *lane)
{
    lane->wait = lane->wait > 0 ? lane->wait : FIRST_WAIT;
    lane->ticks = lane->wait;
    lane->wait = 2 * lane->wait < LONGEST_WAIT ? 2 * lane->wait : LONGEST_WAIT;
}

/* Tells the other end the number of the new queue pair, over a lane that works. */
static void tell(xm_verbs_lane_t *lane, int kind)
{
    xm_verbs_peer_t *peer = lane->peer;
    xm_verbs_wr_t wr = {.kind = kind, .number = (uint32_t)lane->rail, .came = lane->qp->qp_num};

    for (int rail = 0; rail < peer->stripe.rails; ++rail) {
        if (xm_verbs_lane_works(&peer->lanes[rail])) {
            if (xm_verbs_lane_send(&peer->lanes[rail], &wr) == XM_ERR_NO_MEMORY) {
                xm_verbs_lose(lane, "it cannot be told");
            }
            return;
        }
    }
}

/* Makes the queue pair, and connects it when the peer's number is known. False: the device refuses,
 * perhaps because its port is down; then all is as before. */
static bool try_lane(xm_verbs_lane_t *lane, const uint32_t *number)
{
    xm_verbs_transport_t *self = lane->peer->owner;

    if (xm_verbs_lane_open(self, lane) == XM_OK &&
        (number == NULL || xm_verbs_lane_connect(self, lane, *number) == XM_OK)) {
        lane->trying = true;
        lane->ticks = TRY;
        return true;
    }
    if (lane->qp != NULL) {
        (void)ibv_destroy_qp(lane->qp);
        lane->qp = NULL;
    }
    return false;
}

void xm_verbs_comeback_tick(xm_verbs_lane_t *lane)
{
    if (lane->trying) {
        if (--lane->ticks <= 0) {
            xm_verbs_lose(lane, "nobody answers");
        }
    } else if (xm_verbs_lane_works(lane)) {
        lane->wait = ++lane->ticks > WELL ? 0 : lane->wait;
    } else if (xm_verbs_lane_rests(lane) && --lane->ticks <= 0 &&
               lane->peer->owner->base.rank < lane->peer->rank) {
        xm_verbs_comeback_plan(lane);
        if (!xm_verbs_port_of(lane)->down && try_lane(lane, NULL)) {
            tell(lane, XM_VERBS_BACK);
        }
    }
}

void xm_verbs_comeback_told(xm_verbs_peer_t *peer, const xm_verbs_header_t *header)
{
    xm_verbs_lane_t *lane = header->sender < XM_NICS_MAX ? &peer->lanes[header->sender] : NULL;
    bool offered = header->kind == XM_VERBS_BACK;

    if (lane == NULL || (lane->qp == NULL && !lane->lost)) {
        xm_verbs_fail(peer, "it has a connection back that there is not");
    } else if (offered && xm_verbs_lane_rests(lane)) {
        if (try_lane(lane, &header->receiver)) {
            tell(lane, XM_VERBS_HERE);
        }
    } else if (lane->trying && offered) {
        /* The peer has given up the try before; the one after this will find the lane at rest. */
        xm_verbs_lose(lane, "it is tried anew");
    } else if (lane->trying) {
        if (xm_verbs_lane_connect(peer->owner, lane, header->receiver) == XM_OK) {
            xm_verbs_lane_probe(lane);
        } else {
            xm_verbs_lose(lane, "it cannot be connected");
        }
    }
}

/* Both ways of the lane work. The peer learns that by the first message, so there is one. */
void xm_verbs_comeback_take(xm_verbs_lane_t *lane)
{
    xm_verbs_wr_t first = {.kind = XM_VERBS_CREDIT};

    lane->trying = lane->lost = lane->told = lane->moved = false;
    lane->ticks = 0;
    xm_verbs_port_of(lane)->lost = false;
    xm_log_info("rank %d: NIC %s towards rank %d is back", lane->peer->owner->base.rank,
                xm_verbs_port_of(lane)->offer.name, lane->peer->rank);
    if (xm_verbs_lane_send(lane, &first) == XM_ERR_NO_MEMORY) {
        xm_verbs_lose(lane, "the peer cannot be told");
    }
}
