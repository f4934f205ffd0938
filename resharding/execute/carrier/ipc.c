/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device IPC carrier: device tiles of ranks on one host. The receiver copies out of the
 * sender's tile (CUDA IPC; inside a process, without). Nothing is packed and nothing crosses the
 * host.
 *
 * Per run and lane, the sender offers the tiles that its hops read and the receiver answers which
 * of them it can open; the hops of the others stay messages. All this anew in each run, because a
 * run may fail at one end alone; what was opened stays open.
 *
 * A chunk has these states. At the receiver it waits for the announcement, a message of one byte;
 * then the device copies it; then the acknowledgement, another one, is being sent. At the sender
 * announcement and acknowledgement are in flight together, and it ends when both have: the first
 * needs the buffer of its byte, the second says that the tile may change. Unlike a direct hop each
 * chunk is acknowledged, because a copy that is in a device's queue cannot be looked after and
 * discarded, as direct copies are: a sender whose run fails has to wait for it.
 *
 * So a sender whose run fails takes back what it can, and waits for the acknowledgements of what
 * has been announced: only then its tiles may change. A receiver whose run fails acknowledges what
 * it knows of when nothing is being copied any more; and because announcements may be on their way,
 * it sends a message that closes the lane. Where nobody takes that, nobody needed it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "resharding/execute/carrier.h"
#include "resharding/execute/carrier/device.h"

/* Numbers of signals under XM_IPC_BITS. Acknowledgements have the numbers of their chunks, which
 * stay below these. */
enum { NUMBER_CLOSE = 0x3ffffffd, NUMBER_ANSWER = 0x3ffffffe, NUMBER_OFFER = 0x3fffffff };

/* A tile of the sender's. */
typedef struct {
    int tensor;
    bool is_dst;
    void *address; /* incoming: here; NULL: it is not open */
} shared_tile_t;

/* What the ends of a lane know of each other's tiles. */
struct share {
    lane_t *lane;
    signal_t offering, answering, closing;
    shared_tile_t *tiles;
    int tile_count;
    int *tile_of;             /* by item of the lane: which of them its hop reads */
    xm_memory_share_t *offer; /* of the tiles */
    char *answer;             /* 1: opened */
    bool allowed;             /* by XM_CUDA */
    bool settled;             /* in this run */
    bool closed;              /* the receiver touches nothing any more */
    char byte;
};

/* ---- creation ---------------------------------------------------------------------------------
 */

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

static void on_offer(signal_t *signal);
static void on_answer(signal_t *signal);
static void on_close(signal_t *signal);

static signal_t signal_of(share_t *share, bool sends, void (*ended)(signal_t *signal))
{
    return (signal_t){
        .owner = share, .peer = share->lane->peer, .sends = sends, .ended = sends ? NULL : ended};
}

static xm_status_t make_share(xm_executor_t *executor, lane_t *lane, share_t *share)
{
    size_t most = 2 * (size_t)executor->tensor_count;
    bool sends = lane_sends(lane);

    share->lane = lane;
    share->allowed = xm_config_choice(XM_CONFIG_CUDA) == XM_CUDA_AUTO &&
                     executor->verify != XM_VERIFY_CHUNK; /* the host sees no chunk */
    share->offering = signal_of(share, sends, on_offer);
    share->answering = signal_of(share, !sends, on_answer);
    share->closing = signal_of(share, !sends, on_close);
    share->closing.lasts = true;
    share->tiles = calloc(most, sizeof(*share->tiles));
    share->tile_of = calloc((size_t)lane->item_count, sizeof(*share->tile_of));
    if (share->tiles == NULL || share->tile_of == NULL) {
        return XM_ERR_NO_MEMORY;
    }
    for (int64_t i = 0; i < lane->item_count; ++i) {
        hop_t *hop = &executor->hops[lane->items[i]];

        share->tile_of[i] = tile_of(share, hop->tensor, xm_executor_view_peer(executor, hop));
    }
    share->offer = calloc((size_t)share->tile_count, sizeof(*share->offer));
    share->answer = calloc((size_t)share->tile_count, 1);
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
        if (xm_memory_share(executor->device->space, tile, &share->offer[t]) < 0) {
            xm_log_debug("rank %d: %s; rank %d gets it by messages", executor->transport->rank,
                         xm_last_error(), share->lane->peer);
            share->offer[t].device = -1;
        }
    }
}

static xm_status_t make_shares(xm_executor_t *executor)
{
    xm_status_t status = XM_OK;

    executor->shares = calloc((size_t)executor->lane_count + 1, sizeof(*executor->shares));
    if (executor->shares == NULL) {
        return XM_ERR_NO_MEMORY;
    }
    for (int l = 0; l < executor->lane_count && status == XM_OK; ++l) {
        lane_t *lane = &executor->lanes[l];
        share_t *share = &executor->shares[executor->share_count];

        if (!xm_executor_lane_is_inside(lane)) {
            continue;
        }
        ++executor->share_count;
        status = make_share(executor, lane, share);
        if (status == XM_OK && lane_sends(lane)) {
            describe_tiles(executor, share);
        }
    }
    return status;
}

static xm_status_t ipc_create(xm_executor_t *executor, const xm_executor_params_t *params)
{
    xm_status_t status = params->device_peers && !params->no_copy ? make_shares(executor) : XM_OK;

    if (executor->device != NULL) {
        executor->device->shared = executor->share_count > 0;
    }
    return status == XM_OK ? XM_OK
                           : xm_error_set(status, "rank %d: no memory for the tiles of its host",
                                          executor->transport->rank);
}

/* A peer that was given up may still send or take the messages. */
static void ipc_destroy(xm_executor_t *executor)
{
    for (int s = 0; s < executor->share_count; ++s) {
        const share_t *share = &executor->shares[s];

        free(share->tiles);
        free(share->tile_of);
        xm_executor_let_go(executor, share->offer);
        xm_executor_let_go(executor, share->answer);
    }
    xm_executor_let_go(executor, executor->shares);
}

/* ---- the pact of a run ---------------------------------------------------------------------- */

static void post_signal(share_t *share, signal_t *signal, uint64_t number, void *bytes,
                        size_t length)
{
    xm_signal_post(share->lane->executor, signal, XM_IPC_BITS | number, bytes, length);
}

/* Hops whose tile the receiver could open go this way; all others stay as they are. */
static void settle(share_t *share)
{
    lane_t *lane = share->lane;
    const xm_executor_t *executor = lane->executor;

    for (int64_t i = 0; i < lane->item_count; ++i) {
        hop_t *hop = &executor->hops[lane->items[i]];
        int tile = share->tile_of[i];

        if (share->answer[tile] == 1 && hop->in_tiles) {
            hop->carrier = executor->carriers[CARRIER_IPC];
            hop->peer_tile = share->tiles[tile].address;
        }
    }
    share->settled = true;
    xm_executor_settled(lane);
}

/* What could not be opened is no failure: messages carry it. */
static void open_tiles(share_t *share)
{
    xm_executor_t *executor = share->lane->executor;
    const device_t *device = executor->device;

    for (int t = 0; t < share->tile_count; ++t) {
        shared_tile_t *tile = &share->tiles[t];

        tile->address = NULL;
        share->answer[t] = 0;
        if (share->offer[t].device < 0 || device == NULL || !share->allowed ||
            !executor->tensors[tile->tensor].dst_on_device) {
            continue;
        }
        if (xm_memory_open(device->space, &share->offer[t],
                           xm_executor_tile_bytes(share->lane, tile->tensor, tile->is_dst),
                           &tile->address) < 0) {
            xm_log_debug("rank %d: %s; what rank %d has comes by messages",
                         executor->transport->rank, xm_last_error(), share->lane->peer);
            continue;
        }
        share->answer[t] = 1;
    }
}

/* The receiver knows its own answer, so it does not wait until that has left. */
static void on_offer(signal_t *signal)
{
    share_t *share = signal->owner;

    if (signal->executor->result == XM_OK) {
        open_tiles(share);
        post_signal(share, &share->answering, NUMBER_ANSWER, share->answer,
                    (size_t)share->tile_count);
        settle(share);
    }
}

static void on_answer(signal_t *signal)
{
    if (signal->executor->result == XM_OK) {
        settle(signal->owner);
    }
}

/* The receiver has given up. What it has not acknowledged, it never will. (A peer that died has
 * ended everything else as well.) */
static void on_close(signal_t *signal)
{
    share_t *share = signal->owner;
    lane_t *lane = share->lane;
    xm_executor_t *executor = lane->executor;

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

/* The sender waits for a close from the beginning, because it may come at any time. */
static void ipc_offer(xm_executor_t *executor)
{
    for (int s = 0; s < executor->share_count; ++s) {
        share_t *share = &executor->shares[s];

        share->settled = share->closed = false;
        ++share->lane->unsettled;
        if (lane_sends(share->lane)) {
            post_signal(share, &share->answering, NUMBER_ANSWER, share->answer,
                        (size_t)share->tile_count);
            post_signal(share, &share->closing, NUMBER_CLOSE, &share->byte, 1);
        }
        post_signal(share, &share->offering, NUMBER_OFFER, share->offer,
                    (size_t)share->tile_count * sizeof(*share->offer));
    }
}

/* ---- chunks --------------------------------------------------------------------------------- */

/* The sender has it, or it has left the receiver. The sender's chunk ends with the later one of
 * this and its announcement. */
static void acknowledged(xm_op_t *op, xm_status_t status)
{
    slot_t *slot = op->arg;

    slot->ack_busy = false;
    if (status < 0) {
        xm_executor_fail(slot->lane->executor, status);
    }
    if (!slot->op_busy) {
        xm_executor_chunk_ended(slot, status);
    }
}

/* Sends, or waits for, what says that the slot's chunk has been copied. */
static void post_acknowledgement(slot_t *slot)
{
    const lane_t *lane = slot->lane;
    xm_transport_t *transport = lane->executor->transport;
    uint64_t tag = slot->tag | XM_IPC_BITS;
    xm_status_t status;

    slot->ack_busy = true;
    slot->ack.done = acknowledged;
    slot->ack.arg = slot;
    status =
        lane_sends(lane)
            ? xm_transport_receive(transport, lane->peer, tag, &slot->ack_byte, 1, NULL, &slot->ack)
            : xm_transport_send(transport, lane->peer, tag, &slot->ack_byte, 1, NULL, &slot->ack);
    if (status != XM_IN_PROGRESS) {
        acknowledged(&slot->ack, status);
    }
}

static xm_status_t copy_from_peer(slot_t *slot)
{
    const hop_t *hop = slot->hop;
    int64_t first, count;
    xm_strided_copy_t copy;

    chunk_range(hop, slot->chunk, &first, &count);
    xm_view_tile_copy(&hop->peer_view, xm_device_address(hop->peer_tile), &hop->view,
                      xm_device_address(slot->lane->executor->tensors[hop->tensor].dst), first,
                      count, &copy);
    return xm_device_begin(slot, QUEUE_IN, &copy);
}

/* At the sender: the announcement has left, or failed. */
static void announced_to_peer(slot_t *slot, xm_status_t status)
{
    const xm_executor_t *executor = slot->lane->executor;

    if (!slot->ack_busy) {
        xm_executor_chunk_ended(slot, status);
    } else if (status < 0) { /* the receiver never gets it, so it will not acknowledge it */
        xm_executor_fail(slot->lane->executor, status);
        xm_transport_cancel(executor->transport, &slot->ack);
    }
}

/* At the receiver: the device copies the chunk, and ipc_moved() acknowledges it. */
static void announced(xm_op_t *op, xm_status_t status)
{
    slot_t *slot = op->arg;

    slot->op_busy = false;
    if (lane_sends(slot->lane)) {
        announced_to_peer(slot, status);
    } else if (status == XM_OK && slot->lane->executor->result < 0) {
        post_acknowledgement(slot); /* the run has failed: it will not be copied */
    } else {
        XM_THEN(status, copy_from_peer(slot));
        if (status < 0) {
            xm_executor_chunk_ended(slot, status);
        }
    }
}

/* The sender expects the acknowledgement before it announces the chunk, so that its answer never
 * finds nobody. */
static void ipc_post(slot_t *slot)
{
    slot->buffer = &slot->byte;
    slot->length = 1;
    slot->memory = NULL;
    if (lane_sends(slot->lane)) {
        post_acknowledgement(slot);
    }
    if (slot->busy) { /* else that has failed, and with it the run */
        xm_executor_transmit(slot, announced);
    }
}

/* The chunk has been copied. It is acknowledged after a failure too: the peer's tile is not read
 * any more. */
static void ipc_moved(slot_t *slot, xm_status_t status)
{
    xm_executor_t *executor = slot->lane->executor;
    int64_t first, count;

    if (status < 0) {
        xm_executor_fail(executor, xm_device_on_rank(executor, status));
    } else {
        chunk_range(slot->hop, slot->chunk, &first, &count);
        xm_transport_count_copy(
            executor->transport, slot->lane->peer,
            (size_t)(count * executor->tensors[slot->hop->tensor].element_size));
    }
    post_acknowledgement(slot);
}

static bool ipc_ended(slot_t *slot)
{
    (void)slot; /* it has been copied where it belongs */
    return true;
}

/* ---- the end of a run ----------------------------------------------------------------------- */

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
    if (share->closing.busy) {
        xm_transport_cancel(share->lane->executor->transport, &share->closing.op);
    } else if (share->settled && !share->closed && !is_busy(share->lane)) {
        share->closed = true;
        post_signal(share, &share->closing, NUMBER_CLOSE, &share->byte, 1);
    }
}

/* A sender's wait for a close ends with the lane, well or not: it has no other end. */
static void ipc_close(xm_executor_t *executor)
{
    bool failed = executor->result < 0;

    for (int s = 0; s < executor->share_count; ++s) {
        share_t *share = &executor->shares[s];

        if (failed && !lane_sends(share->lane)) {
            close_lane(share);
        }
        if (lane_sends(share->lane) && share->closing.busy && share->lane->in_flight == 0 &&
            (failed || executor->left == 0)) {
            xm_transport_cancel(executor->transport, &share->closing.op);
        }
    }
}

static bool ipc_describe(const xm_executor_t *executor, char *buffer, size_t size)
{
    for (int s = 0; s < executor->share_count; ++s) {
        share_t *share = &executor->shares[s];

        if (!share->settled) {
            (void)snprintf(buffer, size, "waits for rank %d to %s device tiles", share->lane->peer,
                           lane_sends(share->lane) ? "open its" : "offer its");
            return true;
        }
    }
    return false;
}

const carrier_t xm_carrier_ipc = {.create = ipc_create,
                                  .offer = ipc_offer,
                                  .post = ipc_post,
                                  .moved = ipc_moved,
                                  .ended = ipc_ended,
                                  .close = ipc_close,
                                  .describe = ipc_describe,
                                  .destroy = ipc_destroy};
