/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first plan of a run that has a time limit. A search looks at every stage before it has any
 * plan, so the first ones are not searched: layers are dealt out evenly, to one stage a host, to
 * all devices at once or to one device a stage, and only the shardings over a single mesh axis are
 * looked for. That is a few questions for each stage, whatever the limit is. All stages recompute
 * and micro-batches are the smallest, so what fits at all mostly fits so.
 */

#include <math.h>
#include <stdlib.h>

#include "planner/search/trial.h"

/* Deals the layers out to so many stages of equal submeshes. */
static void deal_out(const ap_planner_run_t *run, int layers, int stages, ap_planner_pin_t *pins)
{
    int hosts = xm_cluster_profile_hosts(run->params->profile);
    int devices = xm_cluster_profile_devices_per_host(run->params->profile);
    int of_host = stages > hosts ? stages / hosts : 1;

    for (int i = 0; i < stages; ++i) {
        pins[i] = (ap_planner_pin_t){.first_layer = (int)((int64_t)layers * i / stages),
                                     .last_layer = (int)((int64_t)layers * (i + 1) / stages) - 1,
                                     .hosts = stages > hosts ? 1 : hosts / stages,
                                     .devices = devices / of_host};
        pins[i].shape[0] = 1;
        pins[i].shape[1] = pins[i].hosts * pins[i].devices;
    }
}

/* Plans so many equal stages. A cluster that has no such stages, or on which they do not fit, is no
 * failure. */
static xm_status_t try_equal(ap_planner_run_t *run, ap_planner_work_t *work, int layers, int stages)
{
    ap_planner_pin_t *pins = calloc((size_t)stages, sizeof(*pins));
    xm_status_t status;

    if (pins == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d stages", stages);
    }
    deal_out(run, layers, stages, pins);
    work->pins = pins;
    work->pin_count = stages;
    status = ap_planner_solve(run, work);
    run->result.stages_priced += work->priced;
    work->pins = NULL;
    work->pin_count = 0;
    free(pins);
    return status == XM_ERR_INVALID_ARGUMENT ? XM_OK : status;
}

/* Equal stages as far as the caller's limits on them go, until a tenth of the time is over. */
static xm_status_t try_equals(ap_planner_run_t *run, ap_planner_work_t *work, int layers)
{
    const ap_planner_params_t *params = run->params;
    int hosts = xm_cluster_profile_hosts(params->profile);
    int devices = hosts * xm_cluster_profile_devices_per_host(params->profile);
    int most = params->max_stages > 0 && params->max_stages < layers ? params->max_stages : layers;
    int largest = params->space != NULL && params->space->stage_devices > 0
                      ? params->space->stage_devices
                      : devices;
    const int counts[] = {hosts, 1, devices};
    xm_status_t status = XM_OK;

    for (int i = 0; i < 3 && status == XM_OK; ++i) {
        bool seen = (i == 1 && hosts == 1) || (i == 2 && (devices == hosts || devices == 1));

        if (!seen && counts[i] <= most && counts[i] >= params->min_stages &&
            devices / counts[i] <= largest &&
            (work->plan == NULL || xm_clock_seconds() < run->first_deadline)) {
            status = try_equal(run, work, layers, counts[i]);
        }
    }
    return status;
}

/* The hosts stand as they do. Where no equal stages fit, the whole case is searched, and no clock
 * ends that, so that there is a plan whatever the limit. */
xm_status_t ap_planner_try_first(ap_planner_run_t *run, int64_t micro_batches)
{
    ap_recompute_t asked = run->params->recompute;
    ap_planner_trial_t trial = {.micro_batches = micro_batches,
                                .recompute = asked == AP_RECOMPUTE_OFF ? asked : AP_RECOMPUTE_ON,
                                .schedule = run->schedules[0],
                                .step = INFINITY};
    ap_planner_work_t work = {.trial = &trial};
    double deadline = run->deadline;
    int orders = run->host_permutations.count;
    const ap_graph_t *graph;
    ap_graph_t *made;
    xm_status_t status = ap_planner_graph_open(&run->setup, micro_batches, &graph, &made);

    if (status != XM_OK) {
        return status;
    }
    run->deadline = INFINITY;
    run->host_permutations.count = 0;
    if (run->params->pins == NULL) {
        status = try_equals(run, &work, ap_graph_layers(graph));
    }
    ap_graph_destroy(made);
    if (status == XM_OK && work.plan == NULL) {
        status = ap_planner_solve(run, &work);
        run->result.stages_priced += work.priced;
    }
    run->deadline = deadline;
    run->host_permutations.count = orders;
    run->result.plan = work.plan;
    run->best = trial.step;
    return status;
}
