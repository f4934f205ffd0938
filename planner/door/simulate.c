/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated plans at the public door: the schedule and its run are one object there. */
#include <stdlib.h>

#include "comm/base.h"
#include "planner/door/door.h"
#include "planner/pipeline.h"
#include "planner/plan.h"
#include "planner/cost.h"

#include <autopar/simulate.h>

struct ap_simulation {
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;
    ap_simulation_result_t result;
};

static xm_status_t simulate(const ap_plan_t *plan, const ap_simulation_params_t *params,
                            ap_simulation_t *simulation)
{
    ap_plan_simulation_t how = AP_PLAN_SIMULATION_INIT;
    const char *name = params->schedule != NULL ? params->schedule : ap_plan_info(plan)->schedule;

    XM_TRY(ap_schedule_find(name, &how.kind));
    how.micro_batches = params->micro_batches;
    how.virtual_stages = params->virtual_stages;
    how.slices = params->slices;
    how.batches = params->batches;
    how.blocking = params->blocking;
    how.profile = params->profile;
    how.fold = params->fold;
    XM_TRY(ap_plan_simulate(plan, &how, &simulation->schedule, &simulation->run));
    simulation->result = (ap_simulation_result_t){.makespan_ns = simulation->run->makespan_ns,
                                                  .step_ns = simulation->run->step_ns,
                                                  .bubble = simulation->run->bubble,
                                                  .devices = simulation->run->devices};
    return XM_OK;
}

xm_status_t ap_simulation_create(const ap_plan_t *plan, const ap_simulation_params_t *params,
                                 ap_simulation_t **simulation)
{
    XM_NEED_ARGUMENTS(plan, simulation);
    ap_simulation_params_t own = AP_SIMULATION_PARAMS_INIT;
    ap_simulation_t *made;
    xm_status_t status =
        params != NULL ? XM_PARAMS_COPY(ap_simulation_params_t, &own, params) : XM_OK;

    XM_TRY(status);
    made = calloc(1, sizeof(*made));
    XM_NEED_MEMORY(made, "a simulation");
    status = simulate(plan, &own, made);
    if (status == XM_OK) {
        *simulation = made;
    } else {
        ap_simulation_destroy(made);
    }
    return status;
}

const ap_simulation_result_t *ap_simulation_result(const ap_simulation_t *simulation)
{
    if (XM_IS_NULL(simulation)) {
        return NULL;
    }
    return &simulation->result;
}

xm_status_t ap_simulation_text(const ap_simulation_t *simulation, char **text)
{
    XM_NEED_ARGUMENTS(simulation, text);
    *text = ap_pipeline_text(simulation->schedule, simulation->run);
    return *text != NULL ? XM_OK : XM_NO_MEMORY("a timeline");
}

xm_status_t ap_simulation_plot(const ap_simulation_t *simulation, const char *title,
                               const char *path)
{
    XM_NEED_ARGUMENTS(simulation, title, path);
    return ap_pipeline_plot(simulation->schedule, simulation->run, title, path);
}

xm_status_t ap_simulation_trace(const ap_simulation_t *simulation, const char *path)
{
    XM_NEED_ARGUMENTS(simulation, path);
    return ap_pipeline_trace(simulation->schedule, simulation->run, path);
}

void ap_simulation_destroy(ap_simulation_t *simulation)
{
    if (simulation != NULL) {
        ap_pipeline_run_destroy(simulation->run);
        ap_schedule_destroy(simulation->schedule);
        free(simulation);
    }
}
