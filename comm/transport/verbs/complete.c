/* SPDX-License-Identifier: Apache-2.0 */
/* What completions mean. Every work request is signalled, so each gives back exactly one
 * completion, which carries all there is to know in its number: the lane, the kind of request,
 * and a slot. Failures of a connection appear here first: the device reports them with the request
 * that failed, and then flushes all others. */
#include "comm/transport/verbs/transport_verbs_private.h"

/* Completions that are taken at a time, and how many times from one port in a call: a port
 * under full load must not keep the others waiting. */
enum { BATCH = 16, BATCHES = 16 };

/* A frame has come. Credits first, whatever it is; more of them than the peer has slots cannot
 * be. What does not decode cannot be skipped, since nobody knows what it wanted: a reliable
 * connection does not corrupt, so it is another version or a bug. */
static void hear(xm_verbs_lane_t *lane, const uint8_t *bytes, size_t size)
{
    xm_rails_frame_t frame;

    if (size < XM_RAILS_FRAME_SIZE ||
        xm_rails_frame_decode(bytes, XM_RAILS_FRAME_SIZE, &frame) < 0 ||
        frame.sender != lane->peer->base.rank ||
        lane->credits + frame.credits > (int)lane->peer->slots) {
        xm_rails_report(&lane->peer->base, "it sent %zu bytes that are no message", size);
        return;
    }
    lane->credits += frame.credits;
    if (lane->first != NULL) {
        xm_verbs_lane_list(lane);
    }
    xm_rails_hear(&lane->peer->base, lane->rail, &frame, bytes + XM_RAILS_FRAME_SIZE,
                  size - XM_RAILS_FRAME_SIZE);
}

/* A receive slot was filled. It is given back only after it has been posted again, because the peer
 * may use the credit at once. */
static void came(xm_verbs_lane_t *lane, size_t size, uint32_t slot)
{
    const xm_verbs_transport_t *self = xm_verbs_owner(lane->peer);

    hear(lane, lane->slots + (size_t)slot * self->offer.slot_size, size);
    if (!lane->closing && !xm_verbs_lane_retires(lane) && xm_verbs_lane_post_receive(lane, slot) &&
        ++lane->owed >= (int)self->offer.slots / 2) {
        xm_verbs_lane_list(lane);
    }
}

/* Any successful completion shows that the peer's device answers. */
static void completed(xm_verbs_lane_t *lane, const struct ibv_wc *wc, int work, uint32_t value)
{
    xm_rails_t *rails = lane->peer->base.rails;

    switch (work) {
    case XM_VERBS_WORK_RECEIVE:
        came(lane, wc->byte_len, value);
        return;
    case XM_VERBS_WORK_FRAME:
        xm_verbs_lane_arrived(lane);
        break;
    default:
        break;
    }
    xm_rails_moved(rails, lane->rail);
    xm_rails_set_due(rails);
}

/* Handles one completion. Resources are returned whatever the status is, and before anything
 * else, so that none leaks with a connection that fails. A lane that was given up still has
 * completions of what came before that. */
static void complete(xm_verbs_transport_t *self, xm_verbs_port_t *port, const struct ibv_wc *wc)
{
    uint64_t index = wc->wr_id >> XM_VERBS_LANE_SHIFT;
    int work = (int)(wc->wr_id >> XM_VERBS_WORK_SHIFT) &
               ((1 << (XM_VERBS_LANE_SHIFT - XM_VERBS_WORK_SHIFT)) - 1);
    uint32_t value = (uint32_t)wc->wr_id;
    xm_verbs_lane_t *lane = &self->peers[index / XM_VERBS_LANES].lanes[index % XM_VERBS_LANES];

    /* The lane was closed: its counts mean nothing any more. */
    if (lane->qp == NULL) {
        return;
    }
    --lane->posted;
    if (work != XM_VERBS_WORK_RECEIVE) {
        ++lane->room;
        lane->beating = lane->beating && work != XM_VERBS_WORK_BEAT;
        xm_verbs_lane_give_slot(lane, work == XM_VERBS_WORK_CREDIT ? (int)value - 1 : -1);
        /* There is room in the send queue again. */
        if (lane->first != NULL) {
            xm_verbs_lane_list(lane);
        }
    }
    if (wc->status != IBV_WC_SUCCESS) {
        /* After the first failure a queue pair flushes everything; what follows changes nothing. */
        if (!lane->closing && !xm_verbs_lane_retires(lane)) {
            xm_rails_broken(&lane->peer->base, lane->rail,
                            "over %s: %s (work completion status %d)%s", port->offer.name,
                            ibv_wc_status_str(wc->status), (int)wc->status,
                            port->down ? "; the port is down" : "");
        }
    } else if (!lane->peer->base.failed) {
        completed(lane, wc, work, value);
    }
}

/* Polls all ports. Returns the number of completions, so that arming can tell that something
 * came. */
int xm_verbs_poll(xm_verbs_transport_t *self)
{
    int total = 0;

    for (int i = 0; i < self->port_count; ++i) {
        xm_verbs_port_t *port = &self->ports[i];
        struct ibv_wc completions[BATCH];
        int count = port->cq != NULL ? BATCH : 0; /* there is none when connecting has failed */

        for (int batch = 0; batch < BATCHES && count == BATCH; ++batch) {
            count = ibv_poll_cq(port->cq, BATCH, completions);
            for (int c = 0; c < count; ++c) {
                complete(self, port, &completions[c]);
            }
            total += count > 0 ? count : 0;
        }
    }
    return total;
}
