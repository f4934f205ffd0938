#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "resharding/plan/plan_private.h"

enum { FIRST_TABLE = 64 };

xm_status_t xm_draft_init(xm_draft_t *draft, const xm_plan_t *plan)
{
    memset(draft, 0, sizeof(*draft));
    /* One entry more than needed, so that an empty batch allocates too. */
    draft->chunk_elements = malloc(((size_t)plan->task_count + 1) * sizeof(*draft->chunk_elements));
    draft->route_table = calloc(FIRST_TABLE, sizeof(*draft->route_table));
    if (draft->chunk_elements == NULL || draft->route_table == NULL) {
        xm_draft_clear(draft);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory to plan %" PRId64 " unit tasks",
                            plan->task_count);
    }
    draft->route_table_size = FIRST_TABLE;
    for (int64_t t = 0; t < plan->task_count; ++t) {
        draft->chunk_elements[t] = plan->tasks[t].elements;
    }
    return XM_OK;
}

void xm_draft_clear(xm_draft_t *draft)
{
    for (int r = 0; r < draft->route_count; ++r) {
        free((int *)(uintptr_t)draft->routes[r].ranks);
    }
    free(draft->first_hop);
    free(draft->chunk_elements);
    free(draft->route_table);
    free(draft->routes);
    free(draft->transfers);
    memset(draft, 0, sizeof(*draft));
}

static uint64_t mix(uint64_t hash, int value)
{
    return (hash ^ (uint32_t)value) * UINT64_C(0x100000001b3);
}

static uint64_t hash_route(int count, const int *ranks, const int *parents)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (int i = 0; i < count; ++i) {
        hash = mix(mix(hash, ranks[i]), parents[i]);
    }
    return hash ^ hash >> 29;
}

/* Doubles the table and enters all routes anew. */
static xm_status_t grow_table(xm_draft_t *draft)
{
    int size = draft->route_table_size * 2;
    int *table = calloc((size_t)size, sizeof(*table));

    if (table == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d routes", size);
    }
    for (int r = 0; r < draft->route_count; ++r) {
        const xm_route_t *route = &draft->routes[r];
        uint64_t at = hash_route(route->count, route->ranks, route->parents) & (uint64_t)(size - 1);

        while (table[at] != 0) {
            at = (at + 1) & (uint64_t)(size - 1);
        }
        table[at] = r + 1;
    }
    free(draft->route_table);
    draft->route_table = table;
    draft->route_table_size = size;
    return XM_OK;
}

static xm_status_t add_route(xm_draft_t *draft, int count, const int *ranks, const int *parents)
{
    size_t bytes = (size_t)count * sizeof(int);
    int *copy = malloc(2 * bytes);

    if (draft->route_count == draft->route_capacity) {
        int grown = draft->route_capacity > 0 ? draft->route_capacity * 2 : 16;
        xm_route_t *routes = realloc(draft->routes, (size_t)grown * sizeof(*routes));

        if (routes == NULL) {
            free(copy);
            return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d routes", grown);
        }
        draft->routes = routes;
        draft->route_capacity = grown;
    }
    if (copy == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a route of %d ranks", count);
    }
    memcpy(copy, ranks, bytes);
    memcpy(copy + count, parents, bytes);
    draft->routes[draft->route_count++] = (xm_route_t){count, copy, copy + count};
    return XM_OK;
}

xm_status_t xm_draft_route(xm_draft_t *draft, int count, const int *ranks, const int *parents,
                           int *route)
{
    uint64_t mask, at;
    xm_status_t status;

    if (draft->route_count * 2 >= draft->route_table_size) {
        status = grow_table(draft);
        if (status < 0) {
            return status;
        }
    }
    mask = (uint64_t)(draft->route_table_size - 1);
    for (at = hash_route(count, ranks, parents) & mask; draft->route_table[at] != 0;
         at = (at + 1) & mask) {
        const xm_route_t *known = &draft->routes[draft->route_table[at] - 1];

        if (known->count == count &&
            memcmp(known->ranks, ranks, (size_t)count * sizeof(int)) == 0 &&
            memcmp(known->parents, parents, (size_t)count * sizeof(int)) == 0) {
            *route = draft->route_table[at] - 1;
            return XM_OK;
        }
    }
    status = add_route(draft, count, ranks, parents);
    if (status == XM_OK) {
        draft->route_table[at] = draft->route_count;
        *route = draft->route_count - 1;
    }
    return status;
}

xm_status_t xm_draft_append(xm_draft_t *draft, const xm_transfer_t *transfer, int64_t *index)
{
    if (draft->transfer_count == draft->transfer_capacity) {
        int64_t grown = draft->transfer_capacity > 0 ? draft->transfer_capacity * 2 : 64;
        xm_transfer_t *transfers = realloc(draft->transfers, (size_t)grown * sizeof(*transfers));

        if (transfers == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %" PRId64 " transfers", grown);
        }
        draft->transfers = transfers;
        draft->transfer_capacity = grown;
    }
    if (index != NULL) {
        *index = draft->transfer_count;
    }
    draft->transfers[draft->transfer_count++] = *transfer;
    return XM_OK;
}

xm_status_t xm_draft_number_hops(xm_draft_t *draft)
{
    int64_t next = 0;

    draft->first_hop = malloc(((size_t)draft->transfer_count + 1) * sizeof(*draft->first_hop));
    if (draft->first_hop == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY,
                            "no memory to number the hops of %" PRId64 " transfers",
                            draft->transfer_count);
    }
    for (int64_t i = 0; i < draft->transfer_count; ++i) {
        draft->first_hop[i] = next;
        next += xm_draft_route_of(draft, &draft->transfers[i])->count;
    }
    draft->first_hop[draft->transfer_count] = next;
    return XM_OK;
}
