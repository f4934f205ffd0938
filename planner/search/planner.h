/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner.h
 * The search for plans: ap_planner_plan() with all that it finds out on the way (stage.h prices
 * stages, cross_mesh.h boundaries, inter_op.h slices, host_order.h orders hosts). What is asked for
 * is in the public header.
 *
 * @code
 *     ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
 *     ap_planner_result_t result;
 *
 *     params.model = "gpt-1.3b";
 *     params.profile = profile;
 *     status = ap_planner_run(&params, &result);
 *     if (status == XM_OK) {
 *         status = ap_plan_save(result.plan, "plan.json");
 *         ap_planner_result_clear(&result);
 *     }
 * @endcode
 */
#pragma once

#include "planner/cost.h"

#include <autopar/planner.h>

#include "comm/profile.h"
#include "planner/passes.h"
#include "planner/plan.h"
#include "planner/search/model.h"
#include "planner/stage.h"

/** What came of one number of micro-batches, under one schedule. */
typedef struct ap_planner_trial {
    int64_t micro_batches;
    ap_recompute_t recompute;    /**< never uniform: there is a trial of each then */
    ap_schedule_kind_t schedule; /**< that stages were sliced for */
    bool solved; /**< false: nothing fits, or another case was certain to be better */
    /** Predicted seconds of the best plan found; INFINITY when not solved. */
    double step;
    int stage_count; /**< of that plan; 0 when not solved */
    double bound;    /**< no plan of this case is faster; INFINITY: none divides */
    bool exact;      /**< `step` is the smallest of this case */
} ap_planner_trial_t;

typedef struct ap_planner_result {
    ap_plan_t *plan;
    ap_planner_trial_t *trials;
    int trial_count;
    double objective; /**< step of the best plan */
    double bound;     /**< no plan of the space, in an order of hosts tried, has a step below */
    bool stopped;     /**< by the time limit */
    /** Orders of the hosts that differ, if the plan has the best of all of them; 1 where hosts are
     * alike or keep their order, 0: there are more, and the plan has the best of those tried. */
    int host_orders;
    int64_t stages_priced; /**< intra-operator questions that were answered */
    int64_t boundaries_simulated;
    ap_planner_model_t read; /**< what a file was read as; without a graph for built-in models */
} ap_planner_result_t;

/**
 * Plans. XM_ERR_NO_SOLUTION says which constraint leaves nothing and the smallest change that would
 * help: how much memory a device would need, or the nearest possible number of stages.
 */
xm_status_t ap_planner_run(const ap_planner_params_t *params, ap_planner_result_t *result);

/** The same for plans that take at most @p cap bytes of a device; 0: as much as there is. That
 * there is none is not explained. */
xm_status_t ap_planner_run_within(const ap_planner_params_t *params, double cap,
                                  ap_planner_result_t *result);

/** Frees what the result owns. NULL and an all-zero result are accepted. */
void ap_planner_result_clear(ap_planner_result_t *result);
