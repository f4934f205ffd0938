/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of pipeline-bench. The cluster is described in reshard-bench's
 * options, so that emulation and rates need no code of their own here.
 */
#include "bench/pipeline/options.h"

#include <crossmesh/version.h>

enum { MOST_RUNS = 100000, MOST_MICRO_BATCHES = 1 << 20 };

static const char summary[] =
    "Runs the pipelines of parallel plans on real processes, one for each device: every rank goes "
    "through its stage's list of the schedule, computes as long as the plan says, and reshards "
    "what passes between the stages. Prints the step time that the simulation predicts beside the "
    "one measured. The ranks are processes of this machine, or those of a launcher such as "
    "torchrun, mpirun or srun. docs/pipeline-bench.md explains the columns.";

xm_status_t rb_pipeline_options_parse(int argc, char *const *argv, rb_pipeline_options_t *o)
{
    const xm_cli_option_t table[] = {
        {"profile", 0, XM_CLI_STRING, &o->profile, "FILE", 0, 0,
         "Price and plan the reshardings on this cluster profile (default: as the plan predicts)."},
        {"schedule", 0, XM_CLI_STRING, &o->schedule, "NAME", 0, 0,
         "Run the stages under another schedule (default: the plan's)."},
        {"micro-batches", 0, XM_CLI_INT, &o->micro_batches, "COUNT", 1, MOST_MICRO_BATCHES,
         "So many micro-batches of the plan's size (default: as many as the plan has)."},
        {"compute", 0, XM_CLI_CHOICE, &o->compute, RB_COMPUTE_NAMES, 0, 0,
         "What ranks do for the time of a pass: nothing, as if a device computed (the default), "
         "integer arithmetic, or products of matrices."},
        {"nic-gbps", 0, XM_CLI_DOUBLE, &o->nic_gbps, "GBPS", 1e-3, 1e3,
         "Emulate the plan's hosts, each with a NIC of this speed; needs root or user namespaces."},
        {"checked", 0, XM_CLI_INT, &o->checked, "RUNS", 0, MOST_RUNS,
         "Runs in which every byte is checked, before the others (default 1)."},
        {"warmup", 'w', XM_CLI_INT, &o->warmup, "W", 0, MOST_RUNS,
         "Runs before those that are timed (default 1)."},
        {"iterations", 'i', XM_CLI_INT, &o->iterations, "I", 1, MOST_RUNS,
         "Runs that are timed (default 5)."},
        {"trace", 0, XM_CLI_STRING, &o->trace_path, "FILE", 0, 0,
         "Write the timeline of the last run as a Chrome trace; one plan only."},
        {"plot", 0, XM_CLI_STRING, &o->plot_path, "FILE", 0, 0,
         "Write the timeline of the last run as SVG; one plan only."},
        {"wide", 0, XM_CLI_FLAG, &o->wide, NULL, 0, 0, "Print all columns of the table."},
        {"csv", 0, XM_CLI_FLAG, &o->csv, NULL, 0, 0, "Print all columns as CSV, and nothing else."},
        XM_CLI_JSON_OPTIONS(XM_CLI_STRING, &o->json, "Print JSON instead of a table."),
    };
    xm_cli_command_t command =
        XM_CLI_COMMAND("pipeline-bench", "PLAN.json ...", summary,
                       "pipeline-bench plan.json --profile cluster.json", table, 1, 4096);

    *o = (rb_pipeline_options_t){
        .argc = argc, .argv = argv, .checked = 1, .warmup = 1, .iterations = 5};
    command.version = "pipeline-bench " XM_VERSION_STRING;
    XM_TRY(xm_cli_parse(&command, argc, argv, &o->cli));
    /* The plans stay the parser's, so it is kept until the end. */
    o->plans = xm_cli_arguments(o->cli, &o->plan_count);
    if (o->plan_count > 1 && (o->trace_path != NULL || o->plot_path != NULL)) {
        rb_pipeline_options_clear(o);
        return XM_INVALID("--trace and --plot show one plan, and %zu are given", o->plan_count);
    }
    return XM_OK;
}

xm_status_t rb_pipeline_options_check_outputs(const rb_pipeline_options_t *options)
{
    XM_TRY(xm_file_check_output("--json-file", options->json.file));

    XM_TRY(xm_file_check_output("--trace", options->trace_path));
    return xm_file_check_output("--plot", options->plot_path);
}

/* One NIC for each host, since plans know no more. */
void rb_pipeline_options_cluster(const rb_pipeline_options_t *options, int hosts, int per_host,
                                 rb_options_t *cluster)
{
    *cluster = (rb_options_t){.ranks = hosts * per_host,
                              .hosts = options->nic_gbps > 0 ? hosts : 0,
                              .ranks_per_host = per_host,
                              .transport = RB_TRANSPORT_UCX,
                              .nics_per_host = 1,
                              .nic_rates = options->nic_gbps > 0 ? 1 : 0,
                              .nic_gbps = {options->nic_gbps}};
}

void rb_pipeline_options_clear(rb_pipeline_options_t *options)
{
    xm_cli_destroy(options->cli);
    *options = (rb_pipeline_options_t){0};
}
