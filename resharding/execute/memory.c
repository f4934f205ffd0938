/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The user's buffers: checks them at creation, when a mistake can still be explained, and registers
 * them with the transport once, because that is expensive. Also keeps what may not be freed because
 * a peer that was given up may still touch it.
 */
#include "resharding/execute/execute_private.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

enum {
    PAGE = 4096 /* smallest page of any machine; regions with less between them share pages */
};

/* A buffer of the user's: the bytes of it that this rank's tile needs. */
typedef struct {
    uintptr_t start, end;
    int tensor;
    bool is_dst;
} region_t;

static const char *const side_names[2] = {"source", "destination"};

static xm_status_t check_buffer(const xm_executor_params_t *params, int tensor, bool is_dst,
                                const void *buffer, uint64_t bytes)
{
    const xm_plan_t *plan = params->plan;
    int rank = params->transport->rank;
    uint64_t needed = xm_layout_buffer_bytes(is_dst ? xm_plan_tensor_dst(plan, tensor)
                                                    : xm_plan_tensor_src(plan, tensor),
                                             rank, xm_plan_tensor_element_size(plan, tensor));

    if (bytes < needed) {
        return xm_error_set(
            XM_ERR_BUFFER_TOO_SMALL,
            "rank %d: the %s buffer of tensor %s has %" PRIu64 " bytes, its tile needs %" PRIu64,
            rank, side_names[is_dst], xm_plan_tensor_name(plan, tensor), bytes, needed);
    }
    if (buffer == NULL && needed > 0) {
        return XM_INVALID("rank %d: the %s buffer of tensor %s is NULL, its tile needs %" PRIu64
                          " bytes",
                          rank, side_names[is_dst], xm_plan_tensor_name(plan, tensor), needed);
    }
    return XM_OK;
}

static int compare_regions(const void *left, const void *right)
{
    const region_t *a = left, *b = right;

    XM_ORDER_BY(a->start, b->start);
    XM_ORDER_BY(a->end, b->end);
    XM_ORDER_BY(a->tensor, b->tensor);
    return (int)a->is_dst - (int)b->is_dst;
}

/* Lists the non-empty buffers by address into a malloc'ed array. */
static xm_status_t list_regions(const xm_plan_t *plan, int rank, const xm_tensor_buffers_t *buffers,
                                region_t **regions, int *count)
{
    int tensors = xm_plan_tensors(plan), next = 0;
    region_t *list = malloc((2 * (size_t)tensors + 1) * sizeof(*list));

    XM_NEED_MEMORY(list, "the buffers of %d tensors", tensors);
    for (int t = 0; t < tensors; ++t) {
        int64_t size = xm_plan_tensor_element_size(plan, t);
        uintptr_t src = (uintptr_t)buffers[t].src, dst = (uintptr_t)buffers[t].dst;
        uint64_t src_bytes = xm_layout_buffer_bytes(xm_plan_tensor_src(plan, t), rank, size);
        uint64_t dst_bytes = xm_layout_buffer_bytes(xm_plan_tensor_dst(plan, t), rank, size);

        if (src_bytes > 0) {
            list[next++] = (region_t){src, src + src_bytes, t, false};
        }
        if (dst_bytes > 0) {
            list[next++] = (region_t){dst, dst + dst_bytes, t, true};
        }
    }
    qsort(list, (size_t)next, sizeof(*list), compare_regions);
    *regions = list;
    *count = next;
    return XM_OK;
}

/* Sources may overlap each other, they are only read. `regions` are sorted. */
static xm_status_t check_overlaps(const xm_plan_t *plan, int rank, const region_t *regions,
                                  int count)
{
    const region_t *furthest[2] = {NULL, NULL}; /* of the sources and the destinations so far */

    for (int i = 0; i < count; ++i) {
        const region_t *region = &regions[i];

        for (int side = region->is_dst ? 0 : 1; side < 2; ++side) {
            if (furthest[side] != NULL && furthest[side]->end > region->start) {
                return XM_INVALID(
                    "rank %d: the %s buffer of tensor %s and the %s buffer of tensor %s overlap by "
                    "%" PRIu64 " bytes",
                    rank, side_names[side], xm_plan_tensor_name(plan, furthest[side]->tensor),
                    side_names[region->is_dst], xm_plan_tensor_name(plan, region->tensor),
                    (uint64_t)((furthest[side]->end < region->end ? furthest[side]->end
                                                                  : region->end) -
                               region->start));
            }
        }
        if (furthest[region->is_dst] == NULL || furthest[region->is_dst]->end < region->end) {
            furthest[region->is_dst] = region;
        }
    }
    return XM_OK;
}

xm_status_t xm_executor_check_buffers(const xm_executor_params_t *params,
                                      const xm_tensor_buffers_t *buffers)
{
    int rank = params->transport->rank, count;
    xm_status_t status = XM_OK;
    region_t *regions;

    for (int t = 0; status == XM_OK && t < xm_plan_tensors(params->plan); ++t) {
        status = check_buffer(params, t, false, buffers[t].src, buffers[t].src_bytes);
        XM_THEN(status, check_buffer(params, t, true, buffers[t].dst, buffers[t].dst_bytes));
    }
    XM_THEN(status, list_regions(params->plan, rank, buffers, &regions, &count));
    if (status == XM_OK) {
        status = check_overlaps(params->plan, rank, regions, count);
        free(regions);
    }
    return status;
}

/* Registers regions that overlap, touch or share a page as one. */
static xm_status_t register_regions(xm_executor_t *executor, const region_t *regions, int count)
{
    for (int first = 0, end; first < count; first = end) {
        uintptr_t limit = regions[first].end;
        xm_memory_t *memory;

        for (end = first + 1; end < count && regions[end].start < limit + PAGE; ++end) {
            limit = regions[end].end > limit ? regions[end].end : limit;
        }
        XM_TRY(xm_transport_memory_register(executor->transport, (void *)regions[first].start,
                                            limit - regions[first].start, &memory));
        executor->registrations[executor->registration_count++] = memory;
        for (int i = first; i < end; ++i) {
            tensor_t *tensor = &executor->tensors[regions[i].tensor];

            if (regions[i].is_dst) {
                tensor->dst_memory = memory;
            } else {
                tensor->src_memory = memory;
            }
        }
    }
    return XM_OK;
}

void xm_executor_take_buffers(xm_executor_t *executor, const xm_tensor_buffers_t *buffers)
{
    for (int t = 0; t < executor->tensor_count; ++t) {
        executor->tensors[t].src = buffers[t].src;
        executor->tensors[t].dst = buffers[t].dst;
    }
}

/* Leaves out what the transport cannot reach. */
static int keep_reachable(const xm_executor_t *executor, region_t *regions, int count)
{
    int kept = 0;

    for (int i = 0; i < count; ++i) {
        const tensor_t *tensor = &executor->tensors[regions[i].tensor];

        if (executor->transport->cuda ||
            !(regions[i].is_dst ? tensor->dst_on_device : tensor->src_on_device)) {
            regions[kept++] = regions[i];
        }
    }
    return kept;
}

xm_status_t xm_executor_register_buffers(xm_executor_t *executor,
                                         const xm_tensor_buffers_t *buffers)
{
    region_t *regions;
    int count;
    xm_status_t status;

    if (executor->lane_count == 0) {
        return XM_OK; /* only copies, or nothing */
    }
    XM_TRY(list_regions(executor->plan, executor->transport->rank, buffers, &regions, &count));
    count = keep_reachable(executor, regions, count);
    executor->registrations = malloc(((size_t)count + 1) * sizeof(xm_memory_t *));
    status = executor->registrations != NULL ? register_regions(executor, regions, count)
                                             : XM_NO_MEMORY("registering %d buffers", count);
    free(regions);
    return status;
}

/* After a peer was given up the transport ends the registrations, when it is destroyed. */
void xm_executor_deregister_buffers(xm_executor_t *executor)
{
    for (int i = executor->registration_count; i-- > 0 && !executor->gave_up;) {
        if (executor->registrations[i] != NULL) {
            xm_transport_memory_deregister(executor->transport, executor->registrations[i]);
        }
    }
    free(executor->registrations);
}

/* ---- what a peer may still touch --------------------------------------------------------------
 */

/* What is kept, so that leak checkers find it. */
typedef struct kept {
    struct kept *next;
    void *memory;
} kept_t;

static _Atomic(kept_t *) kept_memory;

void xm_keep_for_ever(void *memory)
{
    kept_t *kept = memory != NULL ? malloc(sizeof(*kept)) : NULL;

    if (kept != NULL) {
        kept->memory = memory;
        kept->next = atomic_load(&kept_memory);
        while (!atomic_compare_exchange_weak(&kept_memory, &kept->next, kept)) {
        }
    }
}

void xm_executor_let_go(const xm_executor_t *executor, void *memory)
{
    if (executor->gave_up) {
        xm_keep_for_ever(memory);
    } else {
        free(memory);
    }
}
