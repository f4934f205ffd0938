/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows whose pipelines have equal stages. Megatron, GPipe and PipeDream-2BW have so few
 * combinations of degrees that each is judged; a bound leaves out those that cannot win. Galvatron
 * chooses per layer among a few uniform ways, under the memory limit; its dynamic programme over
 * layers is the curve of time over memory (planner/published/choice/frontier.h) on a chain.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/published/like/like_private.h"
#include "planner/published/choice.h"

/* Micro-batches in flight on stage i of p, as planners count them. */
int ap_like_in_flight(const ap_like_t *like, const ap_like_case_t *one, int stages, int i)
{
    bool all = strcmp(like->row->schedule.kind, "gpipe") == 0;
    int64_t left = stages - i;

    return (int)(all || left > one->micro_batches ? one->micro_batches : left);
}

void ap_like_set_layers(const ap_like_t *like, int stages, int i, ap_stage_query_t *query)
{
    query->first = (int)((int64_t)i * like->layers / stages);
    query->last = (int)((int64_t)(i + 1) * like->layers / stages) - 1;
}

/* A device's passes of one step, which no schedule can shorten. */
double ap_like_busy(const ap_like_case_t *one, const ap_stage_cost_t *cost)
{
    return (double)one->micro_batches * (cost->forward + cost->backward) + cost->sync +
           cost->update;
}

/* Whether the judge need not look: slower than the best for certain, or too large where the best
 * fits. */
bool ap_like_is_hopeless(const ap_like_t *like, double bound, double memory)
{
    const ap_like_result_t *best = like->result;

    return best->plan != NULL && like->effort.tell == NULL &&
           (!ap_like_can_improve(like, bound) ||
            (like->row->memory && best->over_bytes <= 0.0 && memory > like->limit));
}

/* The solutions are freed here, judged or not. */
xm_status_t ap_like_evaluate_parts(ap_like_t *like, const ap_like_case_t *one,
                                   ap_plan_part_t *parts, int count, xm_status_t status, bool *kept)
{
    *kept = false;
    XM_THEN(status, ap_like_consider(like, one, parts, count, kept));
    for (int i = 0; i < count; ++i) {
        ap_stage_solution_destroy(parts[i].solution);
    }
    free(parts);
    return status;
}

static xm_status_t allocate_parts(int count, ap_plan_part_t **parts)
{
    *parts = calloc((size_t)count, sizeof(**parts));
    return *parts != NULL ? XM_OK : XM_NO_MEMORY("%d stages", count);
}

/* One point of the grid: evaluated first, which is quick, and solved only if it may win. */
static xm_status_t try_degrees(ap_like_t *like, const ap_like_case_t *one, int stages,
                               const ap_stage_query_t *degrees)
{
    double bound = 0.0, memory = 0.0;
    ap_plan_part_t *parts;
    xm_status_t status = XM_OK;
    bool kept;

    for (int i = 0; i < stages && status == XM_OK; ++i) {
        ap_stage_query_t query = *degrees;
        ap_stage_cost_t cost;

        ap_like_set_layers(like, stages, i, &query);
        status = ap_stage_evaluate(one->context, &query, &cost);
        if (status == XM_OK) {
            bound = fmax(bound, ap_like_busy(one, &cost));
            memory = fmax(memory, ap_stage_memory(&cost, ap_like_in_flight(like, one, stages, i)));
        }
    }
    if (status != XM_OK || ap_like_is_hopeless(like, bound, memory)) {
        return status;
    }
    status = allocate_parts(stages, &parts);
    XM_TRY(status);
    for (int i = 0; i < stages && status == XM_OK; ++i) {
        parts[i].query = *degrees;
        parts[i].first_device = i * degrees->hosts * degrees->devices;
        ap_like_set_layers(like, stages, i, &parts[i].query);
        status = ap_stage_solve(one->context, &parts[i].query, &parts[i].solution);
    }
    return ap_like_evaluate_parts(like, one, parts, stages, status, &kept);
}

/* Tries every number of stages and logical shape that the row and the caller allow. */
xm_status_t ap_like_each_degrees(ap_like_t *like, const ap_like_case_t *one,
                                 ap_like_try_fn *attempt, void *arg)
{
    int total = like->hosts * like->devices_per_host;
    int most = like->params.max_stages > 0 ? like->params.max_stages : total;
    xm_status_t status = XM_OK;

    for (int stages = 1; stages <= most && stages <= total && status == XM_OK; ++stages) {
        ap_stage_query_t query = AP_STAGE_QUERY_INIT;

        if (stages < like->params.min_stages || !ap_like_submesh(like, stages, &query)) {
            continue;
        }
        while (status == XM_OK && ap_like_next_shape(like, &query)) {
            status = attempt(like, one, stages, &query, arg);
            if (status == XM_ERR_NO_SOLUTION) {
                (void)snprintf(like->result->why, sizeof(like->result->why), "%s", xm_last_error());
                status = XM_OK;
            }
        }
    }
    return status;
}

static xm_status_t try_grid(ap_like_t *like, const ap_like_case_t *one, int stages,
                            const ap_stage_query_t *degrees, void *arg)
{
    (void)arg;
    return try_degrees(like, one, stages, degrees);
}

xm_status_t ap_like_grid(ap_like_t *like, ap_like_case_t *one)
{
    return ap_like_each_degrees(like, one, try_grid, NULL);
}
