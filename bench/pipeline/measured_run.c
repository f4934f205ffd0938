/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A measured run in the form of a simulated one, so that the planner's own trace and plot
 * show it.
 */
#include "bench/pipeline/measured_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/pipeline.h"

enum { TITLE = 200 };

/* Sums up the lists' ends and how busy the devices were. Transfers are no work of a
 * device, so only passes and updates count. */
static void sum_up(const ap_schedule_t *schedule, ap_pipeline_run_t *run)
{
    double busy = 0;

    for (int d = 0; d < run->devices; ++d) {
        ap_pipeline_device_t *of = &run->device[d];

        *of = (ap_pipeline_device_t){.first_ns = INT64_MAX};
        for (int i = 0; i < schedule->op_count[d]; ++i) {
            const ap_schedule_op_t *op = &schedule->ops[d][i];
            const ap_pipeline_span_t *span = &run->spans[d][i];

            if (op->pass <= AP_PASS_UPDATE) {
                of->first_ns = span->start_ns < of->first_ns ? span->start_ns : of->first_ns;
                of->last_ns = span->end_ns;
                of->busy_ns += span->end_ns - span->start_ns;
            }
            of->peak_bytes = op->held > of->peak_bytes ? op->held : of->peak_bytes;
        }
        run->makespan_ns = of->last_ns > run->makespan_ns ? of->last_ns : run->makespan_ns;
        busy += (double)of->busy_ns;
    }
    if (run->makespan_ns > 0) {
        run->bubble = 1.0 - busy / ((double)run->makespan_ns * run->devices);
    }
}

xm_status_t rb_measured_run_write(const rb_pipeline_t *pipeline, ap_pipeline_span_t *const *spans,
                                  double step_s, const rb_timeline_files_t *files)
{
    const ap_plan_info_t *info = ap_plan_info(pipeline->plan);
    size_t devices = (size_t)pipeline->schedule->devices;
    ap_pipeline_run_t run = {.devices = pipeline->schedule->devices,
                             .step_ns = (int64_t)(1e9 * step_s)};
    xm_status_t status = XM_OK;
    char title[TITLE];

    run.device = calloc(devices, sizeof(*run.device));
    run.spans = calloc(devices, sizeof(*run.spans));
    if (run.device == NULL || run.spans == NULL) {
        status = XM_NO_MEMORY("the timeline of %zu stages", devices);
        goto free_run;
    }
    memcpy(run.spans, spans, devices * sizeof(*spans));
    sum_up(pipeline->schedule, &run);
    if (files->trace != NULL) {
        status = ap_pipeline_trace(pipeline->schedule, &run, files->trace);
    }
    if (status == XM_OK && files->plot != NULL) {
        (void)snprintf(title, sizeof(title), "%.60s on %.60s, measured", info->model,
                       info->cluster);
        status = ap_pipeline_plot(pipeline->schedule, &run, title, files->plot);
    }

free_run:
    free(run.spans);
    free(run.device);
    return status;
}
