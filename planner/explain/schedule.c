/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why the pipeline schedule: what the same plan would take under each of the others. Stages are not
 * sliced anew for them, so the comparison is of schedules alone; slicing for another schedule could
 * bring it closer, which the planner tries when asked for the best of all.
 */

#include <stdio.h>

#include "planner/explain/explain_private.h"
#include "planner/plan.h"

/* The simulated step and idle share under a schedule, whether or not it fits. */
static xm_status_t simulate(const ap_plan_t *plan, ap_schedule_kind_t kind, double *seconds,
                            double *idle)
{
    ap_plan_simulation_t simulation = AP_PLAN_SIMULATION_INIT;
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;

    simulation.kind = kind;
    XM_TRY(ap_plan_simulate(plan, &simulation, &schedule, &run));
    *seconds = 1e-9 * (double)run->step_ns;
    *idle = run->bubble;
    ap_pipeline_run_destroy(run);
    ap_schedule_destroy(schedule);
    return XM_OK;
}

/* Finds the fastest other synchronous schedule that fits the memory; `runner_up` stays empty if
 * there is none. */
static xm_status_t find_runner_up(const ap_plan_t *plan, ap_schedule_kind_t chosen,
                                  ap_decision_t *decision)
{
    for (int i = 0; i < AP_SCHEDULE_KINDS; ++i) {
        ap_schedule_kind_t kind = (ap_schedule_kind_t)i;
        ap_plan_t *other;
        xm_status_t status;

        if (kind == chosen || !ap_plan_may_choose(kind)) {
            continue;
        }
        status = ap_plan_reschedule(plan, kind, 0.0, &other);
        if (status == XM_ERR_NO_SOLUTION) {
            continue;
        }
        XM_TRY(status);
        if (ap_plan_info(other)->step < decision->runner_up_seconds) {
            decision->runner_up_seconds = ap_plan_info(other)->step;
            (void)snprintf(decision->runner_up, sizeof(decision->runner_up), "%s",
                           ap_schedule_name(kind));
        }
        ap_plan_destroy(other);
    }
    return XM_OK;
}

xm_status_t ap_explain_schedule(const ap_explain_context_t *context, ap_explanation_t *explanation)
{
    const ap_plan_info_t *info = ap_plan_info(context->plan);
    ap_decision_t *decision = ap_explanation_add(explanation, "step", "schedule");
    ap_schedule_kind_t kind;
    double idle;

    if (decision == NULL) {
        return XM_ERR_NO_MEMORY;
    }
    (void)snprintf(decision->chosen, sizeof(decision->chosen), "%s", info->schedule);
    XM_TRY(ap_schedule_find(info->schedule, &kind));
    XM_TRY(simulate(context->plan, kind, &decision->chosen_seconds, &idle));
    (void)snprintf(decision->decided_by, sizeof(decision->decided_by),
                   "simulated, transfers overlapped: meshes are without a pass for %.1f %% of "
                   "the step",
                   100.0 * idle);
    return find_runner_up(context->plan, kind, decision);
}
