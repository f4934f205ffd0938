/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plan answers. The functions are plain reads: a plan never changes after
 * creation, so any thread may ask without a lock, and pointers live as long as the plan.
 * Those at the end cross the library's boundary: they check their pointers and copy into
 * the caller's version of a structure.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- for users ----------------------------------------------------------------------------------
 */

/* What a plan for the rest of another one has not to move. */
static void count_kept(const xm_plan_t *plan, xm_plan_info_t *info)
{
    for (int64_t k = 0; k < plan->kept_count; ++k) {
        const xm_kept_t *kept = &plan->kept[k];
        const xm_unit_task_t *task = &plan->tasks[kept->task];
        const xm_planned_tensor_t *tensor = &plan->tensors[task->tensor];
        uint64_t bytes = (uint64_t)((kept->end - kept->first) * tensor->element_size);
        int count;
        const int *ranks = xm_layout_replicas(tensor->dst, task->dst_tile, &count);

        if (kept->route >= 0) {
            info->kept_bytes += bytes * (uint64_t)plan->builder.routes[kept->route].count;
            continue;
        }
        for (int r = 0; r < count; ++r) {
            info->gone_bytes += ranks[r] < plan->ranks ? bytes : 0;
        }
    }
}

xm_status_t xm_plan_get_info(const xm_plan_t *plan, xm_plan_info_t *info)
{
    xm_plan_info_t own = XM_PLAN_INFO_INIT;

    if (XM_IS_NULL(plan) || XM_IS_NULL(info)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    own.ranks = xm_plan_ranks(plan);
    own.strategy = xm_plan_strategy(plan);
    own.scheduler = xm_plan_chosen_scheduler(plan);
    own.strategy_name = xm_strategy_name(own.strategy);
    own.scheduler_name = xm_scheduler_name(own.scheduler);
    own.bytes = xm_plan_bytes(plan);
    own.net_bytes = xm_plan_net_bytes(plan);
    own.bound_ns = xm_plan_bound_ns(plan);
    own.makespan_ns = xm_plan_makespan_ns(plan);
    own.hops = xm_plan_hops(plan);
    (void)snprintf(own.digest, sizeof(own.digest), "%s", xm_plan_digest(plan));
    count_kept(plan, &own);
    return xm_info_copy(__func__, "xm_plan_info_t", info, &own, sizeof(own));
}

/* The spans lie in the order of the hops' numbers, which go by transfer and then by place
 * in the route. */
static void list_hops(const xm_plan_t *plan, const xm_span_t *spans, xm_plan_hop_t *hops)
{
    int64_t count;
    const xm_transfer_t *transfers = xm_plan_transfers(plan, &count);

    for (int64_t t = 0; t < count; ++t) {
        const xm_route_t *route = xm_plan_route(plan, transfers[t].route);
        uint64_t bytes = xm_plan_transfer_bytes(plan, t);

        for (int i = 0; i < route->count; ++i) {
            int64_t hop = xm_plan_first_hop(plan, t) + i;

            hops[hop] = (xm_plan_hop_t){.transfer = t,
                                        .sender = xm_hop_sender(&transfers[t], route, i),
                                        .receiver = route->ranks[i],
                                        .bytes = bytes,
                                        .start_ns = spans[hop].start_ns,
                                        .end_ns = spans[hop].end_ns};
        }
    }
}

/* Spans are kept only when hops are wanted, since a plan can have millions. */
xm_status_t xm_plan_simulate(const xm_plan_t *plan, const xm_network_t *network,
                             xm_sharing_t sharing, xm_plan_hop_t *hops, int64_t *makespan_ns)
{
    xm_span_t *spans = NULL;
    xm_status_t status;

    if (XM_IS_NULL(plan) || XM_IS_NULL(network) || XM_IS_NULL(makespan_ns)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    if (hops != NULL) {
        spans = calloc((size_t)xm_plan_hops(plan) + 1, sizeof(*spans));
        if (spans == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the times of %lld hops",
                                (long long)xm_plan_hops(plan));
        }
    }
    status = xm_simulate(plan, network, sharing, spans, makespan_ns);
    if (status == XM_OK && hops != NULL) {
        list_hops(plan, spans, hops);
    }
    free(spans);
    return status;
}

/* Writes to memory by the same code as to a file. The caller frees the text. */
xm_status_t xm_plan_to_json(const xm_plan_t *plan, char **text)
{
    char *written = NULL;
    size_t length = 0;
    FILE *stream;
    xm_status_t status;

    if (XM_IS_NULL(plan) || XM_IS_NULL(text)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    stream = open_memstream(&written, &length);
    if (stream == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "a plan's text: %s", strerror(errno));
    }
    status = xm_plan_write_json(plan, stream);
    if (fclose(stream) != 0 && status == XM_OK) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "a plan's text: %s", strerror(errno));
    }
    if (status < 0) {
        free(written);
        return status;
    }
    *text = written;
    return XM_OK;
}
