/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autopar simulate: runs the pipeline of a plan under a schedule, event by event, and prints what
 * each mesh does meanwhile. The closed formula of the search knows only sums and maxima of stage
 * times; the simulation also sees transfers that wait for each other, and it can run a schedule
 * that the plan was not made for. Nothing is measured or planned anew: all times come from the
 * plan, or, with --cluster, the reshardings from a profile.
 */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>

#include "cli_support.h"
#include "comm/base.h"
#include "planner/cli/command.h"
#include "planner/pipeline.h"
#include "planner/plan.h"

enum { TEXT = 32, TITLE = 160 };

static const char program[] = "autopar simulate";
static const char summary[] = "Runs the plan's pipeline under a schedule, event by event, with its "
                              "reshardings: step time, idle time, activations held.";

typedef struct simulate_options {
    const char *schedule, *cluster, *trace, *plot, *slice_times;
    ap_token_slices_t cut;
    ap_plan_simulation_t how; /* 0: the default of the schedule */
    int micro_batches, seed;
    double slowdown, host_gbps; /* negative: the profile's */
    xm_cli_json_t json;
} simulate_options_t;

static const char *seconds_text(int64_t nanoseconds, char *text)
{
    return xm_text_format_seconds(1e-9 * (double)nanoseconds, text, TEXT);
}

/* Times are whole nanoseconds in the simulation, so idle time is exactly what busy time and
 * transfers leave of the makespan. */
static void print_table(const ap_plan_t *plan, const ap_schedule_t *schedule,
                        const ap_pipeline_run_t *run, bool swap)
{
    char step[TEXT], makespan[TEXT];

    (void)printf("# %s under %s: %d micro-batches, %d stages on %d meshes\n",
                 ap_plan_info(plan)->model, ap_schedule_name(schedule->kind),
                 schedule->micro_batches * schedule->updates, schedule->stages, schedule->devices);
    (void)printf("# %5s %12s %12s %12s %9s %16s\n", ap_pipeline_lane(schedule), "busy", "transfers",
                 "idle", "in flight", "activations");
    for (int device = 0; device < run->devices; ++device) {
        const ap_pipeline_device_t *of = &run->device[device];
        char busy[TEXT], transfers[TEXT], idle[TEXT], bytes[TEXT];
        int64_t held = of->peak_bytes, two = 2 * of->peak_bytes / of->peak_in_flight;

        (void)printf("  %5d %12s %12s %12s %9d %16s\n", device, seconds_text(of->busy_ns, busy),
                     seconds_text(of->transfer_ns, transfers),
                     seconds_text(run->makespan_ns - of->busy_ns - of->transfer_ns, idle),
                     of->peak_in_flight,
                     xm_text_format_bytes((uint64_t)(swap && two < held ? two : held), bytes,
                                          sizeof(bytes)));
    }
    (void)printf("step %s", seconds_text(run->step_ns, step));
    if (schedule->batches > 1) {
        (void)printf(" of %d in %s", schedule->batches / schedule->updates,
                     seconds_text(run->makespan_ns, makespan));
    }
    (void)printf(", %.1f %% without a pass\n", 100.0 * run->bubble);
    if (!ap_schedule_is_synchronous(schedule->kind)) {
        for (int stage = 0; stage < schedule->stages; ++stage) {
            (void)printf("stage %d: versions %d, forward passes %.3g updates late\n", stage,
                         ap_schedule_versions(schedule, stage), ap_schedule_delay(schedule, stage));
        }
    }
}

/* Slices of unlike lengths, and what terapipe's formula makes of their times. */
static void print_slices(const ap_token_slices_t *cut)
{
    char list[512] = "", longest[TEXT], sum[TEXT], seconds[TEXT];

    for (int i = 0; i < cut->count; ++i) {
        xm_text_list_add(list, sizeof(list), ",", "%d", cut->length[i]);
    }
    xm_text_print_wrapped(
        stdout, XM_TEXT_COLUMNS, "# ", "#   ",
        "slices of %s tokens: %d x %s + %d x %s = %s for forward passes as measured", list,
        cut->micro_batches, xm_text_format_seconds(cut->sum, sum, sizeof(sum)), cut->stages - 1,
        xm_text_format_seconds(cut->longest, longest, sizeof(longest)),
        xm_text_format_seconds(cut->seconds, seconds, sizeof(seconds)));
}

static xm_status_t write_run(const simulate_options_t *o, const ap_plan_t *plan,
                             const ap_schedule_t *schedule, const ap_pipeline_run_t *run)
{
    char title[TITLE];
    xm_status_t status = XM_OK;

    if (xm_cli_wants_json(&o->json)) {
        status =
            xm_cli_give_text(&o->json, ap_pipeline_text(schedule, run), "the text of the timeline");
    }
    if (!o->json.print) {
        if (o->cut.count > 0) {
            print_slices(&o->cut);
        }
        print_table(plan, schedule, run, o->how.swap);
    }
    if (status == XM_OK && o->trace != NULL) {
        status = ap_pipeline_trace(schedule, run, o->trace);
    }
    if (status == XM_OK && o->plot != NULL) {
        (void)snprintf(title, sizeof(title), "%.60s on %.60s", ap_plan_info(plan)->model,
                       ap_plan_info(plan)->cluster);
        status = ap_pipeline_plot(schedule, run, title, o->plot);
    }
    return status == XM_OK ? xm_cli_flush() : status;
}

/* The schedule is the plan's own unless another is named. All destroy functions take NULL, so that
 * one way out serves every failure after the plan is loaded. */
static xm_status_t run(const xm_cli_t *cli, void *options)
{
    const char *path = ap_command_argument(cli, 0);
    simulate_options_t *o = options;
    xm_cluster_profile_t *profile = NULL;
    ap_schedule_t *schedule = NULL;
    ap_pipeline_run_t *done = NULL;
    ap_plan_t *plan;
    xm_status_t status;

    XM_TRY(ap_plan_load(path, &plan));
    o->how.micro_batches = o->micro_batches;
    o->how.seed = (uint64_t)o->seed;
    status = ap_schedule_find(o->schedule != NULL ? o->schedule : ap_plan_info(plan)->schedule,
                              &o->how.kind);
    if (status == XM_OK && o->cluster != NULL) {
        status = ap_command_load_cluster(o->cluster, ap_plan_info(plan)->hosts,
                                         ap_plan_info(plan)->devices_per_host,
                                         AP_COMMAND_NO_OVERLAP, &profile);
        o->how.profile = profile;
    }
    if (profile != NULL) {
        o->how.runtime = *xm_cluster_profile_runtime(profile);
    }
    if (o->slowdown >= 0) {
        o->how.runtime.slowdown = o->slowdown;
    }
    if (o->how.jitter < 0) {
        o->how.jitter = o->how.kind == AP_SCHEDULE_VARUNA ? fmin(o->how.runtime.jitter, 1.0) : 0.0;
    }
    if (o->host_gbps >= 0) {
        o->how.runtime.host_link = 1e9 / 8 * o->host_gbps;
    }
    if (status == XM_OK && o->slice_times != NULL) {
        int64_t rounds =
            o->micro_batches > 0 ? o->micro_batches : ap_plan_info(plan)->micro_batches;

        status = ap_token_slices_load(o->slice_times, ap_plan_stages(plan), (int)rounds,
                                      o->how.slices, &o->cut);
        o->how.cut = &o->cut;
    }
    XM_THEN(status, ap_plan_simulate(plan, &o->how, &schedule, &done));
    XM_THEN(status, write_run(o, plan, schedule, done));
    ap_pipeline_run_destroy(done);
    ap_schedule_destroy(schedule);
    ap_token_slices_clear(&o->cut);
    xm_cluster_profile_destroy(profile);
    ap_plan_destroy(plan);
    return status;
}

int ap_command_simulate(int argc, char *const *argv)
{
    simulate_options_t o = {.how = AP_PLAN_SIMULATION_INIT, .slowdown = -1.0, .host_gbps = -1.0};

    o.how.jitter = -1.0;
    const xm_cli_option_t table[] = {
        {"schedule", 0, XM_CLI_STRING, &o.schedule, "NAME", 0, 0,
         "gpipe, 1f1b, interleaved, eager-1f1b, eager-1f1b-w, chimera, zb-h1, zb-h2, "
         "terapipe, pipedream-2bw, zb-v, dualpipev, pipedream, pipemare, hetpipe or varuna "
         "(default: "
         "the plan's)."},
        {"micro-batches", 0, XM_CLI_INT, &o.micro_batches, "COUNT", 1, 1 << 20,
         "So many micro-batches of the plan's size (default: as many as the plan has)."},
        {"virtual-stages", 0, XM_CLI_INT, &o.how.virtual_stages, "COUNT", 1, 1024,
         "interleaved: equal parts of every stage (default 2)."},
        {"slices", 0, XM_CLI_INT, &o.how.slices, "COUNT", 1, 65536,
         "terapipe: equal slices of every micro-batch (default 1)."},
        {"slice-times", 0, XM_CLI_STRING, &o.slice_times, "FILE", 0, 0,
         "terapipe: measured times of slices, lines of length, context and seconds: slices are "
         "chosen by them (--slices: equal ones) and take as long."},
        {"batches", 0, XM_CLI_INT, &o.how.batches, "COUNT", 1, 1024,
         "pipedream-2bw, pipedream, pipemare, hetpipe: steps to simulate (default 3, of pipemare "
         "4)."},
        {"jitter", 0, XM_CLI_DOUBLE, &o.how.jitter, "SHARE", 0, 1,
         "Passes and messages take up to this share more or less than their time (default: that of "
         "--cluster for varuna, else 0)."},
        {"seed", 0, XM_CLI_INT, &o.seed, "NUMBER", 0, INT_MAX, "Of the jitter (default 0)."},
        {"slowdown", 0, XM_CLI_DOUBLE, &o.slowdown, "SHARE", 0, 100,
         "Passes take this share longer while their device sends or receives (default: the "
         "profile's, or 0)."},
        {"swap", 0, XM_CLI_FLAG, &o.how.swap, NULL, 0, 0,
         "Activations wait in host memory; the device has those of two micro-batches."},
        {"offload", 0, XM_CLI_FLAG, &o.how.offload, NULL, 0, 0,
         "Weights, gradients and optimizer state come from host memory and go back once a step."},
        {"host-gbps", 0, XM_CLI_DOUBLE, &o.host_gbps, "GBPS", 0, 1e6,
         "Gbit/s between a device and host memory, each way (default: the profile's)."},
        {"fold", 0, XM_CLI_FLAG, &o.how.fold, NULL, 0, 0,
         "The plan's stages are the virtual ones, several to a device."},
        {"blocking", 0, XM_CLI_FLAG, &o.how.blocking, NULL, 0, 0,
         "Transfers keep their devices busy instead of overlapping with passes."},
        {"cluster", 0, XM_CLI_STRING, &o.cluster, "FILE", 0, 0,
         "Price the reshardings on this cluster profile, and add what its runtime adds (default: "
         "as the plan predicts)."},
        {"trace", 0, XM_CLI_OUTPUT, &o.trace, "FILE", 0, 0,
         "Write the timeline as a Chrome trace."},
        {"plot", 0, XM_CLI_OUTPUT, &o.plot, "FILE", 0, 0, "Write the timeline as SVG."},
        XM_CLI_JSON_OPTIONS(XM_CLI_OUTPUT, &o.json,
                            "Print every pass with its times as JSON instead of a table."),
    };
    const xm_cli_command_t command = XM_CLI_COMMAND(
        program, "PLAN.json", summary,
        "autopar simulate plan.json --schedule gpipe --plot timeline.svg", table, 1, 1);

    return xm_cli_main(&command, argc, argv, run, &o);
}
