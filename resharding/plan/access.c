/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plan answers. The functions are plain reads: a plan never changes after
 * creation, so any thread may ask without a lock, and pointers live as long as the plan.
 */
#include "resharding/plan/plan_private.h"
#include "resharding/plan/regular/regular.h"
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

int64_t xm_plan_task_count(const xm_plan_t *plan)
{
    return plan->task_count;
}

xm_unit_task_t xm_plan_task(const xm_plan_t *plan, int64_t task)
{
    return plan->regular != NULL ? xm_regular_task(plan->regular, task) : plan->tasks[task];
}

int64_t xm_plan_transfer_count(const xm_plan_t *plan)
{
    return plan->builder.transfer_count;
}

xm_transfer_t xm_plan_transfer(const xm_plan_t *plan, int64_t transfer)
{
    return plan->regular != NULL ? xm_regular_transfer(plan->regular, transfer)
                                 : plan->builder.transfers[transfer];
}

/* Ranks beyond those of the plan have no host in it, nor a part. */
int64_t xm_plan_next_transfer(const xm_plan_t *plan, int rank, int64_t transfer)
{
    if (plan->regular == NULL) {
        return transfer;
    }
    return rank >= plan->ranks ? plan->builder.transfer_count
                               : xm_regular_next(plan->regular, plan->host_of_rank[rank], transfer,
                                                 plan->builder.transfer_count);
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
    const xm_unit_task_t one = xm_plan_task(plan, task);

    xm_unit_task_box(plan->tensors[one.tensor].src, plan->tensors[one.tensor].dst, &one, box);
}

/* The chunk length belongs to the task, so all parts of a task cut alike and a relay's
 * chunks line up with what it was brought. */
int64_t xm_plan_chunk_elements(const xm_plan_t *plan, int64_t task)
{
    return plan->regular != NULL ? plan->regular->chunk_elements
                                 : plan->builder.chunk_elements[task];
}

/* The last chunk may be shorter. */
int64_t xm_plan_chunks(const xm_plan_t *plan, int64_t transfer)
{
    const xm_transfer_t t = xm_plan_transfer(plan, transfer);
    int64_t chunk = xm_plan_chunk_elements(plan, t.task);

    return (t.end - t.first + chunk - 1) / chunk;
}

uint64_t xm_plan_transfer_bytes(const xm_plan_t *plan, int64_t transfer)
{
    const xm_transfer_t t = xm_plan_transfer(plan, transfer);

    return (uint64_t)((t.end - t.first) * xm_task_element_size(plan, t.task));
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
    return xm_plan_first_hop(plan, plan->builder.transfer_count);
}

int64_t xm_plan_first_hop(const xm_plan_t *plan, int64_t transfer)
{
    return plan->regular != NULL ? transfer * plan->regular->reached
                                 : plan->builder.first_hop[transfer];
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
