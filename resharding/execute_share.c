/*
 * Device tiles of ranks on one host: the receiver copies out of the sender's tile (CUDA IPC; inside
 * a process, without). Nothing is packed and nothing crosses the host.
 *
 * Per run and lane, the sender offers the tiles that its hops read and the receiver answers which
 * of them it can open; the hops of the others travel as messages. Then a chunk's message has one
 * byte, "it is there"; the receiver copies the chunk and acknowledges it, which ends it at the
 * sender. All this anew in each run, because a run may fail at one end alone; what was opened stays
 * open.
 *
 * A sender whose run fails takes back what it can, and waits for the acknowledgements of what has
 * been announced: only then its tiles may change. A receiver whose run fails acknowledges what it
 * knows of when nothing is being copied any more; and because announcements may be on their way, it
 * sends a message that closes the lane. Where nobody takes that, nobody needed it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/config.h"
#include "comm/log.h"
#include "resharding/execute_private.h"

/* Set in the tags of messages about shared tiles; the bit below belongs to turns, the upper one
 * alone to checksums. Acknowledgements have the numbers of their chunks, which stay below these. */
#define SHARE_BITS UINT64_C(0xc0000000)
enum { NUMBER_CLOSE = 0x3ffffffd, NUMBER_ANSWER = 0x3ffffffe, NUMBER_OFFER = 0x3fffffff };

/* A tile of the sender's. */
typedef struct {
    int tensor;
    bool is_dst;
    void *address; /* incoming: here; NULL: it is not open */
} shared_tile_t;

struct share {
    lane_t *lane;
    xm_op_t offer_op, answer_op, close_op;
    shared_tile_t *tiles;
    int tile_count;
    xm_memory_share_t *offer; /* of the tiles */
    char *answer;             /* 1: opened */
    bool allowed;             /* by XM_CUDA */
    bool offer_busy, answer_busy, close_busy;
    bool settled; /* in this run */
    bool closed;  /* the receiver touches nothing any more */
    char byte;
};

/* ---- creation ---------------------------------------------------------------------------------
 */

static bool is_inside(const xm_executor_t *executor, const lane_t *lane)
{
    int rank = executor->transport->rank;

    return xm_plan_host_of(executor->plan, rank) == xm_plan_host_of(executor->plan, lane->peer);
}

/* Which tile the sender of a hop reads: its destination tile, when others have brought it the data.
 */
static bool reads_destination(const xm_executor_t *executor, const hop_t *hop)
{
    int64_t count;
    const xm_transfer_t *transfer = &xm_plan_transfers(executor->plan, &count)[hop->transfer];
    const xm_route_t *route = xm_plan_route(executor->plan, transfer->route);
    int place = (int)(hop->number - xm_plan_first_hop(executor->plan, hop->transfer));

    return route->parents[place] >= 0 || transfer->parent >= 0;
}

/* The tile's place in the lane's list, which it is added to if it is new there. */
static int tile_of(share_t *share, int tensor, bool is_dst)
{
    int t = 0;

    while (t < share->tile_count &&
           (share->tiles[t].tensor != tensor || share->tiles[t].is_dst != is_dst)) {
        ++t;
    }
    if (t == share->tile_count) {
        share->tiles[share->tile_count++] = (shared_tile_t){.tensor = tensor, .is_dst = is_dst};
    }
    return t;
}

static void offer_done(xm_op_t *op, xm_status_t status);
static void answer_done(xm_op_t *op, xm_status_t status);
static void close_done(xm_op_t *op, xm_status_t status);

static xm_status_t make_share(xm_executor_t *executor, lane_t *lane, share_t *share)
{
    size_t most = 2 * (size_t)executor->tensor_count;

    share->lane = lane;
    share->allowed = xm_config_choice(XM_CONFIG_CUDA) == XM_CUDA_AUTO;
    share->offer_op = (xm_op_t){.done = offer_done, .arg = share};
    share->answer_op = (xm_op_t){.done = answer_done, .arg = share};
    share->close_op = (xm_op_t){.done = close_done, .arg = share};
    share->tiles = calloc(most, sizeof(*share->tiles));
    if (share->tiles == NULL) {
        return XM_ERR_NO_MEMORY;
    }
    for (int64_t i = 0; i < lane->item_count; ++i) {
        hop_t *hop = &executor->hops[lane->items[i]];
        int64_t count;
        const xm_transfer_t *transfer = &xm_plan_transfers(executor->plan, &count)[hop->transfer];
        bool is_dst = reads_destination(executor, hop);

        hop->tile = tile_of(share, hop->tensor, is_dst);
        if (!lane_sends(lane) && is_dst) {
            xm_executor_destination_view(executor, transfer, &hop->peer_view);
        } else if (!lane_sends(lane)) {
            xm_executor_source_view(executor, transfer, &hop->peer_view);
        }
    }
    share->offer = calloc((size_t)share->tile_count, sizeof(*share->offer));
    share->answer = calloc((size_t)share->tile_count, 1);
    lane->share = share;
    return share->offer != NULL && share->answer != NULL ? XM_OK : XM_ERR_NO_MEMORY;
}

/* Tells a hop's tile to the peer; device -1: it cannot have it. */
static void describe_tiles(xm_executor_t *executor, share_t *share)
{
    for (int t = 0; t < share->tile_count; ++t) {
        const tensor_t *tensor = &executor->tensors[share->tiles[t].tensor];
        bool is_dst = share->tiles[t].is_dst;
        const void *tile = is_dst ? tensor->dst : tensor->src;

        share->offer[t].device = -1;
        if (!share->allowed || !(is_dst ? tensor->dst_on_device : tensor->src_on_device)) {
            continue;
        }
        if (xm_memory_share(xm_executor_space(executor), tile, &share->offer[t]) < 0) {
            xm_log_debug("rank %d: %s; rank %d gets it by messages", executor->transport->rank,
                         xm_last_error(), share->lane->peer);
            share->offer[t].device = -1;
        }
    }
}

xm_status_t xm_executor_make_shares(xm_executor_t *executor)
{
    xm_status_t status = XM_OK;

    executor->shares = calloc((size_t)executor->lane_count + 1, sizeof(*executor->shares));
    if (executor->shares == NULL) {
        status = XM_ERR_NO_MEMORY;
    }
    for (int l = 0; l < executor->lane_count && status == XM_OK; ++l) {
        lane_t *lane = &executor->lanes[l];

        if (!is_inside(executor, lane)) {
            continue;
        }
        status = make_share(executor, lane, &executor->shares[executor->share_count++]);
        if (status == XM_OK && lane_sends(lane)) {
            describe_tiles(executor, lane->share);
        }
    }
    return status == XM_OK ? XM_OK
                           : xm_error_set(status, "rank %d: no memory for the tiles of its host",
                                          executor->transport->rank);
}

void xm_executor_free_shares(xm_executor_t *executor)
{
    for (int s = 0; s < executor->share_count; ++s) {
        free(executor->shares[s].tiles);
        if (executor->gave_up) { /* on a peer that may live: it may still send or take these */
            xm_keep_for_ever(executor->shares[s].offer);
            xm_keep_for_ever(executor->shares[s].answer);
        } else {
            free(executor->shares[s].offer);
            free(executor->shares[s].answer);
        }
    }
    if (executor->gave_up) {
        xm_keep_for_ever(executor->shares);
    } else {
        free(executor->shares);
    }
}

/* ---- the pact of a run ------------------------------------------------------------------------
 */

/* Sends or receives one of the messages about tiles; the end is told as of any operation. */
static void post_message(share_t *share, xm_op_t *op, bool sends, uint64_t number, void *bytes,
                         size_t length, bool *busy)
{
    xm_executor_t *executor = share->lane->executor;
    uint64_t tag = xm_executor_tag(executor) | SHARE_BITS | number;
    int peer = share->lane->peer;
    xm_status_t status;

    *busy = true;
    ++executor->signals;
    status = sends ? xm_transport_send(executor->transport, peer, tag, bytes, length, NULL, op)
                   : xm_transport_receive(executor->transport, peer, tag, bytes, length, NULL, op);
    if (status != XM_IN_PROGRESS) {
        op->done(op, status);
    }
}

static void settle(share_t *share)
{
    xm_executor_t *executor = share->lane->executor;
    const lane_t *lane = share->lane;

    for (int64_t i = 0; i < lane->item_count; ++i) {
        hop_t *hop = &executor->hops[lane->items[i]];

        hop->mapped = share->answer[hop->tile] == 1;
        hop->peer_tile = share->tiles[hop->tile].address;
    }
    share->settled = true;
    xm_executor_list_ended(share->lane);
}

/* True when the message has come or gone, and the run still wants it. */
static bool ended_well(share_t *share, bool *busy, xm_status_t status)
{
    xm_executor_t *executor = share->lane->executor;

    *busy = false;
    --executor->signals;
    if (status < 0) {
        xm_executor_fail(executor, status);
    }
    return status == XM_OK && executor->result == XM_OK;
}

static void open_tiles(share_t *share)
{
    xm_executor_t *executor = share->lane->executor;
    xm_memory_space_t *space = xm_executor_space(executor);

    for (int t = 0; t < share->tile_count; ++t) {
        shared_tile_t *tile = &share->tiles[t];

        tile->address = NULL;
        share->answer[t] = 0;
        if (share->offer[t].device < 0 || space == NULL || !share->allowed ||
            !executor->tensors[tile->tensor].dst_on_device) {
            continue;
        }
        if (xm_memory_open(space, &share->offer[t], &tile->address) < 0) {
            xm_log_debug("rank %d: %s; what rank %d has comes by messages",
                         executor->transport->rank, xm_last_error(), share->lane->peer);
            continue;
        }
        share->answer[t] = 1;
    }
}

static void offer_done(xm_op_t *op, xm_status_t status)
{
    share_t *share = op->arg;

    if (ended_well(share, &share->offer_busy, status) && !lane_sends(share->lane)) {
        open_tiles(share);
        post_message(share, &share->answer_op, true, NUMBER_ANSWER, share->answer,
                     (size_t)share->tile_count, &share->answer_busy);
        settle(share);
    }
}

static void answer_done(xm_op_t *op, xm_status_t status)
{
    share_t *share = op->arg;

    if (ended_well(share, &share->answer_busy, status) && lane_sends(share->lane)) {
        settle(share);
    }
}

/* The receiver has given up. What it has not acknowledged, it never will. */
static void close_done(xm_op_t *op, xm_status_t status)
{
    share_t *share = op->arg;
    lane_t *lane = share->lane;
    xm_executor_t *executor = lane->executor;

    share->close_busy = false;
    --executor->signals;
    if (status < 0 || !lane_sends(lane)) {
        return; /* a peer that died has ended everything else as well */
    }
    share->closed = true;
    xm_executor_fail(executor, xm_error_set(XM_ERR_UNREACHABLE, "rank %d: rank %d gave up the run",
                                            executor->transport->rank, lane->peer));
    for (int s = 0; s < lane->in_flight; ++s) {
        slot_t *slot = &lane->slots[(lane->oldest + s) % lane->slot_count];

        if (slot->busy && slot->ack_busy) {
            xm_transport_cancel(executor->transport, &slot->ack);
        }
    }
}

void xm_executor_start_shares(xm_executor_t *executor)
{
    for (int s = 0; s < executor->share_count; ++s) {
        share_t *share = &executor->shares[s];
        bool sends = lane_sends(share->lane);

        share->settled = share->closed = false;
        if (sends) {
            post_message(share, &share->answer_op, false, NUMBER_ANSWER, share->answer,
                         (size_t)share->tile_count, &share->answer_busy);
            post_message(share, &share->close_op, false, NUMBER_CLOSE, &share->byte, 1,
                         &share->close_busy);
        }
        post_message(share, &share->offer_op, sends, NUMBER_OFFER, share->offer,
                     (size_t)share->tile_count * sizeof(*share->offer), &share->offer_busy);
    }
}

bool xm_executor_has_settled(const lane_t *lane)
{
    return lane->share->settled;
}

/* ---- chunks -----------------------------------------------------------------------------------
 */

void xm_executor_post_ack(slot_t *slot)
{
    const lane_t *lane = slot->lane;
    xm_executor_t *executor = lane->executor;
    uint64_t tag = slot->tag | SHARE_BITS;
    xm_status_t status;

    slot->ack_busy = true;
    slot->ack.done = xm_executor_ack_done;
    slot->ack.arg = slot;
    status = lane_sends(lane) ? xm_transport_receive(executor->transport, lane->peer, tag,
                                                     &slot->ack_byte, 1, NULL, &slot->ack)
                              : xm_transport_send(executor->transport, lane->peer, tag,
                                                  &slot->ack_byte, 1, NULL, &slot->ack);
    if (status != XM_IN_PROGRESS) {
        xm_executor_ack_done(&slot->ack, status);
    }
}

bool xm_executor_describe_shares(const xm_executor_t *executor, char *buffer, size_t size)
{
    for (int s = 0; s < executor->share_count; ++s) {
        const share_t *share = &executor->shares[s];

        if (!share->settled) {
            (void)snprintf(buffer, size, "waits for rank %d to %s device tiles", share->lane->peer,
                           lane_sends(share->lane) ? "open its" : "offer its");
            return true;
        }
    }
    return false;
}

/* ---- the end of a run -------------------------------------------------------------------------
 */

/* True while an announcement may be taken, a chunk is being copied, or the sender has to be told.
 */
static bool is_busy(const lane_t *lane)
{
    for (int s = 0; s < lane->in_flight; ++s) {
        const slot_t *slot = &lane->slots[(lane->oldest + s) % lane->slot_count];

        if (slot->busy) {
            return true;
        }
    }
    return false;
}

/* After a failure: says so to those this rank copies from. Small messages leave at once where they
 * need not be asked for; elsewhere none is on its way. */
static void close_lane(share_t *share)
{
    if (share->close_busy) {
        xm_transport_cancel(share->lane->executor->transport, &share->close_op);
    } else if (share->settled && !share->closed && !is_busy(share->lane)) {
        share->closed = true;
        post_message(share, &share->close_op, true, NUMBER_CLOSE, &share->byte, 1,
                     &share->close_busy);
    }
}

void xm_executor_end_shares(xm_executor_t *executor)
{
    bool failed = executor->result < 0;

    for (int s = 0; s < executor->share_count; ++s) {
        share_t *share = &executor->shares[s];

        if (failed && !lane_sends(share->lane)) {
            close_lane(share);
        }
        if (lane_sends(share->lane) && share->close_busy && share->lane->in_flight == 0 &&
            (failed || executor->left == 0)) {
            xm_transport_cancel(executor->transport, &share->close_op);
        }
    }
}

void xm_executor_cancel_shares(xm_executor_t *executor)
{
    for (int s = 0; s < executor->share_count; ++s) {
        share_t *share = &executor->shares[s];

        if (share->offer_busy) {
            xm_transport_cancel(executor->transport, &share->offer_op);
        }
        if (share->answer_busy) {
            xm_transport_cancel(executor->transport, &share->answer_op);
        }
    }
}

void xm_executor_give_up_shares(xm_executor_t *executor)
{
    for (int s = 0; s < executor->share_count; ++s) {
        const share_t *share = &executor->shares[s];

        if (share->offer_busy || share->answer_busy || share->close_busy) {
            xm_transport_peer_failed(executor->transport, share->lane->peer);
        }
    }
}
