/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-pairs resharding costs of the tensors on one mesh, computed a row at a time when first asked
 * for. Most tensors of a model have one of a few shapes, and a search asks for the same pair again
 * and again; a row costs one run of the shortest path (planner/cost/reshard.c).
 */

#include "planner/cost/reshard_memo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

typedef struct entry {
    ap_shape_t shape;
    double bytes;
    int count;
    ap_spec_t *specs;
    int *slot; /* hash table: 1 + the index of a spec, at the first free slot from its hash on */
    uint64_t mask; /* slots - 1: a power of two, at least half of which are free */
    double **rows; /* [partial][spec], each a cost per target; NULL until asked for */
} entry_t;

struct ap_reshard_memo {
    const ap_cost_mesh_t *mesh;
    xm_arena_t arena; /* what the entries point at */
    int count;
    size_t capacity;
    entry_t *entries;
};

/* Specs are built axis by axis, each on all that the axes before made, so replicated comes first
 * and the order is fixed. Every intermediate cut must divide, too. */
int ap_specs_enumerate(const ap_cost_mesh_t *mesh, const ap_shape_t *shape, ap_spec_t *specs)
{
    int count = 1;

    specs[0] = AP_SPEC_REPLICATED;
    for (int a = 0; a < ap_cost_mesh_rank(mesh); ++a) {
        int before = count;

        if (ap_cost_mesh_size(mesh, a) == 1) {
            continue;
        }
        for (int d = 0; d < shape->rank; ++d) {
            for (int s = 0; s < before; ++s) {
                unsigned axes = ap_spec_axes(specs[s], d) | 1U << a;

                if (ap_cost_mesh_cuts(mesh, shape->dims[d], axes)) {
                    specs[count++] = ap_spec_with(specs[s], d, axes);
                }
            }
        }
    }
    return count;
}

xm_status_t ap_reshard_memo_create(const ap_cost_mesh_t *mesh, ap_reshard_memo_t **memo)
{
    ap_reshard_memo_t *made = calloc(1, sizeof(*made));

    XM_NEED_MEMORY(made, "resharding costs");
    made->mesh = mesh;
    *memo = made;
    return XM_OK;
}

/* Equal to the bit: bytes come from shapes by the same arithmetic. */
static bool matches(const entry_t *entry, const ap_shape_t *shape, double bytes)
{
    return entry->bytes <= bytes && entry->bytes >= bytes && ap_shape_equal(&entry->shape, shape);
}

/* The slot of a spec, or the free one where it would go. */
static int *slot_of(const entry_t *entry, ap_spec_t spec)
{
    uint64_t at = xm_hash_spread(spec);

    while (entry->slot[at & entry->mask] != 0 &&
           entry->specs[entry->slot[at & entry->mask] - 1] != spec) {
        ++at;
    }
    return &entry->slot[at & entry->mask];
}

static int find_spec(const entry_t *entry, ap_spec_t spec)
{
    return *slot_of(entry, spec) - 1;
}

xm_status_t ap_reshard_memo_tensor(ap_reshard_memo_t *memo, const ap_shape_t *shape, double bytes,
                                   int *tensor)
{
    ap_spec_t specs[AP_MAX_SPECS];
    entry_t made = {.shape = *shape, .bytes = bytes};

    for (int e = 0; e < memo->count; ++e) {
        if (matches(&memo->entries[e], shape, bytes)) {
            *tensor = e;
            return XM_OK;
        }
    }
    if (!xm_array_reserve(&memo->entries, &memo->capacity, (size_t)memo->count + 1,
                          sizeof(*memo->entries))) {
        return XM_NO_MEMORY("resharding costs");
    }
    made.count = ap_specs_enumerate(memo->mesh, shape, specs);
    made.specs = xm_arena_take(&memo->arena, (size_t)made.count * sizeof(*made.specs));
    made.rows =
        xm_arena_get(&memo->arena, (size_t)made.count << AP_MAX_MESH_RANK, sizeof(*made.rows));
    made.mask = 1;
    while (made.mask < 2 * (uint64_t)made.count) {
        made.mask = 2 * made.mask + 1;
    }
    made.slot = xm_arena_get(&memo->arena, made.mask + 1, sizeof(*made.slot));
    XM_NEED_MEMORY(!memo->arena.failed, "resharding costs");
    memcpy(made.specs, specs, (size_t)made.count * sizeof(*specs));
    for (int s = 0; s < made.count; ++s) {
        *slot_of(&made, specs[s]) = s + 1;
    }
    *tensor = memo->count;
    memo->entries[memo->count++] = made;
    return XM_OK;
}

static const double *row_of(ap_reshard_memo_t *memo, entry_t *entry, int source, unsigned partial);

/* Lowers a row by what it costs to reduce over `partial`, from the axis `axis` on: each is
 * reduce-scattered into a dimension of which it becomes the minor-most axis, or all-reduced with
 * the others that are. Just so strategies end in their operators (planner/cost/strategy.c). */
static void reduce(ap_reshard_memo_t *memo, entry_t *entry, ap_spec_t from, unsigned partial,
                   unsigned together, double cost, int axis, double *row)
{
    double bytes = ap_cost_mesh_local_bytes(memo->mesh, &entry->shape, entry->bytes, from);

    while (axis < ap_cost_mesh_rank(memo->mesh) && (partial >> axis & 1U) == 0) {
        ++axis;
    }
    if (axis == ap_cost_mesh_rank(memo->mesh)) {
        const double *on = row_of(memo, entry, find_spec(entry, from), 0);

        cost += ap_cost_collective_over(memo->mesh, AP_ALL_REDUCE, together, bytes);
        for (int t = 0; t < entry->count && on != NULL; ++t) {
            row[t] = fmin(row[t], cost + on[t]);
        }
        return;
    }
    reduce(memo, entry, from, partial, together | 1U << axis, cost, axis + 1, row);
    for (int d = 0; d < entry->shape.rank; ++d) {
        ap_spec_t scattered = ap_spec_with(from, d, ap_spec_axes(from, d) | 1U << axis);

        if (ap_spec_axes(from, d) >> axis == 0 && find_spec(entry, scattered) >= 0) {
            reduce(memo, entry, scattered, partial, together,
                   cost + ap_cost_collective(memo->mesh, AP_REDUCE_SCATTER, axis, bytes), axis + 1,
                   row);
        }
    }
}

/* The costs from a spec, with a sum that is partial over a set of axes, to every spec. NULL instead
 * of an error: the search then takes it for infinite and avoids the edge, which is right even if
 * memory is only short for a moment. */
static const double *row_of(ap_reshard_memo_t *memo, entry_t *entry, int source, unsigned partial)
{
    double **row = &entry->rows[partial * (unsigned)entry->count + (unsigned)source];

    if (*row == NULL) {
        *row = xm_arena_take(&memo->arena, (size_t)entry->count * sizeof(double));
        for (int t = 0; t < entry->count && *row != NULL; ++t) {
            (*row)[t] = HUGE_VAL;
        }
        if (*row != NULL && partial == 0) {
            ap_cost_reshard_many(memo->mesh, &entry->shape, entry->bytes, entry->specs[source],
                                 entry->specs, entry->count, *row);
        } else if (*row != NULL) {
            reduce(memo, entry, entry->specs[source], partial, 0, 0, 0, *row);
        }
    }
    return *row;
}

double ap_reshard_memo_reduce(ap_reshard_memo_t *memo, int tensor, ap_spec_t from, unsigned partial,
                              ap_spec_t to)
{
    entry_t *entry = &memo->entries[tensor];
    int source = find_spec(entry, from), target = find_spec(entry, to);
    const double *row = source < 0 || target < 0 ? NULL : row_of(memo, entry, source, partial);

    return row == NULL ? AP_COST_INFINITE : row[target];
}

double ap_reshard_memo_cost(ap_reshard_memo_t *memo, int tensor, ap_spec_t from, ap_spec_t to)
{
    return from == to ? 0 : ap_reshard_memo_reduce(memo, tensor, from, 0, to);
}

void ap_reshard_memo_destroy(ap_reshard_memo_t *memo)
{
    if (memo == NULL) {
        return;
    }
    xm_arena_clear(&memo->arena);
    free(memo->entries);
    free(memo);
}
