/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The entry of the program autopar: it finds the sub-command by its name and hands the rest of the
 * command line over. Each sub-command lives in a file of its own and parses its own options, so
 * that a new one is a line of the table here. The environment is checked before any sub-command
 * runs: a setting that is silently ignored would make a measurement mean something else.
 */
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_support.h"
#include "comm/base.h"
#include <crossmesh/version.h>
#include "planner/cli/command.h"

static const struct {
    const char *name;
    int (*run)(int argc, char *const *argv);
    const char *summary;
} commands[] = {
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

enum { COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static int print_help(void)
{
    xm_status_t status;

    (void)printf("Usage: autopar COMMAND [OPTION...]\n\n"
                 "Plans how a model is divided over a cluster, from costs measured there.\n\n");
    for (size_t i = 0; i < COMMANDS; ++i) {
        (void)printf("  %-9s %s\n", commands[i].name, commands[i].summary);
    }
    (void)printf(
        "\n  --help     Print this help; autopar COMMAND --help lists a command's options.\n"
        "  --version  Print the version.\n");
    status = xm_cli_flush();
    return status == XM_OK ? 0 : xm_cli_fail("autopar", status);
}

/* Names the nearest command to a misspelt word, options included, and otherwise points to the list:
 * a bare "unknown command" would leave the reader to guess which it was. */
static int unknown_command(const char *word)
{
    const char *names[COMMANDS + 2] = {"--help", "--version"};
    const char *nearest;

    for (size_t i = 0; i < COMMANDS; ++i) {
        names[i + 2] = commands[i].name;
    }
    nearest = xm_text_nearest(word, names, COMMANDS + 2);
    if (nearest != NULL) {
        (void)XM_NOT_FOUND("unknown command '%s'; did you mean '%s'?", word, nearest);
    } else {
        (void)XM_NOT_FOUND("unknown command '%s'; autopar --help lists the commands", word);
    }
    return xm_cli_fail("autopar", XM_ERR_NOT_FOUND);
}

/* A search takes and frees tables of megabytes all the time. Handing them back to the kernel each
 * time, and having them cleared again, is a tenth of its processor time. */
static void keep_freed_memory(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, INT_MAX);
}

int main(int argc, char **argv)
{
    xm_status_t status;

    if (argc < 2) {
        (void)XM_INVALID("a command is needed; autopar --help lists the commands");
        return xm_cli_fail("autopar", XM_ERR_INVALID_ARGUMENT);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        return print_help();
    }
    if (strcmp(argv[1], "--version") == 0) {
        (void)printf("autopar %s\n", XM_VERSION_STRING);
        status = xm_cli_flush();
        return status == XM_OK ? 0 : xm_cli_fail("autopar", status);
    }
    /* Help and the version stand before this check, so that a wrong variable of the environment
     * cannot keep anyone from reading how to set it. */
    status = xm_cli_check_settings(getenv("RANK") == NULL, "autopar");
    if (status != XM_OK) {
        return xm_cli_fail("autopar", status);
    }
    keep_freed_memory();
    for (size_t i = 0; i < COMMANDS; ++i) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    return unknown_command(argv[1]);
}
