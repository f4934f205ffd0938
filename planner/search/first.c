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

/* Plans so many equal stages, layers and devices dealt out. A cluster or a caller that allows no
 * such stages, or on which they do not fit, is no failure. */
static xm_status_t try_equal(ap_planner_run_t *run, ap_planner_work_t *work, int layers, int stages)
{
    int hosts = xm_cluster_profile_hosts(run->params->profile);
    int devices = hosts * xm_cluster_profile_devices_per_host(run->params->profile) / stages;
    ap_planner_pin_t *pins = calloc((size_t)stages, sizeof(*pins));
    xm_status_t status;

    XM_NEED_MEMORY(pins, "%d stages", stages);
    for (int i = 0; i < stages; ++i) {
        int of_hosts = stages > hosts ? 1 : hosts / stages;

        pins[i] = (ap_planner_pin_t){.first_layer = (int)((int64_t)layers * i / stages),
                                     .last_layer = (int)((int64_t)layers * (i + 1) / stages) - 1,
                                     .hosts = of_hosts,
                                     .devices = devices / of_hosts,
                                     .shape = {1, devices}};
    }
    work->pins = pins;
    work->pin_count = stages;
    status = ap_planner_solve(run, work);
    run->result.stages_priced += work->priced;
    work->pins = NULL;
    work->pin_count = 0;
    free(pins);
    return status == XM_ERR_INVALID_ARGUMENT ? XM_OK : status;
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
    int hosts = xm_cluster_profile_hosts(run->params->profile);
    const int counts[] = {hosts, 1,
                          hosts * xm_cluster_profile_devices_per_host(run->params->profile)};
    const ap_graph_t *graph;
    ap_graph_t *made;
    xm_status_t status = XM_OK;

    XM_TRY(ap_planner_graph_open(&run->setup, micro_batches, &graph, &made));
    run->deadline = INFINITY;
    run->host_permutations.count = 0;
    /* The second and third only within a tenth of the time. */
    for (int i = 0; i < 3 && status == XM_OK && run->params->pins == NULL &&
                    (work.plan == NULL || xm_clock_seconds() < run->first_deadline);
         ++i) {
        status = try_equal(run, &work, ap_graph_layers(graph), counts[i]);
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
