/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What users of a plan see of it: its numbers, its hops with their times, and JSON. These
 * calls cross the library's boundary, so they check their pointers and copy into the
 * caller's version of a structure.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "resharding/plan/plan_private.h"
#include "resharding/plan/simulate.h"

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

    XM_NEED_ARGUMENTS(plan, info);
    own.ranks = xm_plan_ranks(plan);
    own.strategy = xm_plan_chosen_strategy(plan);
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
    for (int64_t t = 0; t < xm_plan_transfer_count(plan); ++t) {
        const xm_transfer_t transfer = xm_plan_transfer(plan, t);
        const xm_route_t *route = xm_plan_route(plan, transfer.route);
        uint64_t bytes = xm_plan_transfer_bytes(plan, t);

        for (int i = 0; i < route->count; ++i) {
            int64_t hop = xm_plan_first_hop(plan, t) + i;

            hops[hop] = (xm_plan_hop_t){.transfer = t,
                                        .sender = xm_hop_sender(&transfer, route, i),
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

    XM_NEED_ARGUMENTS(plan, network, makespan_ns);
    if (hops != NULL) {
        spans = calloc((size_t)xm_plan_hops(plan) + 1, sizeof(*spans));
        XM_NEED_MEMORY(spans, "the times of %lld hops", (long long)xm_plan_hops(plan));
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

    XM_NEED_ARGUMENTS(plan, text);
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
