/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The digest of a plan: a hash of everything that decides which bytes move where. Ranks
 * compare it to know that they made the same plan, so it must not depend on the machine,
 * on addresses or on anything that does not decide (names, times, the scheduler's own
 * name).
 */
#include "resharding/plan/regular/regular.h"

#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

#include "comm/base.h"

enum { KEPT_BYTES = 32 * 1024 * 1024 };

/* Numbers on their way into the hash, many at a time. */
typedef struct {
    XXH3_state_t *state;
    size_t used;
    unsigned char bytes[4096];
    unsigned char **layouts; /* by layout: its numbers, as many tensors share one; NULL: not kept */
    size_t kept;             /* bytes of them all */
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

static unsigned char *write_number(unsigned char *to, int64_t value)
{
    xm_put_le(to, (uint64_t)value, 8);
    return to + 8;
}

/* Writes a layout by what it does, cut points and tile of each rank, and not by how it
 * was described: two specs that cut and place alike give the same digest. */
static void write_layout(unsigned char *to, const xm_layout_t *layout)
{
    const xm_mesh_t *mesh = xm_layout_mesh(layout);

    to = write_number(to, xm_layout_dims(layout));
    for (int d = 0; d < xm_layout_dims(layout); ++d) {
        to = write_number(to, xm_layout_shape(layout)[d]);
        to = write_number(to, xm_layout_parts(layout, d));
        for (int p = 0; p <= xm_layout_parts(layout, d); ++p) {
            to = write_number(to, xm_layout_cuts(layout, d)[p]);
        }
    }
    to = write_number(to, xm_mesh_size(mesh));
    for (int p = 0; p < xm_mesh_size(mesh); ++p) {
        to = write_number(to, xm_mesh_rank(mesh, p));
        to = write_number(to, xm_layout_tile_at(layout, p));
    }
}

static size_t layout_bytes(const xm_layout_t *layout)
{
    size_t numbers = 2 + 2 * (size_t)xm_mesh_size(xm_layout_mesh(layout));

    for (int d = 0; d < xm_layout_dims(layout); ++d) {
        numbers += 3 + (size_t)xm_layout_parts(layout, d);
    }
    return numbers * 8;
}

static xm_status_t put_layout(sink_t *sink, const xm_layout_t *layout, int index)
{
    size_t size = layout_bytes(layout);
    unsigned char *bytes = sink->layouts[index];
    bool known = bytes != NULL;

    if (!known) {
        bytes = malloc(size);
        XM_NEED_MEMORY(bytes, "the digest of a layout");
        write_layout(bytes, layout);
    }
    flush(sink);
    (void)XXH3_128bits_update(sink->state, bytes, size);
    if (!known && size <= KEPT_BYTES - sink->kept) {
        sink->layouts[index] = bytes;
        sink->kept += size;
    } else if (!known) {
        free(bytes);
    }
    return XM_OK;
}

static xm_status_t put_tensors(sink_t *sink, const xm_plan_t *plan)
{
    xm_status_t status = XM_OK;

    put(sink, plan->tensor_count);
    for (int i = 0; status == XM_OK && i < plan->tensor_count; ++i) {
        const xm_planned_tensor_t *tensor = &plan->tensors[i];

        put(sink, tensor->element_size);
        status = put_layout(sink, tensor->src, tensor->src_index);
        XM_THEN(status, put_layout(sink, tensor->dst, tensor->dst_index));
    }
    return status;
}

static void put_side(sink_t *sink, const xm_side_t *side)
{
    put(sink, side->hosts);
    put(sink, side->devices);
    put(sink, side->whole);
    for (int p = 0; p < side->hosts * side->devices; ++p) {
        put(sink, side->rank[p]);
        put(sink, side->tile[p]);
    }
}

/* The formula of a regular plan, in place of the lists that follow from it. No chunk has less than
 * one element, so no list begins like this. */
static void put_regular(sink_t *sink, const xm_regular_t *regular)
{
    put(sink, -1);
    put(sink, regular->elements);
    put(sink, regular->chunk_elements);
    put(sink, regular->pieces);
    put_side(sink, &regular->src);
    put_side(sink, &regular->dst);
    flush(sink);
}

/* Lists are preceded by a length or are as long as an earlier number says, so different
 * plans never feed the same bytes. */
static void put_schedule(sink_t *sink, const xm_plan_t *plan)
{
    for (int64_t t = 0; t < plan->task_count; ++t) {
        put(sink, xm_plan_chunk_elements(plan, t));
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
        const xm_transfer_t transfer = xm_plan_transfer(plan, i);

        put(sink, transfer.task);
        put(sink, transfer.parent);
        put(sink, transfer.first);
        put(sink, transfer.end);
        put(sink, transfer.sender);
        put(sink, transfer.route);
    }
    for (int64_t i = 0; i < plan->kept_count; ++i) {
        put(sink, plan->kept[i].task);
        put(sink, plan->kept[i].first);
        put(sink, plan->kept[i].end);
        put(sink, plan->kept[i].route);
    }
    flush(sink);
}

xm_status_t xm_plan_hash(xm_plan_t *plan)
{
    sink_t sink = {.state = XXH3_createState(),
                   .layouts = calloc((size_t)plan->layout_count + 1, sizeof(*sink.layouts))};
    xm_status_t status;
    XXH128_hash_t hash;

    if (sink.state == NULL || sink.layouts == NULL) {
        status = XM_NO_MEMORY("the digest of a plan");
        goto free_all;
    }
    (void)XXH3_128bits_reset(sink.state);
    status = put_tensors(&sink, plan);
    if (plan->regular != NULL) {
        put_regular(&sink, plan->regular);
    } else {
        put_schedule(&sink, plan);
    }
    hash = XXH3_128bits_digest(sink.state);
    (void)snprintf(plan->digest, sizeof(plan->digest), "%016llx%016llx",
                   (unsigned long long)hash.high64, (unsigned long long)hash.low64);

free_all:
    for (int l = 0; sink.layouts != NULL && l < plan->layout_count; ++l) {
        free(sink.layouts[l]);
    }
    free(sink.layouts);
    (void)XXH3_freeState(sink.state);
    return status;
}
