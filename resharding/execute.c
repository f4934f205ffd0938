#include "resharding/execute_private.h"

#include <stdio.h>

/* What is cancelled after the first failure sets other sentences. */
void xm_executor_fail(xm_executor_t *executor, xm_status_t status)
{
    if (executor->result == XM_OK) {
        executor->result = status;
        xm_executor_give_notice(executor); /* before anybody lets a tile change */
        xm_transport_spend_channel(executor->transport, executor->channel);
        executor->runs_left = executor->runs_left < 0 ? UINT8_MAX : executor->runs_left;
        (void)snprintf(executor->reason, sizeof(executor->reason), "%s", xm_last_error());
    }
}

/* Elements of the hop's box before `end` are in the destination tile: its relays may have them. */
static void arrive(xm_executor_t *executor, hop_t *hop, int64_t end)
{
    hop->arrived = end;
    for (int64_t i = 0; i < hop->dependant_count; ++i) {
        int64_t fed = executor->dependants[hop->dependants + i];
        lane_t *lane = &executor->lanes[executor->hops[fed].lane];

        if (lane->next_item < lane->item_count && lane->items[lane->next_item] == fed) {
            xm_executor_consider(lane);
        }
    }
}

static void tell_tensor_done(xm_executor_t *executor, int tensor)
{
    if (executor->tensor_done != NULL && executor->result == XM_OK) {
        executor->tensor_done(executor->arg, tensor);
    }
}

void xm_executor_end_hop(xm_executor_t *executor, hop_t *hop)
{
    hop->span.end_ns = xm_transport_now(executor->transport);
    --executor->left;
    if (--executor->tensors[hop->tensor].left == 0) {
        tell_tensor_done(executor, hop->tensor);
    }
}

void xm_executor_list_ended(lane_t *lane)
{
    if (!lane->ended) {
        lane->ended = true;
        lane->next = lane->executor->ended;
        lane->executor->ended = lane;
    }
}

/* Nothing of the slot's chunk is under way any more. */
static void free_slot(slot_t *slot, xm_status_t status)
{
    slot->busy = false;
    slot->status = status;
    if (status < 0) {
        xm_executor_fail(slot->lane->executor, status);
    }
    xm_executor_list_ended(slot->lane);
}

/* What the device has to do with a chunk that has come: XM_IN_PROGRESS, nothing (XM_OK), or a
 * failure. */
static xm_status_t take_in(slot_t *slot)
{
    if (slot->lane->executor->result != XM_OK) {
        return XM_OK;
    }
    if (slot->hop->mapped) {
        return xm_executor_copy_from_peer(slot);
    }
    return slot->hop->on_device && slot->packed != NULL ? xm_executor_unpack_on_device(slot)
                                                        : XM_OK;
}

void xm_executor_chunk_done(xm_op_t *op, xm_status_t status)
{
    slot_t *slot = op->arg;

    slot->op_busy = false;
    if (status == XM_OK && !lane_sends(slot->lane)) {
        status = take_in(slot);
        if (status == XM_OK && slot->hop->mapped) {
            xm_executor_post_ack(slot); /* the run has failed: it will not be copied */
            return;
        }
        if (status == XM_IN_PROGRESS) {
            return;
        }
    }
    if (slot->ack_busy) {
        /* The receiver has the announcement, and its acknowledgement ends the chunk; or it never
         * gets it. */
        if (status < 0) {
            xm_executor_fail(slot->lane->executor, status);
            xm_transport_cancel(slot->lane->executor->transport, &slot->ack);
        }
        return;
    }
    free_slot(slot, status);
}

void xm_executor_ack_done(xm_op_t *op, xm_status_t status)
{
    slot_t *slot = op->arg;

    slot->ack_busy = false;
    if (status < 0) {
        xm_executor_fail(slot->lane->executor, status);
    }
    if (!slot->op_busy) {
        free_slot(slot, status);
    }
}

/* One thing less that the hop waits for. Its lane is looked at with those that have ended chunks.
 */
void xm_executor_take_turn(xm_executor_t *executor, hop_t *hop)
{
    if (--hop->turns_left == 0) {
        xm_executor_list_ended(&executor->lanes[hop->lane]);
    }
}

void xm_executor_note_done(xm_op_t *op, xm_status_t status)
{
    note_t *note = op->arg;
    xm_executor_t *executor = note->executor;

    note->busy = false;
    ++executor->steps;
    --executor->signals;
    if (status < 0) {
        xm_executor_fail(executor, status);
    } else if (note->awaited) {
        xm_executor_take_turn(executor, &executor->hops[note->hop]);
    }
}

/* Finds the memory that the slot's chunk is sent from or received into; packs it first if the host
 * does that. */
static void find_memory(const lane_t *lane, slot_t *slot, int64_t first, int64_t count)
{
    const hop_t *hop = slot->hop;
    const tensor_t *tensor = &lane->executor->tensors[hop->tensor];
    bool in_dst = !lane_sends(lane) || hop->feed >= 0;
    char *base = in_dst ? tensor->dst : (char *)(uintptr_t)tensor->src;
    int64_t offset;

    slot->packed = NULL;
    if (hop->mapped || is_direct(hop)) { /* the message only says that the chunk is there */
        slot->memory = NULL;
        slot->buffer = &slot->byte;
        slot->length = 1;
        return;
    }
    if (!hop->staged && xm_view_contiguous(&hop->view, first, count, &offset)) {
        slot->memory = in_dst ? tensor->dst_memory : tensor->src_memory;
        slot->buffer = base + offset;
        return;
    }
    slot->packed = slot->buffer = xm_executor_take_pack_buffer(slot->lane);
    slot->memory = lane->executor->staging.registration;
    if (lane_sends(lane) && !lane->executor->no_copy && !hop->on_device) {
        xm_view_pack(&hop->view, base, first, count, slot->packed);
    }
}

void xm_executor_transmit(slot_t *slot)
{
    const lane_t *lane = slot->lane;
    xm_transport_t *transport = lane->executor->transport;

    slot->op_busy = true;
    slot->status = lane_sends(lane)
                       ? xm_transport_send(transport, lane->peer, slot->tag, slot->buffer,
                                           slot->length, slot->memory, &slot->op)
                       : xm_transport_receive(transport, lane->peer, slot->tag, slot->buffer,
                                              slot->length, slot->memory, &slot->op);
    if (slot->status != XM_IN_PROGRESS) {
        xm_executor_chunk_done(&slot->op, slot->status);
    }
}

/* Posts the next chunk of the lane, which is on top of its heap, into a free slot. */
static void post_chunk(lane_t *lane)
{
    xm_executor_t *executor = lane->executor;
    slot_t *slot = &lane->slots[(lane->oldest + lane->in_flight) % lane->slot_count];
    hop_t *hop = &executor->hops[lane->items[lane->next_item]];
    int64_t first, count;

    xm_executor_take_lane(lane);
    slot->hop = hop;
    slot->chunk = lane->next_chunk;
    chunk_range(hop, slot->chunk, &first, &count);
    slot->tag = xm_executor_tag(executor) | lane->sequence++;
    slot->length = (size_t)(count * executor->tensors[hop->tensor].element_size);
    slot->posted_ns = xm_transport_now(executor->transport);
    slot->copied = 0;
    find_memory(lane, slot, first, count);
    if (slot->chunk == 0) {
        hop->span.start_ns = slot->posted_ns;
    }
    slot->op.order = executor->ordered && lane_sends(lane) ? (uint64_t)slot_message(slot) + 1 : 0;
    ++lane->in_flight;
    ++executor->in_flight;
    executor->crossing += lane->kind == LANE_CROSSING;
    if (++lane->next_chunk == hop->chunks) {
        lane->next_chunk = 0;
        ++lane->next_item;
    }
    slot->busy = true;
    slot->op_busy = slot->ack_busy = slot->copying = false;
    if (lane_sends(lane) && hop->mapped) {
        xm_executor_post_ack(slot);
        if (!slot->busy) {
            return; /* that has failed, and with it the run */
        }
    }
    if (lane_sends(lane) && hop->on_device && slot->packed != NULL) {
        slot->status = xm_executor_pack_on_device(slot);
        if (slot->status < 0) {
            xm_executor_chunk_done(&slot->op, slot->status);
        }
    } else {
        xm_executor_transmit(slot);
    }
    xm_executor_consider(lane);
}

/* The last chunk of the hop has ended here. The sender of a direct one waits for its receiver. */
static void finish_hop(const lane_t *lane, hop_t *hop)
{
    if (is_direct(hop)) {
        xm_executor_finish_direct(lane->executor, hop);
    }
    if (!is_direct(hop) || !lane_sends(lane)) {
        xm_executor_end_hop(lane->executor, hop);
    }
}

static void end_copied_hops(lane_t *lane)
{
    while (lane->copied != NULL) {
        direct_t *direct = lane->copied;

        lane->copied = direct->next;
        if (lane->executor->result == XM_OK) {
            xm_executor_end_hop(lane->executor, direct->hop);
        }
    }
}

/* True when the slot's chunk has been announced, but not been copied. */
static bool must_copy(const lane_t *lane, const slot_t *slot, int64_t count)
{
    return lane->executor->result == XM_OK && !lane_sends(lane) && is_direct(slot->hop) &&
           slot->copied < count;
}

/* Takes finished chunks off the old end of a lane, in order. */
static void retire(lane_t *lane)
{
    xm_executor_t *executor = lane->executor;

    end_copied_hops(lane);
    while (lane->in_flight > 0 && !lane->slots[lane->oldest].busy) {
        slot_t *slot = &lane->slots[lane->oldest];
        hop_t *hop = slot->hop;
        int64_t first, count;

        chunk_range(hop, slot->chunk, &first, &count);
        if (must_copy(lane, slot, count)) {
            xm_executor_queue_copy(lane);
            break;
        }
        if (slot->status == XM_OK && !lane_sends(lane) && slot->packed != NULL && !hop->on_device &&
            !executor->no_copy) {
            xm_view_unpack(&hop->view, executor->tensors[hop->tensor].dst, first, count,
                           slot->packed);
        }
        if (slot->packed != NULL) {
            xm_executor_return_pack_buffer(lane, slot->packed);
        }
        lane->oldest = (lane->oldest + 1) % lane->slot_count;
        --lane->in_flight;
        ++executor->steps;
        --executor->in_flight;
        executor->crossing -= lane->kind == LANE_CROSSING;
        if (executor->result == XM_OK) {
            if (!lane_sends(lane)) {
                arrive(executor, hop, first + count);
            }
            if (executor->notes != NULL) {
                xm_executor_pass_turn(executor, hop, slot->chunk);
            }
            if (slot->chunk + 1 == hop->chunks) {
                finish_hop(lane, hop);
            }
        }
    }
    xm_executor_consider(lane);
}

static void retire_ended(xm_executor_t *executor)
{
    while (executor->ended != NULL) {
        lane_t *lane = executor->ended;

        executor->ended = lane->next;
        lane->ended = false;
        retire(lane);
    }
}

static void post_all(xm_executor_t *executor)
{
    lane_t *lane;

    while (executor->result == XM_OK && xm_executor_device_ready(executor) &&
           (lane = xm_executor_next_lane(executor)) != NULL) {
        post_chunk(lane);
    }
}

/* Cancels what is in flight, each operation once. */
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

            if (slot->busy) {
                xm_transport_cancel(executor->transport, &slot->op);
            }
        }
        if (lane->copies) {
            xm_executor_list_ended(lane); /* what would have been copied next ends here */
        }
    }
    xm_executor_cancel_turns(executor);
    xm_executor_cancel_directs(executor);
    xm_executor_cancel_shares(executor);
}

static void announce_idle_tensors(xm_executor_t *executor)
{
    if (executor->idle_announced) {
        return;
    }
    executor->idle_announced = true;
    for (int t = 0; t < executor->tensor_count; ++t) {
        if (executor->tensors[t].hops == 0) {
            tell_tensor_done(executor, t);
        }
    }
}

static void move_messages(xm_executor_t *executor)
{
    do {
        retire_ended(executor);
        if (executor->result < 0) {
            cancel_all(executor);
        } else {
            post_all(executor);
        }
    } while (executor->ended != NULL);
}

xm_status_t xm_executor_advance(xm_executor_t *executor)
{
    if (!executor->running) {
        return executor->result;
    }
    announce_idle_tensors(executor);
    xm_executor_poll_device(executor);
    move_messages(executor);
    if (executor->result == XM_OK) {
        xm_executor_copy_some(executor);
        if (executor->ended != NULL) {
            move_messages(executor); /* what has been copied is passed on at once */
        }
    }
    if (executor->result < 0) {
        xm_executor_give_notice(executor);
    }
    xm_executor_end_shares(executor);
    if (executor->signals > 0 ||
        (executor->result < 0 ? executor->in_flight > 0 || xm_executor_device_is_busy(executor)
                              : executor->left > 0)) {
        return XM_IN_PROGRESS;
    }
    executor->running = false;
    return executor->result < 0 ? xm_error_set(executor->result, "%s", executor->reason) : XM_OK;
}

bool xm_executor_may_sleep(const xm_executor_t *executor)
{
    if (!executor->running) {
        return true;
    }
    if (executor->ended != NULL || (executor->result < 0 && !executor->canceled)) {
        return false;
    }
    if (xm_executor_device_is_busy(executor)) {
        return false;
    }
    return executor->result < 0 || !xm_executor_has_copies(executor);
}

void xm_executor_cancel(xm_executor_t *executor)
{
    if (executor->running) {
        xm_executor_fail(executor, xm_error_set(XM_ERR_CANCELED, "rank %d: the run was cancelled",
                                                executor->transport->rank));
    }
}

int64_t xm_executor_find_hop(const xm_executor_t *executor, int64_t number)
{
    for (int64_t low = 0, high = executor->hop_count; low < high;) {
        int64_t middle = low + (high - low) / 2;

        if (executor->hops[middle].number == number) {
            return middle;
        }
        if (executor->hops[middle].number < number) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return -1;
}

void xm_executor_span(const xm_executor_t *executor, int64_t hop, xm_span_t *span)
{
    int64_t found = xm_executor_find_hop(executor, hop);

    *span = found >= 0 ? executor->hops[found].span : (xm_span_t){0, 0};
}

uint64_t xm_executor_tag(const xm_executor_t *executor)
{
    return (uint64_t)executor->channel << 40 | (uint64_t)executor->generation << 32;
}

static xm_status_t post(xm_executor_t *executor, bool follows, void *stream)
{
    xm_status_t status;

    if (executor->running) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "the previous run of this executor has not ended");
    }
    if (executor->runs_left == 0) {
        return xm_error_set(XM_ERR_UNSUPPORTED,
                            "channel %d: %d runs ago one has failed, whose messages may still come "
                            "and now meet this run's; destroy this reshard on all ranks and make "
                            "another",
                            executor->channel, UINT8_MAX);
    }
    status = xm_executor_post_device(executor, follows, stream);
    if (status < 0) {
        return status;
    }
    ++executor->generation;
    executor->runs_left -= executor->runs_left > 0;
    ++executor->runs;
    executor->posted = true;
    executor->checksums = 0;
    executor->result = XM_OK;
    executor->running = true;
    executor->canceled = executor->idle_announced = false;
    executor->next_copy = executor->next_copy_element = 0;
    executor->left = executor->hop_count;
    for (int t = 0; t < executor->tensor_count; ++t) {
        executor->tensors[t].left = executor->tensors[t].hops;
    }
    for (int64_t i = 0; i < executor->hop_count; ++i) {
        executor->hops[i].arrived = executor->hops[i].first;
        executor->hops[i].span = (xm_span_t){0, 0};
        executor->hops[i].mapped = false;
    }
    xm_executor_reset_turns(executor);
    xm_executor_start_shares(executor);
    for (int k = 0; k < LANE_KINDS; ++k) {
        executor->heaps[k].count = 0;
    }
    executor->copiers = NULL;
    xm_executor_make_pacts(executor);
    for (int i = 0; i < executor->lane_count; ++i) {
        lane_t *lane = &executor->lanes[i];

        lane->next_item = lane->next_chunk = 0;
        lane->sequence = 0;
        lane->oldest = 0;
        lane->ready = lane->copies = false;
        xm_executor_consider(lane);
    }
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
