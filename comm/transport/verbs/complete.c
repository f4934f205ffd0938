/* The verbs transport: what completions mean. */
#include <arpa/inet.h>

#include "comm/transport/verbs/transport_verbs_private.h"

/* Completions that are taken at a time, and how often from one port in a call. */
enum { BATCH = 16, BATCHES = 16 };

static void came(xm_verbs_lane_t *lane, const struct ibv_wc *wc, uint32_t slot)
{
    const xm_verbs_transport_t *self = lane->peer->owner;
    const uint8_t *bytes = lane->slots + (size_t)slot * self->offer.slot_size;

    if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
        xm_verbs_written(lane, ntohl(wc->imm_data));
    } else {
        xm_verbs_message(lane, bytes, wc->byte_len);
    }
    /* Given back only when it is posted again: the peer may use it at once. */
    if (!lane->peer->failed && xm_verbs_lane_post_receive(lane, slot) &&
        ++lane->owed >= (int)self->offer.slots / 2) {
        xm_verbs_lane_list(lane);
    }
}

/* A piece has reached the peer's memory. */
static void wrote(xm_verbs_lane_t *lane, uint32_t number)
{
    xm_verbs_transport_t *self = lane->peer->owner;
    xm_verbs_rndv_t *rndv = xm_verbs_find_rndv(self, number, lane->peer, XM_VERBS_SEND);

    if (rndv != NULL && --rndv->pieces == 0) {
        xm_verbs_end_op(rndv->op, XM_OK);
    }
}

static void completed(xm_verbs_lane_t *lane, const struct ibv_wc *wc, int work, uint32_t value)
{
    lane->peer->heard = true;
    switch (work) {
    case XM_VERBS_WORK_RECEIVE:
        came(lane, wc, value);
        break;
    case XM_VERBS_WORK_LAST_WRITE:
        wrote(lane, value);
        break;
    default:
        break;
    }
}

static void complete(xm_verbs_transport_t *self, xm_verbs_port_t *port, const struct ibv_wc *wc)
{
    uint64_t index = wc->wr_id >> XM_VERBS_LANE_SHIFT;
    int work = (int)(wc->wr_id >> XM_VERBS_WORK_SHIFT) &
               ((1 << (XM_VERBS_LANE_SHIFT - XM_VERBS_WORK_SHIFT)) - 1);
    uint32_t value = (uint32_t)wc->wr_id;
    xm_verbs_lane_t *lane = &self->peers[index / XM_VERBS_LANES].lanes[index % XM_VERBS_LANES];

    if (work == XM_VERBS_WORK_MESSAGE) {
        port->free_sends[port->free_send_count++] = (int)value;
    }
    if (lane->qp == NULL) {
        return;
    }
    --lane->posted;
    if (work != XM_VERBS_WORK_RECEIVE) {
        ++lane->room;
        lane->beating = lane->beating && work != XM_VERBS_WORK_BEAT;
        lane->unsent -= work < XM_VERBS_WORK_CREDIT;
        if (lane->first != NULL) {
            xm_verbs_lane_list(lane);
        }
    }
    if (wc->status != IBV_WC_SUCCESS) {
        /* After the first failure a queue pair gives everything back, which is none of its own. */
        xm_count_fragment(lane->peer->failed ? NULL : port->counters, XM_SENT, 0, XM_ERR_IO);
        xm_verbs_fail(lane->peer, "its connection over %s failed: %s (work completion status %d)%s",
                      port->offer.name, ibv_wc_status_str(wc->status), (int)wc->status,
                      port->down ? "; the port is down" : "");
    } else if (!lane->peer->failed) {
        completed(lane, wc, work, value);
    }
}

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
