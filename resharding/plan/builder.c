/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan builder: collects what a scheduler decides, which is routes, transfers and
 * chunks. Routes are interned by content, because schedules of millions of hops use few
 * distinct ones, and a transfer then names its route by a number. A builder is one
 * growing object that `auto` can keep or discard whole when it compares schedulers.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "resharding/plan/plan_private.h"

xm_status_t xm_builder_init(xm_builder_t *builder, const xm_plan_t *plan)
{
    memset(builder, 0, sizeof(*builder));
    /* One entry more than needed, so that an empty batch allocates too. */
    builder->chunk_elements =
        malloc(((size_t)plan->task_count + 1) * sizeof(*builder->chunk_elements));
    XM_NEED_MEMORY(builder->chunk_elements, "planning %" PRId64 " unit tasks", plan->task_count);
    /* Chunks begin as whole tasks; whoever limits them only makes them shorter. */
    for (int64_t t = 0; t < plan->task_count; ++t) {
        builder->chunk_elements[t] = plan->tasks[t].elements;
    }
    return XM_OK;
}

void xm_builder_clear(xm_builder_t *builder)
{
    for (int r = 0; r < builder->route_count; ++r) {
        free((int *)(uintptr_t)builder->routes[r].ranks);
    }
    free(builder->first_hop);
    free(builder->chunk_elements);
    xm_index_clear(&builder->route_index);
    free(builder->routes);
    free(builder->transfers);
    memset(builder, 0, sizeof(*builder));
}

/* Copies the route into one allocation, at `ranks`, which the builder owns. The place is
 * made before the route is entered, so a failure leaves the builder as it was. */
static xm_status_t add_route(xm_builder_t *builder, int count, const int *ranks, const int *parents)
{
    size_t bytes = (size_t)count * sizeof(int);
    int *copy = malloc(2 * bytes);

    if (copy == NULL ||
        !XM_ARRAY_ROOM(builder->routes, builder->route_room, builder->route_count)) {
        free(copy);
        return XM_NO_MEMORY("a route of %d ranks", count);
    }
    memcpy(copy, ranks, bytes);
    memcpy(copy + count, parents, bytes);
    builder->routes[builder->route_count++] = (xm_route_t){count, copy, copy + count};
    return XM_OK;
}

/* Routes are found by content. */
xm_status_t xm_builder_route(xm_builder_t *builder, int count, const int *ranks, const int *parents,
                             int *route)
{
    uint64_t hash = xm_hash_list(xm_hash_list(0, ranks, count), parents, count);
    int64_t at;

    for (size_t step = 0; (at = xm_index_next(&builder->route_index, hash, &step)) >= 0;) {
        const xm_route_t *known = &builder->routes[at];

        if (known->count == count &&
            memcmp(known->ranks, ranks, (size_t)count * sizeof(int)) == 0 &&
            memcmp(known->parents, parents, (size_t)count * sizeof(int)) == 0) {
            *route = (int)at;
            return XM_OK;
        }
    }
    XM_TRY(add_route(builder, count, ranks, parents));
    *route = builder->route_count - 1;
    XM_NEED_MEMORY(xm_index_enter(&builder->route_index, hash, *route), "%d routes",
                   builder->route_count);
    return XM_OK;
}

/* Appends a transfer; its index stays valid, its address does not. */
xm_status_t xm_builder_append(xm_builder_t *builder, const xm_transfer_t *transfer, int64_t *index)
{
    XM_NEED_MEMORY(
        XM_ARRAY_ROOM(builder->transfers, builder->transfer_room, builder->transfer_count),
        "more than %" PRId64 " transfers", builder->transfer_count);
    if (index != NULL) {
        *index = builder->transfer_count;
    }
    builder->transfers[builder->transfer_count++] = *transfer;
    return XM_OK;
}

/* Numbers the hops by transfer, then by place in the route. It runs once, when all
 * transfers are there, as routes may be added until then. */
xm_status_t xm_builder_number_hops(xm_builder_t *builder)
{
    int64_t next = 0;

    builder->first_hop =
        malloc(((size_t)builder->transfer_count + 1) * sizeof(*builder->first_hop));
    XM_NEED_MEMORY(builder->first_hop, "numbering the hops of %" PRId64 " transfers",
                   builder->transfer_count);
    for (int64_t i = 0; i < builder->transfer_count; ++i) {
        builder->first_hop[i] = next;
        next += xm_builder_route_of(builder, &builder->transfers[i])->count;
    }
    builder->first_hop[builder->transfer_count] = next;
    return XM_OK;
}
