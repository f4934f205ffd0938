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

enum { FIRST_TABLE = 64 };

xm_status_t xm_builder_init(xm_builder_t *builder, const xm_plan_t *plan)
{
    memset(builder, 0, sizeof(*builder));
    /* One entry more than needed, so that an empty batch allocates too. */
    builder->chunk_elements =
        malloc(((size_t)plan->task_count + 1) * sizeof(*builder->chunk_elements));
    builder->route_table = calloc(FIRST_TABLE, sizeof(*builder->route_table));
    if (builder->chunk_elements == NULL || builder->route_table == NULL) {
        xm_builder_clear(builder);
        return XM_NO_MEMORY("planning %" PRId64 " unit tasks", plan->task_count);
    }
    builder->route_table_size = FIRST_TABLE;
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
    free(builder->route_table);
    free(builder->routes);
    free(builder->transfers);
    memset(builder, 0, sizeof(*builder));
}

/* The FNV-1a step, on ints. */
static uint64_t mix(uint64_t hash, int value)
{
    return (hash ^ (uint32_t)value) * UINT64_C(0x100000001b3);
}

/* The high bits are folded in at the end, as the table's place comes from the low ones. */
static uint64_t hash_route(int count, const int *ranks, const int *parents)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (int i = 0; i < count; ++i) {
        hash = mix(mix(hash, ranks[i]), parents[i]);
    }
    return hash ^ hash >> 29;
}

/* Doubles the table and enters all routes anew. */
static xm_status_t grow_table(xm_builder_t *builder)
{
    int size = builder->route_table_size * 2;
    int *table = calloc((size_t)size, sizeof(*table));

    XM_NEED_MEMORY(table, "%d routes", size);
    for (int r = 0; r < builder->route_count; ++r) {
        const xm_route_t *route = &builder->routes[r];
        uint64_t at = hash_route(route->count, route->ranks, route->parents) & (uint64_t)(size - 1);

        while (table[at] != 0) {
            at = (at + 1) & (uint64_t)(size - 1);
        }
        table[at] = r + 1;
    }
    free(builder->route_table);
    builder->route_table = table;
    builder->route_table_size = size;
    return XM_OK;
}

/* Copies the route into one allocation, at `ranks`, which the builder owns. The place is
 * made before the route is entered, so a failure leaves the builder as it was. */
static xm_status_t add_route(xm_builder_t *builder, int count, const int *ranks, const int *parents)
{
    size_t bytes = (size_t)count * sizeof(int);
    int *copy = malloc(2 * bytes);

    if (copy == NULL ||
        !xm_array_reserve(&builder->routes, &builder->route_room, (size_t)builder->route_count + 1,
                          sizeof(*builder->routes))) {
        free(copy);
        return XM_NO_MEMORY("a route of %d ranks", count);
    }
    memcpy(copy, ranks, bytes);
    memcpy(copy + count, parents, bytes);
    builder->routes[builder->route_count++] = (xm_route_t){count, copy, copy + count};
    return XM_OK;
}

/* The table is at most half full, so the search meets an empty place when the route is
 * new. */
xm_status_t xm_builder_route(xm_builder_t *builder, int count, const int *ranks, const int *parents,
                             int *route)
{
    uint64_t mask, at;

    if (builder->route_count * 2 >= builder->route_table_size) {
        XM_TRY(grow_table(builder));
    }
    mask = (uint64_t)(builder->route_table_size - 1);
    for (at = hash_route(count, ranks, parents) & mask; builder->route_table[at] != 0;
         at = (at + 1) & mask) {
        const xm_route_t *known = &builder->routes[builder->route_table[at] - 1];

        if (known->count == count &&
            memcmp(known->ranks, ranks, (size_t)count * sizeof(int)) == 0 &&
            memcmp(known->parents, parents, (size_t)count * sizeof(int)) == 0) {
            *route = builder->route_table[at] - 1;
            return XM_OK;
        }
    }
    XM_TRY(add_route(builder, count, ranks, parents));
    builder->route_table[at] = builder->route_count;
    *route = builder->route_count - 1;
    return XM_OK;
}

/* Appends a transfer; its index stays valid, its address does not. */
xm_status_t xm_builder_append(xm_builder_t *builder, const xm_transfer_t *transfer, int64_t *index)
{
    XM_NEED_MEMORY(xm_array_reserve(&builder->transfers, &builder->transfer_room,
                                    (size_t)builder->transfer_count + 1,
                                    sizeof(*builder->transfers)),
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
