/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autopar plan --pareto: what a plan costs in time that takes less memory. The table has a line for
 * each plan; JSON has the plans themselves, for each of them can be trained by.
 */

#include "planner/cli/pareto.h"

#include <stdio.h>

#include "planner/cli/command.h"
#include "planner/cli/output_file.h"
#include "planner/plan.h"

/* Seconds in full, memory as the text of a plan has it. */
static void print(const ap_pareto_t *curve)
{
    const ap_plan_info_t *info = ap_plan_info(curve->points[0].of);

    (void)printf("# model %s on cluster %s: plans that no other beats in time and memory: %d\n"
                 "#    memory          step    gap  stages  micro-batches    recompute  digest\n",
                 info->model, info->cluster, curve->count);
    for (int i = 0; i < curve->count; ++i) {
        const ap_plan_t *plan = curve->points[i].of;
        char bytes[32], recompute[32], gap[16] = "?";

        info = ap_plan_info(plan);
        if (info->bound > 0.0) {
            (void)snprintf(gap, sizeof(gap), "%.1f%%", 100.0 * (info->step / info->bound - 1.0));
        }
        (void)printf("%11s  %10.4f s  %5s  %6d  %13d  %11s  %s\n",
                     xm_text_format_bytes((uint64_t)curve->points[i].bytes, bytes, sizeof(bytes)),
                     info->step, gap, ap_plan_stages(plan), (int)info->micro_batches,
                     ap_plan_recompute_text(plan, recompute, sizeof(recompute)),
                     ap_plan_digest(plan));
    }
}

static json_t *curve_json(const ap_pareto_t *curve)
{
    json_t *list = json_array();

    for (int i = 0; i < curve->count; ++i) {
        char *text = ap_plan_text(curve->points[i].of);
        json_t *plan = text != NULL ? json_loads(text, 0, NULL) : NULL;

        free(text);
        (void)json_array_append_new(list, json_pack("{s:f, s:f, s:o}", "memory_bytes",
                                                    curve->points[i].bytes, "step_s",
                                                    curve->points[i].seconds, "plan", plan));
    }
    return json_pack("{s:i, s:b, s:o}", "version", 1, "stopped", curve->stopped, "curve", list);
}

static xm_status_t put_json(const void *context, FILE *stream)
{
    json_t *document = curve_json(context);
    bool written = document != NULL && json_dumpf(document, stream, JSON_INDENT(1)) == 0;

    json_decref(document);
    return written ? XM_OK : xm_error_set(XM_ERR_NO_MEMORY, "out of memory for the curve as JSON");
}

xm_status_t ap_pareto_run(const ap_planner_params_t *params, bool json, const char *output,
                          const char *plot)
{
    ap_pareto_t curve;
    ap_planner_params_t shown = *params;
    xm_cli_progress_t *progress = xm_cli_progress_create("autopar plan");
    char title[256];
    xm_status_t status;

    shown.progress = xm_cli_progress_update;
    shown.progress_arg = progress;
    status = ap_planner_curve(&shown, &curve);
    xm_cli_progress_destroy(progress);
    if (status != XM_OK) {
        return status;
    }
    (void)snprintf(title, sizeof(title), "%s: seconds of a step against memory of a device",
                   params->model);
    if (json) {
        status = ap_command_print_json(curve_json(&curve));
    } else {
        print(&curve);
    }
    if (status == XM_OK && output != NULL) {
        status = ap_output_file_write(output, put_json, &curve);
    }
    if (status == XM_OK && plot != NULL) {
        status = ap_pareto_plot(&curve, title, plot);
    }
    if (status == XM_OK && curve.stopped) {
        (void)fprintf(stderr, "autopar plan: --time-limit ended the curve or a search for it; "
                              "there may be plans that beat these\n");
    }
    ap_planner_curve_clear(&curve);
    return status == XM_OK ? xm_cli_flush() : status;
}
