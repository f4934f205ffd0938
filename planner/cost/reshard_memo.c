/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-pairs resharding costs of the tensors on one mesh, computed a row at a time when first asked
 * for. Most tensors of a model have one of a few shapes, and a search asks for the same pair again
 * and again; a row costs one run of the shortest path (planner/cost/reshard.c).
 */

#include "planner/cost/reshard_memo.h"

#include <stdlib.h>
#include <string.h>

typedef struct entry {
    ap_shape_t shape;
    double bytes;
    int count;
    ap_spec_t *specs;
    double **rows; /* NULL until asked for */
} entry_t;

struct ap_reshard_memo {
    const ap_cost_mesh_t *mesh;
    int count, capacity;
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

    if (made == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for resharding costs");
    }
    made->mesh = mesh;
    *memo = made;
    return XM_OK;
}

/* Equal to the bit: bytes come from shapes by the same arithmetic. */
static bool matches(const entry_t *entry, const ap_shape_t *shape, double bytes)
{
    return entry->bytes <= bytes && entry->bytes >= bytes && entry->shape.rank == shape->rank &&
           memcmp(entry->shape.dims, shape->dims, (size_t)shape->rank * sizeof(shape->dims[0])) ==
               0;
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
    if (memo->count == memo->capacity) {
        int wanted = memo->capacity == 0 ? 8 : 2 * memo->capacity;
        entry_t *grown = realloc(memo->entries, (size_t)wanted * sizeof(*grown));

        if (grown == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "no memory for resharding costs");
        }
        memo->entries = grown;
        memo->capacity = wanted;
    }
    made.count = ap_specs_enumerate(memo->mesh, shape, specs);
    made.specs = malloc((size_t)made.count * sizeof(*made.specs));
    made.rows = calloc((size_t)made.count, sizeof(*made.rows));
    if (made.specs == NULL || made.rows == NULL) {
        free(made.specs);
        free(made.rows);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for resharding costs");
    }
    memcpy(made.specs, specs, (size_t)made.count * sizeof(*specs));
    *tensor = memo->count;
    memo->entries[memo->count++] = made;
    return XM_OK;
}

static int find_spec(const entry_t *entry, ap_spec_t spec)
{
    for (int s = 0; s < entry->count; ++s) {
        if (entry->specs[s] == spec) {
            return s;
        }
    }
    return -1;
}

double ap_reshard_memo_cost(ap_reshard_memo_t *memo, int tensor, ap_spec_t from, ap_spec_t to)
{
    entry_t *entry = &memo->entries[tensor];
    int source, target;

    if (from == to) {
        return 0;
    }
    source = find_spec(entry, from);
    target = find_spec(entry, to);
    if (source < 0 || target < 0) {
        return AP_COST_INFINITE;
    }
    if (entry->rows[source] == NULL) {
        entry->rows[source] = malloc((size_t)entry->count * sizeof(double));
        /* Infinite instead of an error: the search then avoids this edge, which is right even if
         * memory is only short for a moment. */
        if (entry->rows[source] == NULL) {
            return AP_COST_INFINITE;
        }
        ap_cost_reshard_many(memo->mesh, &entry->shape, entry->bytes, from, entry->specs,
                             entry->count, entry->rows[source]);
    }
    return entry->rows[source][target];
}

/* Axes are taken in ascending order, as specs have them, so an axis can be scattered only while no
 * higher one cuts that dimension. Scattering comes first, so that all-reduces see fewer bytes. */
double ap_reshard_memo_reduce(ap_reshard_memo_t *memo, int tensor, ap_spec_t from, unsigned partial,
                              ap_spec_t to)
{
    const entry_t *entry = &memo->entries[tensor];
    double cost = 0, bytes;

    for (int a = 0; a < ap_cost_mesh_rank(memo->mesh); ++a) {
        if ((partial >> a & 1U) == 0) {
            continue;
        }
        for (int d = 0; d < entry->shape.rank && (partial >> a & 1U) != 0; ++d) {
            ap_spec_t scattered = ap_spec_with(from, d, ap_spec_axes(from, d) | 1U << a);

            if ((ap_spec_axes(to, d) >> a & 1U) == 0 || ap_spec_axes(from, d) >> a != 0 ||
                find_spec(entry, scattered) < 0) {
                continue;
            }
            bytes = entry->bytes / ap_cost_mesh_devices(memo->mesh, ap_spec_used_axes(from));
            cost += ap_cost_collective(memo->mesh, AP_REDUCE_SCATTER, a, bytes);
            from = scattered;
            partial &= ~(1U << a);
        }
    }
    bytes = entry->bytes / ap_cost_mesh_devices(memo->mesh, ap_spec_used_axes(from));
    for (int a = 0; a < ap_cost_mesh_rank(memo->mesh); ++a) {
        if ((partial >> a & 1U) != 0) {
            cost += ap_cost_collective(memo->mesh, AP_ALL_REDUCE, a, bytes);
        }
    }
    return cost + ap_reshard_memo_cost(memo, tensor, from, to);
}

void ap_reshard_memo_destroy(ap_reshard_memo_t *memo)
{
    if (memo == NULL) {
        return;
    }
    for (int e = 0; e < memo->count; ++e) {
        for (int s = 0; s < memo->entries[e].count; ++s) {
            free(memo->entries[e].rows[s]);
        }
        free(memo->entries[e].rows);
        free(memo->entries[e].specs);
    }
    free(memo->entries);
    free(memo);
}
