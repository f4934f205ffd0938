/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plan answers. The functions are plain reads: a plan never changes after
 * creation, so any thread may ask without a lock, and pointers live as long as the plan.
 *
 * In the end the digest of a plan: a hash of everything that decides which bytes move where.
 * Ranks compare it to know that they made the same plan, so it must not depend on the machine,
 * on addresses or on anything that does not decide (names, times, the scheduler's own name).
 */
#include <stdio.h>
#include <xxhash.h>

#include "comm/base.h"
#include "resharding/plan/plan_private.h"
#include "resharding/plan/simulate.h"

int xm_plan_tensors(const xm_plan_t *plan)
{
    return plan->tensor_count;
}

const char *xm_plan_tensor_name(const xm_plan_t *plan, int tensor)
{
    return plan->tensors[tensor].name;
}

const xm_layout_t *xm_plan_tensor_src(const xm_plan_t *plan, int tensor)
{
    return plan->tensors[tensor].src;
}

const xm_layout_t *xm_plan_tensor_dst(const xm_plan_t *plan, int tensor)
{
    return plan->tensors[tensor].dst;
}

int64_t xm_plan_tensor_element_size(const xm_plan_t *plan, int tensor)
{
    return plan->tensors[tensor].element_size;
}

/* The same for plans of a single tensor. */
const xm_layout_t *xm_plan_src(const xm_plan_t *plan)
{
    return plan->tensors[0].src;
}

const xm_layout_t *xm_plan_dst(const xm_plan_t *plan)
{
    return plan->tensors[0].dst;
}

xm_strategy_t xm_plan_strategy(const xm_plan_t *plan)
{
    return plan->strategy;
}

xm_strategy_t xm_plan_chosen_strategy(const xm_plan_t *plan)
{
    return plan->chosen_strategy;
}

xm_scheduler_t xm_plan_scheduler(const xm_plan_t *plan)
{
    return plan->scheduler;
}

xm_scheduler_t xm_plan_chosen_scheduler(const xm_plan_t *plan)
{
    return plan->chosen;
}

const xm_unit_task_t *xm_plan_tasks(const xm_plan_t *plan, int64_t *count)
{
    *count = plan->task_count;
    return plan->tasks;
}

const xm_transfer_t *xm_plan_transfers(const xm_plan_t *plan, int64_t *count)
{
    *count = plan->builder.transfer_count;
    return plan->builder.transfers;
}

const xm_kept_t *xm_plan_kept(const xm_plan_t *plan, int64_t *count)
{
    *count = plan->kept_count;
    return plan->kept;
}

int xm_plan_routes(const xm_plan_t *plan)
{
    return plan->builder.route_count;
}

const xm_route_t *xm_plan_route(const xm_plan_t *plan, int route)
{
    return &plan->builder.routes[route];
}

void xm_plan_task_box(const xm_plan_t *plan, int64_t task, xm_box_t *box)
{
    const xm_planned_tensor_t *tensor = &plan->tensors[plan->tasks[task].tensor];

    xm_unit_task_box(tensor->src, tensor->dst, &plan->tasks[task], box);
}

/* The chunk length belongs to the task, so all parts of a task cut alike and a relay's
 * chunks line up with what it was brought. */
int64_t xm_plan_chunk_elements(const xm_plan_t *plan, int64_t task)
{
    return plan->builder.chunk_elements[task];
}

/* The last chunk may be shorter. */
int64_t xm_plan_chunks(const xm_plan_t *plan, int64_t transfer)
{
    const xm_transfer_t *t = &plan->builder.transfers[transfer];
    int64_t chunk = plan->builder.chunk_elements[t->task];

    return (t->end - t->first + chunk - 1) / chunk;
}

uint64_t xm_plan_transfer_bytes(const xm_plan_t *plan, int64_t transfer)
{
    const xm_transfer_t *t = &plan->builder.transfers[transfer];

    return (uint64_t)((t->end - t->first) *
                      plan->tensors[plan->tasks[t->task].tensor].element_size);
}

const xm_network_t *xm_plan_network(const xm_plan_t *plan)
{
    return plan->network;
}

/* The host as it was planned; a worker may find the rank elsewhere. */
int xm_plan_host_of(const xm_plan_t *plan, int rank)
{
    return plan->host_of_rank[rank];
}

int xm_plan_ranks(const xm_plan_t *plan)
{
    return plan->ranks;
}

int xm_plan_living(const xm_plan_t *plan)
{
    return plan->living > 0 ? plan->living : xm_network_ranks(plan->network);
}

/* The entry behind the last transfer holds the number of all hops. */
int64_t xm_plan_hops(const xm_plan_t *plan)
{
    return plan->builder.first_hop[plan->builder.transfer_count];
}

int64_t xm_plan_first_hop(const xm_plan_t *plan, int64_t transfer)
{
    return plan->builder.first_hop[transfer];
}

/* Counts each tensor once, whatever its copies; check_size() has made sure that it fits. */
uint64_t xm_plan_bytes(const xm_plan_t *plan)
{
    uint64_t all = 0;

    for (int i = 0; i < plan->tensor_count; ++i) {
        const xm_planned_tensor_t *tensor = &plan->tensors[i];
        uint64_t bytes = (uint64_t)tensor->element_size;

        for (int d = 0; d < xm_layout_dims(tensor->src); ++d) {
            bytes *= (uint64_t)xm_layout_shape(tensor->src)[d];
        }
        all += bytes;
    }
    return all;
}

uint64_t xm_plan_net_bytes(const xm_plan_t *plan)
{
    return plan->net_bytes;
}

int64_t xm_plan_bound_ns(const xm_plan_t *plan)
{
    return plan->bound_ns;
}

int64_t xm_plan_makespan_ns(const xm_plan_t *plan)
{
    return plan->makespan_ns;
}

const char *xm_plan_digest(const xm_plan_t *plan)
{
    return plan->digest;
}

/* ---- the digest ---------------------------------------------------------------------------------
 */

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
