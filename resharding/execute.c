#include "resharding/execute_private.h"

/* Bytes of local copies between two looks at the network. */
enum { COPY_SLICE = 1024 * 1024 };

static int64_t min2(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void chunk_range(const xm_executor_t *executor, const local_t *local, int64_t chunk,
                        int64_t *first, int64_t *count)
{
    int64_t tasks, size = xm_plan_chunk_elements(executor->plan, local->task);
    int64_t elements = xm_plan_tasks(executor->plan, &tasks)[local->task].elements;

    *first = chunk * size;
    *count = min2(size, elements - *first);
}

static void fail(xm_executor_t *executor, xm_status_t status)
{
    if (executor->result == XM_OK) {
        executor->result = status;
    }
}

/* Posts the lane's next chunk into a free slot. */
static void post_chunk(lane_t *lane)
{
    xm_executor_t *executor = lane->executor;
    int64_t element_size = xm_plan_element_size(executor->plan), first, count, offset;
    slot_t *slot = &lane->slots[(lane->oldest + lane->in_flight) % lane->slot_count];
    local_t *local = &executor->locals[lane->items[lane->next_item]];
    bool in_dst = !lane->outgoing || local->from_dst;
    char *base = in_dst ? executor->dst : (char *)(uintptr_t)executor->src;
    xm_memory_t *memory = in_dst ? executor->dst_memory : executor->src_memory;
    uint64_t tag =
        (uint64_t)executor->channel << 40 | (uint64_t)executor->generation << 32 | lane->sequence++;
    char *buffer;

    chunk_range(executor, local, lane->next_chunk, &first, &count);
    slot->local = local;
    slot->chunk = lane->next_chunk;
    slot->packed = !xm_view_contiguous(&local->view, first, count, &offset);
    buffer = base + offset;
    if (slot->packed) {
        buffer = slot->ring;
        memory = lane->ring_memory;
        if (lane->outgoing) {
            xm_view_pack(&local->view, base, first, count, slot->ring);
        }
    }
    if (lane->next_chunk == local->first_chunk) {
        local->span.start_ns = xm_transport_now(executor->transport);
    }
    slot->busy = true;
    slot->canceled = false;
    slot->status = lane->outgoing
                       ? xm_transport_send(executor->transport, lane->peer, tag, buffer,
                                           (size_t)(count * element_size), memory, &slot->op)
                       : xm_transport_receive(executor->transport, lane->peer, tag, buffer,
                                              (size_t)(count * element_size), memory, &slot->op);
    if (slot->status != XM_IN_PROGRESS) {
        slot->busy = false;
    }
    ++lane->in_flight;
    executor->crossing += lane->outgoing && local->crosses;
    if (++lane->next_chunk == local->end_chunk && ++lane->next_item < lane->item_count) {
        lane->next_chunk = executor->locals[lane->items[lane->next_item]].first_chunk;
    }
}

/* Takes finished chunks off the old end of a lane, in order. */
static bool retire(lane_t *lane)
{
    xm_executor_t *executor = lane->executor;
    bool any = false;

    while (lane->in_flight > 0 && !lane->slots[lane->oldest].busy) {
        slot_t *slot = &lane->slots[lane->oldest];
        local_t *local = slot->local;
        int64_t first, count;

        if (slot->status < 0) {
            fail(executor, slot->status);
        } else if (!lane->outgoing) {
            chunk_range(executor, local, slot->chunk, &first, &count);
            if (slot->packed) {
                xm_view_unpack(&local->view, executor->dst, first, count, slot->ring);
            }
            local->arrived = slot->chunk + 1;
        }
        if (slot->chunk + 1 == local->end_chunk) {
            local->span.end_ns = xm_transport_now(executor->transport);
        }
        executor->crossing -= lane->outgoing && local->crosses;
        lane->oldest = (lane->oldest + 1) % lane->slot_count;
        --lane->in_flight;
        any = true;
    }
    return any;
}

/* Whether the lane's next chunk may be posted now. */
static bool is_ready(const lane_t *lane)
{
    const xm_executor_t *executor = lane->executor;
    const local_t *local;

    if (lane->next_item == lane->item_count || lane->in_flight == lane->slot_count) {
        return false;
    }
    if (!lane->outgoing) {
        return true;
    }
    local = &executor->locals[lane->items[lane->next_item]];
    if (local->crosses && executor->crossing >= executor->window) {
        return false;
    }
    return local->parent < 0 || executor->locals[local->parent].arrived > lane->next_chunk;
}

/* The ready outgoing lane whose next transfer comes first in the plan. */
static lane_t *first_ready(xm_executor_t *executor)
{
    lane_t *best = NULL;

    for (int i = 0; i < executor->lane_count; ++i) {
        lane_t *lane = &executor->lanes[i];

        if (lane->outgoing && is_ready(lane) &&
            (best == NULL || lane->items[lane->next_item] < best->items[best->next_item])) {
            best = lane;
        }
    }
    return best;
}

/* Copies at most COPY_SLICE bytes of what this rank holds and needs itself. */
static bool copy_some(xm_executor_t *executor)
{
    int64_t budget = COPY_SLICE / xm_plan_element_size(executor->plan), tasks;
    const xm_unit_task_t *task = xm_plan_tasks(executor->plan, &tasks);
    bool any = false;

    while (budget > 0 && executor->next_copy < executor->copy_count) {
        local_t *local = &executor->locals[executor->copies[executor->next_copy]];
        int64_t left = task[local->task].elements - executor->next_copy_element;
        int64_t count = min2(left, budget);

        if (executor->next_copy_element == 0) {
            local->span.start_ns = xm_transport_now(executor->transport);
        }
        xm_view_copy(&executor->copy_views[executor->next_copy], executor->src, &local->view,
                     executor->dst, executor->next_copy_element, count);
        executor->next_copy_element += count;
        budget -= count;
        any = true;
        if (count == left) {
            local->span.end_ns = xm_transport_now(executor->transport);
            local->arrived = local->end_chunk;
            ++executor->next_copy;
            executor->next_copy_element = 0;
        }
    }
    return any;
}

/* Cancels what is in flight, each operation once; true when some ended right away. */
static bool cancel_all(xm_executor_t *executor)
{
    bool any = false;

    for (int i = 0; i < executor->lane_count; ++i) {
        lane_t *lane = &executor->lanes[i];

        for (int s = 0; s < lane->in_flight; ++s) {
            slot_t *slot = &lane->slots[(lane->oldest + s) % lane->slot_count];

            if (slot->busy && !slot->canceled) {
                slot->canceled = true;
                xm_transport_cancel(executor->transport, &slot->op);
                any = any || !slot->busy;
            }
        }
    }
    return any;
}

/* True when nothing is in flight and, unless the run failed, nothing is left to do. */
static bool has_ended(const xm_executor_t *executor)
{
    for (int i = 0; i < executor->lane_count; ++i) {
        const lane_t *lane = &executor->lanes[i];

        if (lane->in_flight > 0 ||
            (executor->result == XM_OK && lane->next_item < lane->item_count)) {
            return false;
        }
    }
    return executor->result < 0 || executor->next_copy == executor->copy_count;
}

xm_status_t xm_executor_advance(xm_executor_t *executor)
{
    bool any = true;

    if (!executor->running) {
        return executor->result;
    }
    while (any) {
        lane_t *lane;

        any = false;
        for (int i = 0; i < executor->lane_count; ++i) {
            any = retire(&executor->lanes[i]) || any;
        }
        if (executor->result < 0) {
            any = cancel_all(executor) || any;
            continue;
        }
        for (int i = 0; i < executor->lane_count; ++i) {
            while (!executor->lanes[i].outgoing && is_ready(&executor->lanes[i])) {
                post_chunk(&executor->lanes[i]);
                any = true;
            }
        }
        while ((lane = first_ready(executor)) != NULL) {
            post_chunk(lane);
            any = true;
        }
    }
    if (executor->result == XM_OK) {
        (void)copy_some(executor);
    }
    if (!has_ended(executor)) {
        return XM_IN_PROGRESS;
    }
    executor->running = false;
    return executor->result;
}

bool xm_executor_may_sleep(const xm_executor_t *executor)
{
    if (!executor->running || executor->result < 0) {
        return true;
    }
    for (int i = 0; i < executor->lane_count; ++i) {
        if (is_ready(&executor->lanes[i])) {
            return false; /* a copy has just ended that this lane relays */
        }
    }
    return executor->next_copy == executor->copy_count;
}

void xm_executor_cancel(xm_executor_t *executor)
{
    if (executor->running) {
        fail(executor, XM_ERR_CANCELED);
    }
}

void xm_executor_span(const xm_executor_t *executor, int64_t transfer, xm_span_t *span)
{
    *span = (xm_span_t){0, 0};
    for (int64_t low = 0, high = executor->local_count; low < high;) {
        int64_t middle = low + (high - low) / 2;

        if (executor->locals[middle].transfer == transfer) {
            *span = executor->locals[middle].span;
            return;
        }
        if (executor->locals[middle].transfer < transfer) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
}

xm_status_t xm_executor_post(xm_executor_t *executor)
{
    if (executor->running) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "the previous run of this executor has not ended");
    }
    ++executor->generation;
    executor->result = XM_OK;
    executor->running = true;
    executor->next_copy = executor->next_copy_element = 0;
    for (int64_t i = 0; i < executor->local_count; ++i) {
        executor->locals[i].arrived = executor->locals[i].first_chunk;
        executor->locals[i].span = (xm_span_t){0, 0};
    }
    for (int i = 0; i < executor->lane_count; ++i) {
        lane_t *lane = &executor->lanes[i];

        lane->next_item = 0;
        lane->next_chunk = executor->locals[lane->items[0]].first_chunk;
        lane->sequence = 0;
        lane->oldest = lane->in_flight = 0;
    }
    return XM_OK;
}
