/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core of an executor: which chunk is posted when, and what follows from its end. How a chunk
 * gets from one tile to the other is its carrier's task (resharding/execute/carrier.h), whether a
 * hop may begin the gate's (resharding/execute/turns.h), which lane goes next the order's
 * (resharding/execute/order.c).
 *
 * A lane moves through its hops chunk by chunk. A chunk is posted into a slot, ends there in its
 * own time, and is retired when it and all before it in the lane have ended: so what arrives is
 * known by one number per hop, and relays, turns and the user hear of it in order. Callbacks only
 * note what has happened (resharding/execute/run.c); all that follows happens in
 * xm_executor_advance(), which goes on until nothing more follows. A run has no phases: it runs
 * until every hop is over, and once it has failed, until nothing is in flight.
 */
#include "resharding/execute/carrier.h"
#include "resharding/execute/carrier/device.h"
#include "resharding/execute/checksum.h"
#include "resharding/execute/turns.h"

enum { COPY_SLICE = 1024 * 1024 }; /* bytes copied between two looks at the network */

/* Elements of the hop's box before `end` are in the destination tile: its relays may have them. */
static void arrive(xm_executor_t *executor, hop_t *hop, int64_t end)
{
    hop->arrived = end;
    for (int64_t i = 0; i < hop->dependant_count; ++i) {
        int64_t fed = executor->dependants[hop->dependants + i];
        lane_t *lane = &executor->lanes[executor->hops[fed].lane];

        /* A lane that is at another hop now asks for this one's chunks when it comes to it. */
        if (lane->next_item < lane->item_count && lane->items[lane->next_item] == fed) {
            xm_executor_consider(lane);
        }
    }
}

/*
 * Posts the next chunk of the lane, which is on top of its heap, into a free slot. All that is
 * counted is counted before the carrier has it, because the chunk may end within the post. Then the
 * lane is considered again, with the chunk after this one.
 */
static void post_chunk(lane_t *lane)
{
    xm_executor_t *executor = lane->executor;
    slot_t *slot = &lane->slots[(lane->oldest + lane->in_flight) % lane->slot_count];
    hop_t *hop = &executor->hops[lane->items[lane->next_item]];

    xm_executor_take_lane(lane);
    slot->hop = hop;
    slot->chunk = lane->next_chunk;
    slot->packed = NULL;
    slot->tag = xm_executor_tag(executor) | lane->sequence++;
    slot->posted_ns = xm_transport_now(executor->transport);
    if (slot->chunk == 0) {
        hop->span.start_ns = slot->posted_ns;
    }
    slot->op.order = executor->ordered && lane_sends(lane) ? (uint64_t)slot_message(slot) + 1 : 0;
    slot->busy = true;
    slot->op_busy = slot->ack_busy = slot->moved = false;
    ++lane->in_flight;
    ++executor->in_flight;
    executor->crossing += lane->kind == LANE_CROSSING;
    if (++lane->next_chunk == hop->chunks) {
        lane->next_chunk = 0;
        ++lane->next_item;
    }
    hop->carrier->post(slot);
    xm_executor_consider(lane);
}

/* A chunk has ended well, as have all before it in its lane: those who waited for it hear of it,
 * relays first, because they have others waiting for them. */
static void follow_up(const lane_t *lane, hop_t *hop, int64_t chunk, int64_t posted_ns)
{
    xm_executor_t *executor = lane->executor;
    int64_t first, count;

    if (!lane_sends(lane)) {
        chunk_range(hop, chunk, &first, &count);
        arrive(executor, hop, first + count);
    }
    if (executor->turns != NULL) {
        xm_turns_moved(executor->turns, hop, chunk);
    }
    if (executor->chunk_ran != NULL) {
        executor->chunk_ran(executor->arg, hop->transfer,
                            (int)(hop->number - xm_plan_first_hop(executor->plan, hop->transfer)),
                            chunk, (xm_span_t){posted_ns, xm_transport_now(executor->transport)});
    }
    if (chunk + 1 == hop->chunks && (hop->carrier->finish == NULL || hop->carrier->finish(hop))) {
        xm_executor_end_hop(executor, hop);
    }
}

/* Hops whose carrier needed more than the end of their chunks, and now has it. */
static void end_finished_hops(lane_t *lane)
{
    while (lane->finished != NULL) {
        hop_t *hop = lane->finished;

        lane->finished = hop->next_finished;
        if (lane->executor->result == XM_OK) {
            xm_executor_end_hop(lane->executor, hop);
        }
    }
}

/*
 * Takes finished chunks off the old end of a lane, in order. After a failure too: slots and pack
 * buffers are given back until nothing is in flight, but nobody is told any more. A carrier that is
 * not done with a chunk has the lane looked at again.
 */
static void retire(lane_t *lane)
{
    xm_executor_t *executor = lane->executor;

    end_finished_hops(lane);
    while (lane->in_flight > 0 && !lane->slots[lane->oldest].busy) {
        slot_t *slot = &lane->slots[lane->oldest];

        if (!slot->hop->carrier->ended(slot)) {
            break;
        }
        lane->oldest = (lane->oldest + 1) % lane->slot_count;
        --lane->in_flight;
        ++executor->steps;
        --executor->in_flight;
        lane->moved -= slot->moved;
        executor->crossing -= lane->kind == LANE_CROSSING && !slot->moved;
        if (executor->result == XM_OK) {
            follow_up(lane, slot->hop, slot->chunk, slot->posted_ns);
        }
    }
    xm_executor_consider(lane);
}

/* What retiring one lane brings about may list others, or the same one again: goes on until none
 * is left. */
static void retire_ended(xm_executor_t *executor)
{
    while (executor->revisits != NULL) {
        lane_t *lane = executor->revisits;

        executor->revisits = lane->next;
        lane->revisited = false;
        retire(lane);
    }
}

/* A post may end at once and fail the run: that is looked at before each. */
static void post_all(xm_executor_t *executor)
{
    lane_t *lane;

    while (executor->result == XM_OK && xm_device_ready(executor) &&
           (lane = xm_executor_next_lane(executor)) != NULL) {
        post_chunk(lane);
    }
}

/*
 * Cancels what is in flight, each operation once: a cancelled one ends by itself, now or in a later
 * progress call, as a failed one does, so there is no state of "being cancelled" to keep. Chunks
 * that are with the device, and acknowledgements, are left alone: they end without our help, and a
 * tile may not be let go before they have.
 */
static void cancel_all(xm_executor_t *executor)
{
    if (executor->canceled) {
        return;
    }
    executor->canceled = true;
    for (int i = 0; i < executor->lane_count; ++i) {
        lane_t *lane = &executor->lanes[i];

        for (int s = 0; s < lane->in_flight; ++s) {
            slot_t *slot = &lane->slots[(lane->oldest + s) % lane->slot_count];

            if (slot->op_busy) {
                xm_transport_cancel(executor->transport, &slot->op);
            }
        }
        if (executor->verify == XM_VERIFY_CHUNK) {
            xm_prover_cancel(&lane->prover);
        }
    }
    for (int c = 0; c < CARRIERS; ++c) {
        if (executor->carriers[c]->cancel != NULL) {
            executor->carriers[c]->cancel(executor);
        }
    }
    xm_signals_cancel(executor);
}

/* At the first advance, not at the post, because the user's callback may only be called here. */
static void announce_idle_tensors(xm_executor_t *executor)
{
    if (executor->idle_announced) {
        return;
    }
    executor->idle_announced = true;
    for (int t = 0; t < executor->tensor_count; ++t) {
        if (executor->tensors[t].hops == 0) {
            xm_executor_tell_tensor_done(executor, t);
        }
    }
}

/* Retiring frees what posts wait for, and posts may end at once: in turn, until both are done. */
static void move_messages(xm_executor_t *executor)
{
    do {
        retire_ended(executor);
        if (executor->result < 0) {
            cancel_all(executor);
        } else {
            post_all(executor);
        }
    } while (executor->revisits != NULL);
}

/* What this rank copies itself, until it is time to look at the network again. Carriers share one
 * budget, the earlier in the table first. */
static void move_data(xm_executor_t *executor)
{
    int64_t budget = COPY_SLICE;

    for (int c = 0; c < CARRIERS; ++c) {
        if (executor->carriers[c]->move != NULL) {
            budget = executor->carriers[c]->move(executor, budget);
        }
    }
    if (executor->revisits != NULL) {
        move_messages(executor); /* what has been copied is passed on at once */
    }
}

/* A run that ends with a comparison of all tiles goes on until that has ended. */
static xm_status_t advance_check(xm_executor_t *executor)
{
    xm_status_t status = executor->result < 0
                             ? xm_error_set(executor->result, "%s", executor->reason)
                             : xm_checksum_advance(executor->check);
    xm_error_t error;

    if (status == XM_IN_PROGRESS) {
        return status;
    }
    if (status < 0) {
        xm_executor_fail(executor, status);
    }
    xm_error_save(&error, status);
    executor->running = false;
    xm_checksum_destroy(executor->check);
    executor->check = NULL;
    return xm_error_restore(&error);
}

static xm_status_t begin_check(xm_executor_t *executor)
{
    xm_status_t status = xm_checksum_create(executor, &executor->check);

    if (status < 0) {
        xm_executor_fail(executor, status);
        return status;
    }
    executor->running = true;
    return advance_check(executor);
}

xm_status_t xm_executor_advance(xm_executor_t *executor)
{
    if (!executor->running) {
        return executor->result;
    }
    if (executor->check != NULL) {
        return advance_check(executor);
    }
    announce_idle_tensors(executor);
    xm_device_poll(executor);
    move_messages(executor);
    move_data(executor);
    for (int c = 0; c < CARRIERS; ++c) {
        if (executor->carriers[c]->close != NULL) {
            executor->carriers[c]->close(executor);
        }
    }
    /* A run that succeeds is over with its last hop, one that fails when nothing can touch the
     * user's memory any more; neither before its signals, whose tags belong to it. */
    if (executor->signals != NULL ||
        (executor->result < 0 ? executor->in_flight > 0 || xm_executor_is_busy(executor)
                              : executor->left > 0)) {
        return XM_IN_PROGRESS;
    }
    executor->running = false;
    if (executor->result < 0) {
        return xm_error_set(executor->result, "%s", executor->reason);
    }
    return executor->verify == XM_VERIFY_RUN ? begin_check(executor) : XM_OK;
}

bool xm_executor_is_busy(const xm_executor_t *executor)
{
    bool busy = xm_device_is_busy(executor);

    for (int c = 0; c < CARRIERS && !busy; ++c) {
        busy = executor->carriers[c]->busy != NULL && executor->carriers[c]->busy(executor);
    }
    return busy;
}

bool xm_executor_may_sleep(const xm_executor_t *executor)
{
    if (executor->running && executor->check != NULL) {
        return executor->result == XM_OK && xm_checksum_may_sleep(executor->check);
    }
    return !executor->running ||
           (executor->revisits == NULL && (executor->result == XM_OK || executor->canceled) &&
            !xm_executor_is_busy(executor));
}

void xm_executor_cancel(xm_executor_t *executor)
{
    if (executor->running) {
        xm_executor_fail(executor, xm_error_set(XM_ERR_CANCELED, "rank %d: the run was cancelled",
                                                executor->transport->rank));
    }
}

void xm_executor_span(const xm_executor_t *executor, int64_t hop, xm_span_t *span)
{
    int64_t found = xm_executor_find_hop(executor, hop);

    *span = found >= 0 ? executor->hops[found].span : (xm_span_t){0, 0};
}

/* Forgets what the previous run has left. */
static void reset(xm_executor_t *executor)
{
    executor->checksums = 0;
    executor->result = XM_OK;
    executor->canceled = executor->idle_announced = false;
    executor->left = executor->hop_count;
    for (int t = 0; t < executor->tensor_count; ++t) {
        executor->tensors[t].left = executor->tensors[t].hops;
    }
    xm_forwards_start(executor);
    for (int64_t i = 0; i < executor->hop_count; ++i) {
        hop_t *hop = &executor->hops[i];

        hop->arrived = hop->first;
        hop->span = (xm_span_t){0, 0};
        hop->carrier = executor->carriers[hop->lane < 0 ? CARRIER_COPY : CARRIER_MESSAGE];
    }
    for (int k = 0; k < LANE_KINDS; ++k) {
        executor->heaps[k].count = 0;
    }
    for (int i = 0; i < executor->lane_count; ++i) {
        lane_t *lane = &executor->lanes[i];

        lane->next_item = lane->next_chunk = 0;
        lane->sequence = 0;
        lane->oldest = lane->unsettled = lane->moved = 0;
        lane->ready = false;
        lane->finished = NULL;
    }
}

/* The lane's next chunk need not wait until this one has been proved. */
static void chunk_moved(xm_op_t *op)
{
    slot_t *slot = op->arg;
    lane_t *lane = slot->lane;

    slot->moved = true;
    ++lane->moved;
    lane->executor->crossing -= lane->kind == LANE_CROSSING;
    xm_executor_revisit(lane);
}

static void begin_proofs(xm_executor_t *executor)
{
    uint64_t run = xm_executor_tag(executor);

    for (int l = 0; l < executor->lane_count && executor->verify == XM_VERIFY_CHUNK; ++l) {
        lane_t *lane = &executor->lanes[l];

        xm_prover_begin(&lane->prover, executor->transport, lane->peer, lane_sends(lane),
                        run | XM_HASH_BITS, run | XM_ANSWER_BITS, chunk_moved);
    }
}

/* Everything is reset before the first carrier offers: a signal may end at once. */
static void start(xm_executor_t *executor)
{
    reset(executor);
    ++executor->generation;
    executor->runs_left -= executor->runs_left > 0;
    ++executor->runs;
    executor->posted = executor->running = true;
    executor->began_ns = xm_transport_now(executor->transport);
    begin_proofs(executor);
    if (executor->turns != NULL) {
        xm_turns_start(executor->turns, executor->changes == NULL || executor->changes->in_turns);
    }
    for (int c = 0; c < CARRIERS; ++c) {
        if (executor->carriers[c]->offer != NULL) {
            executor->carriers[c]->offer(executor);
        }
    }
    for (int i = 0; i < executor->lane_count; ++i) {
        xm_executor_consider(&executor->lanes[i]);
    }
}

static xm_status_t post(xm_executor_t *executor, bool follows, void *stream)
{
    if (executor->running) {
        return XM_INVALID("the previous run of this executor has not ended");
    }
    if (executor->runs_left == 0) {
        return XM_UNSUPPORTED(
            "channel %d: %d runs ago one has failed, whose messages may still come and now meet "
            "this run's; destroy this reshard on all ranks and make another",
            executor->channel, UINT8_MAX);
    }
    XM_TRY(xm_device_start(executor, follows, stream));
    start(executor);
    return XM_OK;
}

xm_status_t xm_executor_post(xm_executor_t *executor)
{
    return post(executor, false, NULL);
}

xm_status_t xm_executor_post_after(xm_executor_t *executor, void *stream)
{
    return post(executor, true, stream);
}
