/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The entry of the program autopar: it finds the sub-command by its name and hands the rest of the
 * command line over. Each sub-command lives in a file of its own and parses its own options, so
 * that a new one is a line of the table here. The environment is checked before any sub-command
 * runs: a setting that is silently ignored would make a measurement mean something else.
 */
#include <limits.h>
#include <malloc.h>
#include <stdlib.h>

#include "cli_support.h"
#include "planner/cli/command.h"

static const xm_cli_subcommand_t commands[] = {
    {"probe", ap_command_probe, "Measure this cluster and write its profile."},
    {"plan", ap_command_plan, "Find the best parallel plan of a model on a cluster."},
    {"replan", ap_command_replan, "Plan again with layers frozen or hosts lost."},
    {"shard", ap_command_shard, "Shard one model over one device mesh (no pipeline)."},
    {"solve", ap_command_solve, "Solve a problem of the IOPDDL format within a given time."},
    {"simulate", ap_command_simulate, "Run a plan's pipeline under a schedule, event by event."},
    {"import", ap_command_import, "Read a model of any kind and write it as a JSON graph."},
    {"judge", ap_command_judge, "Hold predictions against measured steps."},
    {"fit", ap_command_fit, "Fit what a runtime adds to prices to measured steps."},
    {"compare", ap_command_compare, "Plan as other planners would, and compare their plans."},
    {"explain", ap_command_explain, "Say why a plan is what it is, and what came second."},
    {"export", ap_command_export, "Write a plan's shardings for JAX, XLA or PyTorch."},
};

/* A search takes and frees tables of megabytes all the time. Handing them back to the kernel each
 * time, and having them cleared again, is a tenth of its processor time. */
static xm_status_t prepare(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, INT_MAX);
    return xm_cli_check_settings(getenv("RANK") == NULL, "autopar");
}

int main(int argc, char **argv)
{
    return xm_cli_dispatch(
        "autopar", "Plans how a model is divided over a cluster, from costs measured there.",
        commands, sizeof(commands) / sizeof(commands[0]), prepare, argc, argv);
}
