/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which lane's chunk goes next. A lane is ready when its next chunk is here, has a free slot and
 * may begin (resharding/execute/turns.h); what is missing announces itself, so a lane is considered
 * only when something of it has changed. Ready lanes stand in heaps, the earliest in the plan's
 * order on top. Limits that lanes share, on chunks that leave the host and on pack buffers, are
 * asked at the top only: a later chunk never goes before an earlier one of its kind that such a
 * limit holds back. There is a heap for each kind of lane because each kind has other limits.
 */
#include "resharding/execute/carrier.h"
#include "resharding/execute/turns.h"

static int64_t next_message(const lane_t *lane)
{
    const hop_t *hop = &lane->executor->hops[lane->items[lane->next_item]];

    return hop->message + lane->next_chunk * hop->stride;
}

/* A lane's key does not change while it is in the heap: its next chunk is posted only from there.
 */
static void heap_push(heap_t *heap, lane_t *lane)
{
    int64_t key = next_message(lane);
    int i = heap->count++;

    while (i > 0 && key < next_message(heap->lanes[(i - 1) / 2])) {
        heap->lanes[i] = heap->lanes[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap->lanes[i] = lane;
    lane->ready = true;
}

static void heap_pop(heap_t *heap)
{
    lane_t *last = heap->lanes[--heap->count];
    int64_t key;
    int i = 0;

    heap->lanes[0]->ready = false;
    if (heap->count == 0) {
        return;
    }
    key = next_message(last);
    for (;;) {
        int child = 2 * i + 1;

        if (child + 1 < heap->count &&
            next_message(heap->lanes[child + 1]) < next_message(heap->lanes[child])) {
            ++child;
        }
        if (child >= heap->count || next_message(heap->lanes[child]) >= key) {
            break;
        }
        heap->lanes[i] = heap->lanes[child];
        i = child;
    }
    heap->lanes[i] = last;
}

void xm_executor_take_lane(lane_t *lane)
{
    heap_pop(&lane->executor->heaps[lane->kind]);
}

bool xm_executor_has_window(const lane_t *lane)
{
    return lane->in_flight < lane->slot_count &&
           (!lane_sends(lane) || lane->in_flight - lane->moved < lane->executor->window);
}

void xm_executor_consider(lane_t *lane)
{
    xm_executor_t *executor = lane->executor;
    hop_t *hop;
    int64_t first, count;

    if (executor->result != XM_OK || lane->ready || lane->next_item == lane->item_count ||
        !xm_executor_has_window(lane) || lane->unsettled > 0) {
        return; /* after a failure nothing new may be posted, turns neither */
    }
    hop = &executor->hops[lane->items[lane->next_item]];
    chunk_range(hop, lane->next_chunk, &first, &count);
    if (hop->forward != NULL && !lane_sends(lane) && !xm_forward_has_room(hop, lane->next_chunk)) {
        return;
    }
    if (executor->turns != NULL && !xm_turns_may_begin(executor->turns, hop)) {
        return;
    }
    if (hop->feed < 0 || executor->hops[hop->feed].arrived >= first + count) {
        heap_push(&lane->executor->heaps[lane->kind], lane);
    }
}

/* Place of the lane's oldest unfinished chunk in the order of messages; INT64_MAX: none is left. */
static int64_t oldest_message(const lane_t *lane)
{
    if (lane->in_flight > 0) {
        return slot_message(&lane->slots[lane->oldest]);
    }
    return lane->next_item < lane->item_count ? next_message(lane) : INT64_MAX;
}

/* True when the lane's next chunk is the earliest unfinished one of this rank in its direction. */
static bool is_earliest(const lane_t *lane)
{
    const xm_executor_t *executor = lane->executor;
    int64_t message = next_message(lane);

    if (lane->in_flight > 0) {
        return false;
    }
    for (int i = 0; i < executor->lane_count; ++i) {
        const lane_t *other = &executor->lanes[i];

        if (lane_sends(other) == lane_sends(lane) && oldest_message(other) < message) {
            return false;
        }
    }
    return true;
}

/*
 * Whether the limit on chunks that leave this host at once lets the lane's next one go. Later ones
 * that went ahead do not count: the network may wait for this one before it serves them.
 */
static bool may_cross(const lane_t *lane)
{
    const xm_executor_t *executor = lane->executor;
    int64_t message = next_message(lane);
    int earlier = 0;

    if (executor->crossing < executor->window) {
        return true;
    }
    for (int i = 0; i < executor->lane_count; ++i) {
        const lane_t *other = &executor->lanes[i];

        for (int s = 0; other->kind == LANE_CROSSING && s < other->in_flight; ++s) {
            const slot_t *slot = &other->slots[(other->oldest + s) % other->slot_count];

            if (slot_message(slot) > message) {
                break;
            }
            earlier += !slot->moved;
            if (earlier == executor->window) {
                return false;
            }
        }
    }
    return true;
}

/* Whether the lane may take a pack buffer: a free one, or its direction's reserve. */
static bool has_pack_buffer(const lane_t *lane)
{
    const staging_t *staging = &lane->executor->staging;

    if (lane->packed == staging->per_lane) {
        return false;
    }
    return staging->free_count > 0 ||
           (!staging->reserve_taken[lane_sends(lane)] && is_earliest(lane));
}

/* Whether the shared limits let the lane's next chunk go. */
static bool may_post(const lane_t *lane)
{
    const hop_t *hop = &lane->executor->hops[lane->items[lane->next_item]];
    int64_t first, count, offset;

    if (lane->kind == LANE_CROSSING && !may_cross(lane)) {
        return false;
    }
    if (!hop->packs || !hop->carrier->packs) {
        return true;
    }
    chunk_range(hop, lane->next_chunk, &first, &count);
    return (!hop->staged && xm_view_contiguous(&hop->view, first, count, &offset)) ||
           has_pack_buffer(lane);
}

/* The lane of a kind whose next chunk comes first in the plan, if it may go now. */
static lane_t *first_of(const xm_executor_t *executor, lane_kind_t kind)
{
    const heap_t *heap = &executor->heaps[kind];

    return heap->count > 0 && may_post(heap->lanes[0]) ? heap->lanes[0] : NULL;
}

lane_t *xm_executor_next_lane(const xm_executor_t *executor)
{
    lane_t *crossing, *inside, *incoming = first_of(executor, LANE_INCOMING);

    if (incoming != NULL) {
        return incoming;
    }
    crossing = first_of(executor, LANE_CROSSING);
    inside = first_of(executor, LANE_OUTGOING);
    if (crossing == NULL || inside == NULL) {
        return crossing != NULL ? crossing : inside;
    }
    return next_message(crossing) < next_message(inside) ? crossing : inside;
}
