/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autopar plan --pareto: what a plan costs in time that takes less memory. The table has a line for
 * each plan; JSON has the plans themselves, for each of them can be trained by.
 */

#include "planner/cli/plan/pareto.h"

#include <stdio.h>
#include <stdlib.h>

#include "planner/cli/command.h"
#include "planner/cli/output_file.h"

static void print(const ap_planner_curve_t *curve)
{
    const ap_plan_info_t *info = ap_plan_info(curve->plans[0]);

    (void)printf("# model %s on cluster %s: plans that no other beats in time and memory: %d\n"
                 "#    memory          step    gap  stages  micro-batches  %13s  digest\n",
                 info->model, info->cluster, curve->count, "recomputation");
    for (int i = 0; i < curve->count; ++i) {
        const ap_plan_t *plan = curve->plans[i];
        char bytes[32], recompute[32], gap[16] = "?";

        info = ap_plan_info(plan);
        if (info->bound > 0.0) {
            (void)snprintf(gap, sizeof(gap), "%.1f%%", 100.0 * (info->step / info->bound - 1.0));
        }
        (void)printf("%11s  %10.4f s  %5s  %6d  %13d  %13s  %s\n",
                     xm_text_format_bytes((uint64_t)ap_plan_memory(plan), bytes, sizeof(bytes)),
                     info->step, gap, ap_plan_stages(plan), (int)info->micro_batches,
                     ap_plan_recompute_text(plan, recompute, sizeof(recompute)),
                     ap_plan_digest(plan));
    }
}

static json_t *curve_json(const ap_planner_curve_t *curve)
{
    json_t *list = json_array();

    for (int i = 0; i < curve->count; ++i) {
        char *text = ap_plan_text(curve->plans[i]);

        (void)json_array_append_new(
            list, json_pack("{s:f, s:f, s:o}", "memory_bytes", ap_plan_memory(curve->plans[i]),
                            "step_s", ap_plan_info(curve->plans[i])->step, "plan",
                            text != NULL ? json_loads(text, 0, NULL) : NULL));
        free(text);
    }
    return json_pack("{s:i, s:b, s:o}", "version", 1, "stopped", curve->stopped, "curve", list);
}

/* Both axes begin at 0. Between two plans the slower one is the best there is, hence steps. */
static xm_status_t put_figure(const void *context, FILE *stream)
{
    enum { WIDTH = 600, HEIGHT = 300, MARGIN = 60 };
    const ap_planner_curve_t *curve = context;
    const ap_plan_t *fastest = curve->plans[0], *smallest = curve->plans[curve->count - 1];
    double across = WIDTH / ap_plan_memory(fastest), up = HEIGHT / ap_plan_info(smallest)->step;
    char most[32], least[32];

    (void)fprintf(stream,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"%d %d %d %d\" "
                  "font-family=\"sans-serif\" font-size=\"12\">\n<title>%s</title>\n"
                  "<path stroke=\"#222\" fill=\"none\" d=\"M0,-%dV0H%d\"/>\n"
                  "<text y=\"-%d\">%.4g s within %s, %.4g s within %s of a device</text>\n"
                  "<path fill=\"none\" stroke=\"#2f6ca8\" stroke-width=\"2\" d=\"M%d,%.1f",
                  -MARGIN, -HEIGHT - MARGIN, WIDTH + 2 * MARGIN, HEIGHT + 2 * MARGIN,
                  "Seconds of a step against memory of a device", HEIGHT, WIDTH, HEIGHT + 20,
                  ap_plan_info(fastest)->step,
                  xm_text_format_bytes((uint64_t)ap_plan_memory(fastest), most, sizeof(most)),
                  ap_plan_info(smallest)->step,
                  xm_text_format_bytes((uint64_t)ap_plan_memory(smallest), least, sizeof(least)),
                  WIDTH, -up * ap_plan_info(fastest)->step);
    for (int i = 0; i < curve->count; ++i) {
        (void)fprintf(stream, "V%.1fH%.1f", -up * ap_plan_info(curve->plans[i])->step,
                      across * ap_plan_memory(curve->plans[i]));
    }
    (void)fputs("\"/>\n</svg>\n", stream);
    return XM_OK;
}

xm_status_t ap_pareto_run(const ap_planner_params_t *params, const xm_cli_json_t *json,
                          const char *output, const char *plot)
{
    ap_planner_params_t shown = *params;
    xm_cli_progress_t *progress = xm_cli_progress_create("autopar plan");
    ap_planner_curve_t curve;
    xm_status_t status;

    shown.progress = xm_cli_progress_update;
    shown.progress_arg = progress;
    status = ap_planner_curve(&shown, &curve);
    xm_cli_progress_destroy(progress);
    XM_TRY(status);
    if (!json->print) {
        print(&curve);
    }
    if (xm_cli_wants_json(json)) {
        status = xm_cli_give_json(json, curve_json(&curve));
    }
    if (status == XM_OK && output != NULL) {
        status = xm_cli_give_json(&(xm_cli_json_t){.file = output}, curve_json(&curve));
    }
    if (status == XM_OK && plot != NULL) {
        status = ap_output_file_write(plot, put_figure, &curve);
    }
    if (curve.stopped) {
        (void)fprintf(stderr, "autopar plan: stopped by --time-limit; the curve goes on\n");
    }
    ap_planner_curve_clear(&curve);
    return status == XM_OK ? xm_cli_flush() : status;
}
