/* SPDX-License-Identifier: Apache-2.0 */
/* What completions mean. Every work request is signalled, so each gives back exactly one
 * completion, which carries all there is to know in its number: the lane, the kind of request,
 * and a slot or message number. So no list of outstanding requests is needed. Failures of a
 * connection appear here first: the device reports them with the request that failed, and then
 * flushes all others. */
#include <arpa/inet.h>

#include "comm/transport/verbs/transport_verbs_private.h"

/* Completions that are taken at a time, and how many times from one port in a call: a port
 * under full load must not keep the others waiting. */
enum { BATCH = 16, BATCHES = 16 };

/* A receive slot was filled: by a header, or used up by the immediate of an RDMA write, which
 * consumes a receive but writes no byte of it. */
static void came(xm_verbs_lane_t *lane, const struct ibv_wc *wc, uint32_t slot)
{
    const xm_verbs_transport_t *self = lane->peer->owner;
    const uint8_t *bytes = lane->slots + (size_t)slot * self->offer.slot_size;

    ++lane->came;
    if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
        xm_verbs_written(lane, ntohl(wc->imm_data));
    } else {
        xm_verbs_message(lane, bytes, wc->byte_len);
    }
    /* The slot is given back only after it has been posted again, because the peer may use the
     * credit at once. */
    if (xm_verbs_lane_works(lane) && xm_verbs_lane_post_receive(lane, slot) &&
        ++lane->owed >= (int)self->offer.slots / 2) {
        xm_verbs_lane_list(lane);
    }
}

/* Any successful completion shows that the peer's device answers, so the peer does not count as
 * silent. */
static void completed(xm_verbs_lane_t *lane, const struct ibv_wc *wc, int work, uint32_t value)
{
    lane->peer->heard = true;
    switch (work) {
    /* A message, or the end of a fragment that the peer has written. */
    case XM_VERBS_WORK_RECEIVE:
        came(lane, wc, value);
        break;
    case XM_VERBS_WORK_LAST_WRITE:
        xm_verbs_lane_forget(lane, xm_verbs_lane_take_sent(lane));
        xm_verbs_wrote(lane, value);
        break;
    /* Requests complete in their order, so it is the oldest of those that are remembered. */
    case XM_VERBS_WORK_MESSAGE:
    case XM_VERBS_WORK_CREDIT:
        xm_verbs_lane_forget(lane, xm_verbs_lane_take_sent(lane));
        break;
    default:
        break;
    }
}

/* Handles one completion. Resources are returned whatever the status is, and before anything
 * else, so that none leaks with a connection that fails. A lane that was lost still has
 * completions of what came before that, and they count. */
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
        lane->unsent -= work < XM_VERBS_WORK_CREDIT;
        /* There is room in the send queue again. */
        if (lane->first != NULL) {
            xm_verbs_lane_list(lane);
        }
    }
    if (wc->status != IBV_WC_SUCCESS) {
        /* After the first failure a queue pair flushes everything; those errors are
         * consequences and are not counted. */
        xm_count_fragment(xm_verbs_lane_works(lane) ? port->counters : NULL, XM_SENT, 0, XM_ERR_IO);
        xm_verbs_lose(lane, "its connection over %s failed: %s (work completion status %d)%s",
                      port->offer.name, ibv_wc_status_str(wc->status), (int)wc->status,
                      port->down ? "; the port is down" : "");
    } else if (!lane->peer->failed) {
        if (lane->trying) {
            xm_verbs_comeback_take(lane);
        }
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
