/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every search of a row does: open one case after the other, lay out stages in it, and have
 * the plans that it finds judged. A case is a number of micro-batches with or without
 * recomputation, in the row's space.
 */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "planner/published/like/like_private.h"
#include "planner/plan.h"
#include "planner/passes.h"

/* Whether a plan is better than the best: one that fits comes before one that does not, where the
 * row looks at memory; then the faster; of two that do not fit, the one that needs less. */
static bool is_better(const ap_like_t *like, double step, double over)
{
    const ap_like_result_t *best = like->result;

    if (best->plan == NULL) {
        return true;
    }
    if (like->row->memory && (over > 0.0 || best->over_bytes > 0.0)) {
        return over < best->over_bytes;
    }
    return step < best->step;
}

bool ap_like_can_improve(const ap_like_t *like, double step)
{
    return is_better(like, step, 0.0);
}

/* The plan is taken over in any case. The better one of two is kept and the other freed; too few
 * micro-batches for the schedule is a reason and no failure. */
xm_status_t ap_like_consider_plan(ap_like_t *like, ap_plan_t *plan, bool *kept)
{
    ap_plan_evaluation_t evaluation = AP_PLAN_EVALUATION_INIT;
    const char *kind = strcmp(like->row->schedule.kind, "auto") == 0 ? ap_plan_info(plan)->schedule
                                                                     : like->row->schedule.kind;
    ap_plan_t *evaluated = NULL;
    ap_graph_t *made = NULL;
    const ap_graph_t *graph = NULL;
    xm_status_t status = ap_schedule_find(kind, &evaluation.kind);

    *kept = false;
    if (status == XM_OK) {
        status =
            ap_planner_graph_open(&like->setup, ap_plan_info(plan)->micro_batches, &graph, &made);
    }
    if (status == XM_OK) {
        evaluation.stash = like->row->schedule.stash;
        evaluation.version_share = ap_training_version_share(graph);
        evaluation.memory_limit = like->limit;
        ++like->result->judged;
        status = ap_plan_evaluate(plan, &evaluation, &evaluated);
    }
    if (status == XM_OK) {
        double step = ap_plan_info(evaluated)->step, memory = ap_plan_memory(evaluated);
        double over = fmax(0.0, memory - like->limit);

        if (like->effort.tell != NULL) {
            like->effort.tell(evaluated, over);
        }
        if (is_better(like, step, over)) {
            ap_plan_t *worse = like->result->plan;

            like->result->plan = evaluated;
            like->result->step = step;
            like->result->memory = memory;
            like->result->over_bytes = over;
            evaluated = worse;
            *kept = true;
        }
    } else if (status == XM_ERR_NO_SOLUTION) { /* too few micro-batches for this schedule */
        (void)snprintf(like->result->why, sizeof(like->result->why), "%s", xm_last_error());
        status = XM_OK;
    }
    ap_plan_destroy(evaluated);
    ap_plan_destroy(plan);
    ap_graph_destroy(made);
    return status;
}

xm_status_t ap_like_consider(ap_like_t *like, const ap_like_case_t *one,
                             const ap_plan_part_t *parts, int count, bool *kept)
{
    const ap_plan_info_t info = ap_planner_info(&like->setup);
    ap_plan_recipe_t recipe = {.graph = one->graph,
                               .cross_mesh = like->setup.cross_mesh,
                               .hosts = like->hosts,
                               .devices_per_host = like->devices_per_host,
                               .micro_batches = (int)one->micro_batches,
                               .memory_limit = like->limit,
                               .parts = parts,
                               .part_count = count};
    char optimiser[96];
    ap_plan_t *plan;

    (void)snprintf(optimiser, sizeof(optimiser), "like %s: %s", like->row->name,
                   ap_planner_preset_search(like->row));
    recipe.optimiser = optimiser;
    XM_TRY(ap_plan_assemble(&recipe, &info, &plan));
    return ap_like_consider_plan(like, plan, kept);
}

xm_status_t ap_like_context(const ap_like_t *like, const ap_like_case_t *one,
                            const ap_space_t *space, ap_stage_context_t **context)
{
    ap_stage_context_params_t params = AP_STAGE_CONTEXT_PARAMS_INIT;

    params.graph = one->graph;
    /* Of unequal hosts the slowest counts: these searches know one kind of device. */
    params.cost =
        like->setup.classes->classes[ap_device_classes_find(like->setup.classes, 0, like->hosts)]
            .cost;
    params.micro_batches = (int)one->micro_batches;
    params.rematerialize = one->recompute;
    params.space = space;
    return ap_stage_context_create(&params, context);
}

static bool wants_recompute(const ap_like_t *like, bool recompute)
{
    ap_recompute_t asked = like->params.recompute;

    return asked == AP_RECOMPUTE_AUTO || asked == AP_RECOMPUTE_UNIFORM ||
           (asked == AP_RECOMPUTE_ON) == recompute;
}

/* Graph and context exist only while the case is searched, so memory does not grow with the number
 * of cases. */
xm_status_t ap_like_each_case(ap_like_t *like, ap_like_case_fn *search)
{
    xm_status_t status = XM_OK;
    int cases = 2 * like->micro_batch_count;

    for (int i = 0; i < cases && status == XM_OK; ++i) {
        ap_like_case_t one = {.micro_batches = like->micro_batches[i / 2], .recompute = i % 2 == 1};

        if (!wants_recompute(like, one.recompute)) {
            continue;
        }
        if (like->params.progress != NULL) {
            like->params.progress(like->params.progress_arg, (double)i / cases, like->row->name);
        }
        status = ap_planner_graph_open(&like->setup, one.micro_batches, &one.graph, &one.made);
        XM_THEN(status, ap_like_context(like, &one, &like->row->space, &one.context));
        XM_THEN(status, search(like, &one));
        if (status == XM_ERR_NO_SOLUTION) {
            (void)snprintf(like->result->why, sizeof(like->result->why), "%s", xm_last_error());
            status = XM_OK;
        }
        ap_stage_context_destroy(one.context);
        ap_graph_destroy(one.made);
    }
    return status;
}

/* Equal stages need equal submeshes: parts of one host, or whole hosts. */
bool ap_like_submesh(const ap_like_t *like, int stages, ap_stage_query_t *query)
{
    int total = like->hosts * like->devices_per_host, each = total / stages;

    if (total % stages != 0 || stages > like->layers ||
        (each <= like->devices_per_host ? like->devices_per_host % each
                                        : each % like->devices_per_host) != 0) {
        return false;
    }
    query->hosts = each <= like->devices_per_host ? 1 : each / like->devices_per_host;
    query->devices = each / query->hosts;
    return like->row->space.stage_devices == 0 || each <= like->row->space.stage_devices;
}

bool ap_like_next_shape(const ap_like_t *like, ap_stage_query_t *query)
{
    int devices = query->hosts * query->devices;
    int most = like->row->space.one_axis ? 1 : devices;

    do {
        ++query->shape[0];
    } while (query->shape[0] <= most && devices % query->shape[0] != 0);
    query->shape[1] = query->shape[0] <= most ? devices / query->shape[0] : 0;
    return query->shape[0] <= most;
}
