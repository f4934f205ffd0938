/* SPDX-License-Identifier: Apache-2.0 */
/* How a lane that was given up gets a new queue pair, before it is tried. The rank with the lower
 * number makes one and tells its number over another lane (BACK); the peer makes one, too, connects
 * it, and answers (HERE). Then a PING over the new connection and the PONG to it show that both
 * ways pass, and both ranks use the lane again. A try that fails closes the queue pair, and nothing
 * else has happened. */
#include "comm/transport/verbs/transport_verbs_private.h"

/* Tells the other end the number of the new queue pair, over a lane that is in use. */
static void tell(const xm_verbs_lane_t *lane, xm_rails_frame_kind_t kind)
{
    xm_rails_t *rails = lane->peer->base.rails;
    xm_rails_frame_t frame = {
        .kind = kind, .message = lane->qp->qp_num, .offset = (uint64_t)lane->rail};

    for (int rail = 0; rail < lane->peer->base.stripe.rails; ++rail) {
        if (xm_rails_uses(rails, rail)) {
            (void)xm_rails_answer(rails, rail, &frame);
            return;
        }
    }
}

/* Makes the queue pair, and connects it when the peer's number is known. False: the device refuses,
 * perhaps because its port is down; then all is as before. */
static bool make(xm_verbs_lane_t *lane, const uint64_t *number)
{
    xm_verbs_transport_t *self = xm_verbs_owner(lane->peer);

    if (xm_verbs_lane_open(self, lane) == XM_OK &&
        (number == NULL || xm_verbs_lane_connect(self, lane, (uint32_t)*number) == XM_OK)) {
        lane->peer->base.rails->lanes[lane->rail].joined = number != NULL;
        return true;
    }
    if (lane->qp != NULL) {
        (void)ibv_destroy_qp(lane->qp);
        lane->qp = NULL;
    }
    return false;
}

bool xm_verbs_attempt(xm_rails_peer_t *peer, int rail)
{
    xm_verbs_lane_t *lane = &((xm_verbs_peer_t *)peer)->lanes[rail];

    if (peer->owner->base.rank > peer->rank || xm_verbs_port_of(lane)->down) {
        return false;
    }
    xm_verbs_retire(peer, rail); /* the try before has failed */
    if (make(lane, NULL)) {
        tell(lane, XM_RAILS_FRAME_BACK);
    }
    return true;
}

/* A queue pair of a try that the peer has given up is closed; the try after this one will find
 * none. */
void xm_verbs_told(xm_rails_peer_t *peer, const xm_rails_frame_t *frame)
{
    static const xm_rails_frame_t ping = {.kind = XM_RAILS_FRAME_PING};
    xm_verbs_lane_t *lane = &((xm_verbs_peer_t *)peer)->lanes[frame->offset];
    bool *joined = &peer->rails->lanes[lane->rail].joined;

    if (lane->rail >= peer->stripe.rails || !xm_stripe_uses(&peer->stripe, lane->rail)) {
        xm_rails_report(peer, "it has a connection back that there is not");
    } else if (xm_rails_uses(peer->rails, lane->rail) || xm_verbs_lane_retires(lane)) {
        return; /* an old one, or too early */
    } else if (frame->kind == XM_RAILS_FRAME_BACK && lane->qp == NULL) {
        if (make(lane, &frame->message)) {
            tell(lane, XM_RAILS_FRAME_HERE);
        }
    } else if (frame->kind == XM_RAILS_FRAME_HERE && lane->qp != NULL && !*joined) {
        *joined = xm_verbs_lane_connect(xm_verbs_owner(lane->peer), lane,
                                        (uint32_t)frame->message) == XM_OK;
        if (*joined) {
            (void)xm_rails_answer(peer->rails, lane->rail, &ping);
        }
    } else {
        xm_rails_broken(peer, lane->rail, "it is tried anew");
    }
}
