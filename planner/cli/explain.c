/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autopar explain: says why a plan is what it is. The plan file holds the decisions but not the
 * costs of what was rejected, so the command needs the cluster profile of the planning again and
 * prices the alternatives anew. It is a command of its own because planning is often done once and
 * asked about many times.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cli_support.h"
#include "planner/cli/command.h"
#include "planner/explain.h"
#include "planner/plan.h"

enum { DEFAULT_OPERATORS = 3 };

static const char program[] = "autopar explain";

typedef struct explain_options {
    const char *cluster;
    double overlap;
    int operators;
    bool json;
} explain_options_t;

static xm_status_t parse_options(int argc, char *const *argv, explain_options_t *o, xm_cli_t **cli)
{
    const xm_cli_option_t options[] = {
        {.name = "cluster",
         .kind = XM_CLI_STRING,
         .target = &o->cluster,
         .argument = "FILE",
         .help = "Cluster profile that the plan was made with; resized to the plan's hosts."},
        {.name = "overlap",
         .kind = XM_CLI_DOUBLE,
         .target = &o->overlap,
         .argument = "PART",
         .minimum = 0,
         .maximum = 1,
         .help = "Part of the gradients' collectives that hides behind the backward pass, 0 to 1\n"
                 "(default: the profile's); as the plan was made with."},
        {.name = "operators",
         .kind = XM_CLI_INT,
         .target = &o->operators,
         .argument = "COUNT",
         .minimum = 0,
         .maximum = 1000,
         .help = "Operators to explain in each stage, the dearest first (default 3)."},
        {.name = "json",
         .kind = XM_CLI_FLAG,
         .target = &o->json,
         .help = "Print JSON instead of text."},
    };
    xm_cli_command_t command = XM_CLI_COMMAND_INIT;

    command.program = program;
    command.arguments = "PLAN.json";
    command.summary =
        "For each decision of the plan: what was chosen, what came second and at which\n"
        "cost, and the numbers that decided.";
    command.options = options;
    command.option_count = sizeof(options) / sizeof(options[0]);
    command.min_arguments = 1;
    command.max_arguments = 1;
    return xm_cli_parse(&command, argc, argv, cli);
}

/* Prints the plan before its explanation, since the explanation names stages and boundaries by
 * number; JSON has only the explanation, as the plan is a JSON file already. */
static xm_status_t print(const ap_plan_t *plan, const ap_explanation_t *explanation, bool json)
{
    if (json) {
        char *text = ap_explanation_text(explanation);

        if (text == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for the text of the explanation");
        }
        (void)puts(text);
        free(text);
    } else {
        ap_plan_print(plan, stdout);
        ap_explanation_print(explanation, stdout);
    }
    return xm_cli_flush();
}

/* The profile is resized to the hosts and devices of the plan, so that the alternatives are priced
 * on the cluster that the plan was made for, even where --hosts had changed it then. */
static xm_status_t run(const char *path, const explain_options_t *o)
{
    xm_cluster_profile_t *profile = NULL;
    ap_explanation_t *explanation = NULL;
    ap_plan_t *plan;
    xm_status_t status;

    if (o->cluster == NULL) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "--cluster is needed");
    }
    status = ap_plan_load(path, &plan);
    if (status != XM_OK) {
        return status;
    }
    status = ap_command_load_cluster(o->cluster, ap_plan_info(plan)->hosts,
                                     ap_plan_info(plan)->devices_per_host, &profile);
    if (status == XM_OK) {
        status = ap_command_set_overlap(o->overlap, &profile);
    }
    if (status == XM_OK) {
        status = ap_explanation_create(plan, profile, o->operators, &explanation);
    }
    if (status == XM_OK) {
        status = print(plan, explanation, o->json);
    }
    ap_explanation_destroy(explanation);
    xm_cluster_profile_destroy(profile);
    ap_plan_destroy(plan);
    return status;
}

int ap_command_explain(int argc, char *const *argv)
{
    explain_options_t options = {.operators = DEFAULT_OPERATORS, .overlap = AP_COMMAND_NO_OVERLAP};
    xm_cli_t *cli = NULL;
    xm_status_t status = parse_options(argc, argv, &options, &cli);

    if (status == XM_OK && !xm_cli_finished(cli)) {
        size_t count;

        status = run(xm_cli_arguments(cli, &count)[0], &options);
    }
    xm_cli_destroy(cli);
    return status == XM_OK ? 0 : xm_cli_fail(program, status);
}
