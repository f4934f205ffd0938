/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The digest of a plan: a hash of everything that decides which bytes move where. Ranks
 * compare it to know that they made the same plan, so it must not depend on the machine,
 * on addresses or on anything that does not decide (names, times, the scheduler's own
 * name).
 */
#include "resharding/plan/plan_private.h"

#include <stdio.h>
#include <xxhash.h>

/* Numbers enter the hash as 8 little-endian bytes, so that every machine computes the same digest.
 */
static void put(XXH3_state_t *state, int64_t value)
{
    unsigned char bytes[8];

    for (int i = 0; i < 8; ++i) {
        bytes[i] = (unsigned char)((uint64_t)value >> (8 * i));
    }
    (void)XXH3_128bits_update(state, bytes, sizeof(bytes));
}

/* Hashes a layout by what it does, cut points and tile of each rank, and not by how it
 * was described: two specs that cut and place alike give the same digest. */
static void put_layout(XXH3_state_t *state, const xm_layout_t *layout)
{
    const xm_mesh_t *mesh = xm_layout_mesh(layout);

    put(state, xm_layout_dims(layout));
    for (int d = 0; d < xm_layout_dims(layout); ++d) {
        put(state, xm_layout_shape(layout)[d]);
        put(state, xm_layout_parts(layout, d));
        for (int p = 0; p <= xm_layout_parts(layout, d); ++p) {
            put(state, xm_layout_cuts(layout, d)[p]);
        }
    }
    put(state, xm_mesh_size(mesh));
    for (int p = 0; p < xm_mesh_size(mesh); ++p) {
        put(state, xm_mesh_rank(mesh, p));
        put(state, xm_layout_tile_at(layout, p));
    }
}

/* Lists are preceded by a length or are as long as an earlier number says, so different
 * plans never feed the same bytes. */
xm_status_t xm_plan_hash(xm_plan_t *plan)
{
    XXH3_state_t *state = XXH3_createState();
    XXH128_hash_t hash;

    if (state == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the digest of a plan");
    }
    (void)XXH3_128bits_reset(state);
    put(state, plan->tensor_count);
    for (int i = 0; i < plan->tensor_count; ++i) {
        put(state, plan->tensors[i].element_size);
        put_layout(state, plan->tensors[i].src);
        put_layout(state, plan->tensors[i].dst);
    }
    for (int64_t t = 0; t < plan->task_count; ++t) {
        put(state, plan->builder.chunk_elements[t]);
    }
    for (int r = 0; r < plan->builder.route_count; ++r) {
        const xm_route_t *route = &plan->builder.routes[r];

        put(state, route->count);
        for (int i = 0; i < route->count; ++i) {
            put(state, route->ranks[i]);
            put(state, route->parents[i]);
        }
    }
    for (int64_t i = 0; i < plan->builder.transfer_count; ++i) {
        const xm_transfer_t *transfer = &plan->builder.transfers[i];

        put(state, transfer->task);
        put(state, transfer->parent);
        put(state, transfer->first);
        put(state, transfer->end);
        put(state, transfer->sender);
        put(state, transfer->route);
    }
    for (int64_t i = 0; i < plan->kept_count; ++i) {
        put(state, plan->kept[i].task);
        put(state, plan->kept[i].first);
        put(state, plan->kept[i].end);
        put(state, plan->kept[i].route);
    }
    hash = XXH3_128bits_digest(state);
    (void)XXH3_freeState(state);
    (void)snprintf(plan->digest, sizeof(plan->digest), "%016llx%016llx",
                   (unsigned long long)hash.high64, (unsigned long long)hash.low64);
    return XM_OK;
}
