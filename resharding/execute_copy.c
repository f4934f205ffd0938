/* What a rank copies itself: chunks of direct hops out of a neighbour's memory, and what it both
 * holds and needs. */
#include "resharding/execute_private.h"

enum {
    COPY_SLICE = 1024 * 1024,       /* bytes copied between two looks at the network */
    STREAM_LEAST = 16 * 1024 * 1024 /* when a run copies so much, its beginning has left a core's
                                       share of the caches by its end */
};

void xm_executor_choose_copy(xm_executor_t *executor)
{
    int64_t bytes = 0;

    for (int64_t i = 0; i < executor->hop_count; ++i) {
        const hop_t *hop = &executor->hops[i];

        if (hop->lane < 0 || (hop->direct != NULL && !lane_sends(&executor->lanes[hop->lane]))) {
            bytes += (hop->end - hop->first) * executor->tensors[hop->tensor].element_size;
        }
    }
    executor->copy = bytes >= STREAM_LEAST ? xm_view_stream : xm_view_copy;
}

/* Elements of that size that the budget is good for: at least one. */
static int64_t affordable(int64_t budget, int64_t element_size)
{
    return (budget + element_size - 1) / element_size;
}

void xm_executor_queue_copy(lane_t *lane)
{
    if (!lane->copies) {
        lane->copies = true;
        lane->next_copy = lane->executor->copiers;
        lane->executor->copiers = lane;
    }
}

/* The link to the lane whose chunk comes first in the plan. */
static lane_t **earliest_copier(xm_executor_t *executor)
{
    lane_t **found = &executor->copiers;

    for (lane_t **link = &(*found)->next_copy; *link != NULL; link = &(*link)->next_copy) {
        if (slot_message(&(*link)->slots[(*link)->oldest]) <
            slot_message(&(*found)->slots[(*found)->oldest])) {
            found = link;
        }
    }
    return found;
}

/* Copies from the lane's oldest chunk; *ended when nothing of it is left. */
static int64_t copy_chunk(lane_t *lane, int64_t budget, bool *ended)
{
    slot_t *slot = &lane->slots[lane->oldest];
    const hop_t *hop = slot->hop;
    const tensor_t *tensor = &lane->executor->tensors[hop->tensor];
    int64_t first, count, part;

    chunk_range(hop, slot->chunk, &first, &count);
    part = min_of(count - slot->copied, affordable(budget, tensor->element_size));
    lane->executor->copy(&hop->direct->view, hop->direct->from, &hop->view, tensor->dst,
                         first + slot->copied, part);
    slot->copied += part;
    *ended = slot->copied == count;
    if (*ended) {
        xm_transport_count_copy(lane->executor->transport, lane->peer,
                                (size_t)(count * tensor->element_size));
    }
    return part * tensor->element_size;
}

static int64_t copy_direct(xm_executor_t *executor, int64_t budget)
{
    while (budget > 0 && executor->copiers != NULL) {
        lane_t **link = earliest_copier(executor), *lane = *link;
        bool ended;
        xm_status_t status;

        budget -= copy_chunk(lane, budget, &ended);
        ++executor->steps;
        status = xm_executor_check_notice(lane);
        if (status < 0) {
            xm_executor_fail(executor, status);
            return 0;
        }
        if (ended) {
            *link = lane->next_copy;
            lane->copies = false;
            xm_executor_list_ended(lane);
        }
    }
    return budget;
}

static void copy_local(xm_executor_t *executor, int64_t budget)
{
    while (budget > 0 && executor->next_copy < executor->copy_count) {
        hop_t *hop = &executor->hops[executor->copies[executor->next_copy]];
        const tensor_t *tensor = &executor->tensors[hop->tensor];
        int64_t first = hop->first + executor->next_copy_element, left = hop->end - first;
        int64_t count = min_of(left, affordable(budget, tensor->element_size));

        if (executor->next_copy_element == 0) {
            hop->span.start_ns = xm_transport_now(executor->transport);
        }
        if (!executor->no_copy) {
            executor->copy(&executor->copy_views[executor->next_copy], tensor->src, &hop->view,
                           tensor->dst, first, count);
        }
        executor->next_copy_element += count;
        ++executor->steps;
        budget -= count * tensor->element_size;
        if (count == left) {
            ++executor->next_copy;
            executor->next_copy_element = 0;
            xm_executor_end_hop(executor, hop);
        }
    }
}

/* Others wait for the end of direct hops, nobody for that of local copies. */
void xm_executor_copy_some(xm_executor_t *executor)
{
    copy_local(executor, copy_direct(executor, COPY_SLICE));
}

bool xm_executor_has_copies(const xm_executor_t *executor)
{
    return executor->copiers != NULL || executor->next_copy < executor->copy_count;
}
