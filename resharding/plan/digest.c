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

#include "comm/base.h"

/* Numbers on their way into the hash, many at a time. */
typedef struct {
    XXH3_state_t *state;
    size_t used;
    unsigned char bytes[4096];
} sink_t;

static void flush(sink_t *sink)
{
    (void)XXH3_128bits_update(sink->state, sink->bytes, sink->used);
    sink->used = 0;
}

/* Numbers enter the hash as 8 little-endian bytes, so that every machine computes the same digest.
 */
static void put(sink_t *sink, int64_t value)
{
    if (sink->used == sizeof(sink->bytes)) {
        flush(sink);
    }
    xm_put_le(sink->bytes + sink->used, (uint64_t)value, 8);
    sink->used += 8;
}

/* Hashes a layout by what it does, cut points and tile of each rank, and not by how it
 * was described: two specs that cut and place alike give the same digest. */
static void put_layout(sink_t *sink, const xm_layout_t *layout)
{
    const xm_mesh_t *mesh = xm_layout_mesh(layout);

    put(sink, xm_layout_dims(layout));
    for (int d = 0; d < xm_layout_dims(layout); ++d) {
        put(sink, xm_layout_shape(layout)[d]);
        put(sink, xm_layout_parts(layout, d));
        for (int p = 0; p <= xm_layout_parts(layout, d); ++p) {
            put(sink, xm_layout_cuts(layout, d)[p]);
        }
    }
    put(sink, xm_mesh_size(mesh));
    for (int p = 0; p < xm_mesh_size(mesh); ++p) {
        put(sink, xm_mesh_rank(mesh, p));
        put(sink, xm_layout_tile_at(layout, p));
    }
}

/* Lists are preceded by a length or are as long as an earlier number says, so different
 * plans never feed the same bytes. */
xm_status_t xm_plan_hash(xm_plan_t *plan)
{
    sink_t all = {.state = XXH3_createState()}, *sink = &all;
    XXH128_hash_t hash;

    if (sink->state == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the digest of a plan");
    }
    (void)XXH3_128bits_reset(sink->state);
    put(sink, plan->tensor_count);
    for (int i = 0; i < plan->tensor_count; ++i) {
        put(sink, plan->tensors[i].element_size);
        put_layout(sink, plan->tensors[i].src);
        put_layout(sink, plan->tensors[i].dst);
    }
    for (int64_t t = 0; t < plan->task_count; ++t) {
        put(sink, plan->builder.chunk_elements[t]);
    }
    for (int r = 0; r < plan->builder.route_count; ++r) {
        const xm_route_t *route = &plan->builder.routes[r];

        put(sink, route->count);
        for (int i = 0; i < route->count; ++i) {
            put(sink, route->ranks[i]);
            put(sink, route->parents[i]);
        }
    }
    for (int64_t i = 0; i < plan->builder.transfer_count; ++i) {
        const xm_transfer_t *transfer = &plan->builder.transfers[i];

        put(sink, transfer->task);
        put(sink, transfer->parent);
        put(sink, transfer->first);
        put(sink, transfer->end);
        put(sink, transfer->sender);
        put(sink, transfer->route);
    }
    for (int64_t i = 0; i < plan->kept_count; ++i) {
        put(sink, plan->kept[i].task);
        put(sink, plan->kept[i].first);
        put(sink, plan->kept[i].end);
        put(sink, plan->kept[i].route);
    }
    flush(sink);
    hash = XXH3_128bits_digest(sink->state);
    (void)XXH3_freeState(sink->state);
    (void)snprintf(plan->digest, sizeof(plan->digest), "%016llx%016llx",
                   (unsigned long long)hash.high64, (unsigned long long)hash.low64);
    return XM_OK;
}
