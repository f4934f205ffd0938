/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One case of a planner run: bounded without a single configuration priced, then planned. The
 * search counts with an objective; a plan's step is what the simulation of its schedule says, and
 * the objective is only an estimate of it. Both kinds of number are kept apart throughout, because
 * a bound of one is none of the other.
 */

#include "planner/search/trial.h"

#include <math.h>
#include <stdio.h>

#include "comm/base.h"
#include "planner/plan.h"

/* The share of the step that a case must be able to save to be taken up again. */
static const double WORTHWHILE = 1e-3;

/* Puts the plan under its schedule, or under the fastest if it may choose. A plan whose memory that
 * exceeds is none: *plan is NULL then. `refused` says that the schedule it was made for is
 * exceeded. */
static xm_status_t apply_schedule(const ap_planner_run_t *run, ap_planner_work_t *work,
                                  double version_share, ap_plan_t **plan)
{
    ap_plan_t *own = NULL, *scheduled = NULL;
    xm_status_t status = ap_plan_reschedule(*plan, work->trial->schedule, version_share, &own);

    if (status == XM_ERR_NO_SOLUTION) {
        work->refused = true;
        (void)snprintf(work->error, sizeof(work->error), "%s", xm_last_error());
        status = XM_OK;
    }
    if (status == XM_OK && run->automatic) {
        status = ap_plan_reschedule_best(*plan, &scheduled);
        status = status == XM_ERR_NO_SOLUTION ? XM_OK : status;
        ap_plan_destroy(own);
        own = scheduled;
    }
    ap_plan_destroy(*plan);
    *plan = own;
    return status;
}

/* Gives hosts that stand in an order their own numbers again. */
static xm_status_t place_plan(const ap_planner_run_t *run,
                              const ap_host_permutation_t *host_permutation, ap_plan_t **plan)
{
    ap_plan_t *placed = NULL;
    xm_status_t status =
        ap_plan_place(*plan, host_permutation->order,
                      xm_cluster_profile_hosts_per_rack(run->params->profile), &placed);

    ap_plan_destroy(*plan);
    *plan = placed;
    return status;
}

/* Makes a plan of what was found and keeps it if it is the case's best: *better. @p
 * host_permutation says how the hosts stand; NULL: as in the profile. */
static xm_status_t build_plan(const ap_planner_run_t *run, ap_planner_work_t *work,
                              ap_planner_case_t *one, const ap_host_permutation_t *host_permutation,
                              const ap_inter_op_result_t *found, bool *better)
{
    const ap_plan_info_t info = ap_planner_info(&run->setup);
    ap_planner_trial_t *trial = work->trial;
    ap_plan_t *plan;
    double step;
    xm_status_t status = ap_plan_build(one->table, found, &info, &plan);

    *better = false;
    if (status == XM_OK && host_permutation != NULL) {
        status = place_plan(run, host_permutation, &plan);
    }
    XM_THEN(status, apply_schedule(run, work, one->version_share, &plan));
    if (status != XM_OK || plan == NULL) {
        return status;
    }
    step = ap_plan_info(plan)->step;
    *better = !trial->solved || step < trial->step;
    if (*better) {
        ap_plan_t *worse = work->plan;

        trial->solved = true;
        trial->step = step;
        trial->stage_count = found->stage_count;
        work->plan = plan;
        plan = worse;
    }
    ap_plan_destroy(plan);
    return XM_OK;
}

bool ap_planner_out_of_time(void *arg)
{
    const ap_planner_run_t *run = arg;

    return xm_clock_seconds() >= run->deadline;
}

double ap_planner_cutoff(const ap_planner_run_t *run)
{
    return run->best * (1.0 + (run->params->margin > 0.0 ? run->params->margin : -WORTHWHILE));
}

/* What a plan may gain by another schedule of the kind that it was sliced for. */
static const double RELATED = 0.05;

static xm_status_t open_trial(ap_planner_run_t *run, const ap_planner_work_t *work, int stages,
                              ap_planner_case_t *one)
{
    ap_planner_case_options_t options = {.micro_batches = work->trial->micro_batches,
                                         .recompute = work->trial->recompute,
                                         .schedule = work->trial->schedule,
                                         .stages = stages,
                                         .pins = work->pins,
                                         .pin_count = work->pin_count,
                                         .stop = ap_planner_out_of_time,
                                         .stop_arg = run};

    return ap_planner_case_open(&run->setup, &options, one);
}

xm_status_t ap_planner_find_bounds(const ap_planner_run_t *run, ap_stage_table_t *table,
                                   ap_planner_bounds_t *bounds)
{
    const ap_planner_params_t *params = run->params;
    xm_status_t status;

    *bounds = (ap_planner_bounds_t){.objective = INFINITY};
    status =
        ap_stage_table_estimate(table, params->min_stages, params->max_stages, &bounds->objective);
    bounds->step = bounds->objective;
    XM_THEN(status,
            ap_stage_table_bound(table, params->min_stages, params->max_stages, &bounds->step));
    return status == XM_ERR_NO_SOLUTION ? XM_OK : status;
}

/* A time limit that ends the bounding leaves what was known before; that is no failure. */
xm_status_t ap_planner_bounding_pass(ap_planner_run_t *run, ap_planner_work_t *work)
{
    ap_planner_bounds_t bounds = {0};
    ap_planner_case_t one;
    xm_status_t status = open_trial(run, work, 0, &one);

    if (status != XM_OK) {
        return status == XM_ERR_TIMEOUT ? XM_OK : status;
    }
    status = run->host_permutations.count > 0
                 ? ap_planner_bound_orders(run, work, one.table, &bounds)
                 : ap_planner_find_bounds(run, one.table, &bounds);
    if (status == XM_OK) {
        work->trial->bound = bounds.step;
        work->estimate = AP_STAGE_TABLE_ESTIMATED * bounds.objective;
    } else if (status == XM_ERR_TIMEOUT) { /* no more is known than before */
        status = XM_OK;
    }
    work->priced = ap_stage_table_evaluated(one.table);
    ap_planner_case_close(&one);
    return status;
}

xm_status_t ap_planner_slice(ap_planner_candidate_t *attempt,
                             const ap_host_permutation_t *host_permutation, double *bound,
                             bool *better)
{
    ap_planner_run_t *run = attempt->run;
    ap_planner_work_t *work = attempt->work;
    ap_inter_op_result_t found = {0};
    int most = run->params->max_stages;
    xm_status_t status;

    *better = false;
    most = attempt->stages > 0 && (most == 0 || attempt->stages < most) ? attempt->stages : most;
    status = ap_stage_table_solve(attempt->one.table, run->params->min_stages, most, &found);
    attempt->count = status == XM_OK ? found.stage_count : attempt->count;
    *bound = found.bound;
    XM_THEN(status, build_plan(run, work, &attempt->one, host_permutation, &found, better));
    ap_inter_op_result_clear(&found);
    return status;
}

/* Slices the case for at most so many stages, or with 0 for any. XM_ERR_NO_SOLUTION says that there
 * is no plan. *count: the stages that came out. */
static xm_status_t solve_once(ap_planner_run_t *run, ap_planner_work_t *work, int stages,
                              int *count)
{
    ap_planner_candidate_t attempt = {.run = run, .work = work, .stages = stages};
    double bound = 0.0;
    bool better;
    xm_status_t status = XM_OK;

    XM_TRY(open_trial(run, work, stages, &attempt.one));
    if (run->host_permutations.count > 0) {
        status = ap_planner_try_orders(&attempt);
    } else {
        if (run->best < INFINITY) {
            ap_stage_table_beat(attempt.one.table, fmax(run->best, ap_planner_cutoff(run)) *
                                                       (run->automatic ? 1.0 + RELATED : 1.0));
        }
        status = ap_planner_slice(&attempt, NULL, &bound, &better);
        if (stages == 0 && (status == XM_OK || status == XM_ERR_NO_SOLUTION)) {
            work->trial->bound = fmax(work->trial->bound, bound);
        }
    }
    *count = attempt.count;
    work->priced += ap_stage_table_evaluated(attempt.one.table);
    ap_planner_case_close(&attempt.one);
    return status;
}

/* Plans a case. Where a schedule's memory depends on the number of all stages, the first search
 * counts too few micro-batches before a stage; if its plan does not fit, further searches count as
 * many stages as they allow, then half as many, and so on, so at most a handful follow. */
xm_status_t ap_planner_solve(ap_planner_run_t *run, ap_planner_work_t *work)
{
    int stages = 0;
    bool refused;
    xm_status_t status;

    work->priced = 0;
    status = solve_once(run, work, 0, &stages);
    refused = work->refused;
    while (status == XM_OK && refused && stages > 1 && stages >= run->params->min_stages) {
        int unused;

        status = solve_once(run, work, stages, &unused);
        status = status == XM_ERR_NO_SOLUTION ? XM_OK : status;
        stages /= 2;
    }
    work->cut = ap_planner_out_of_time(run);
    work->trial->exact = !work->cut;
    return status == XM_ERR_NO_SOLUTION || status == XM_ERR_TIMEOUT ? XM_OK : status;
}
