/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autopar explain says why a plan is what it is. The plan file holds the decisions but not the
 * costs of what was rejected, so the command needs the cluster profile of the planning again and
 * prices the alternatives anew. It is a command of its own because planning is often done once and
 * asked about many times.
 */
#include <stdio.h>

#include "cli_support.h"
#include "comm/base.h"
#include "planner/cli/command.h"
#include "planner/explain.h"
#include "planner/plan.h"

enum { DEFAULT_OPERATORS = 3 };

static const char program[] = "autopar explain";
static const char summary[] =
    "For each decision of the plan: what was chosen, what came second and at which "
    "cost, and the numbers that decided.";

typedef struct explain_options {
    const char *cluster;
    double overlap;
    int operators;
    xm_cli_json_t json;
} explain_options_t;

/* Prints the plan before its explanation, since the explanation names stages and boundaries by
 * number; JSON has only the explanation, as the plan is a JSON file already. */
static xm_status_t print(const ap_plan_t *plan, const ap_explanation_t *explanation,
                         const xm_cli_json_t *json)
{
    xm_status_t status = XM_OK;

    if (xm_cli_wants_json(json)) {
        status =
            xm_cli_give_text(json, ap_explanation_text(explanation), "the text of the explanation");
    }
    if (!json->print) {
        ap_plan_print(plan, stdout);
        ap_explanation_print(explanation, stdout);
    }
    return status == XM_OK ? xm_cli_flush() : status;
}

/* The profile is resized to the hosts and devices of the plan, so that the alternatives are priced
 * on the cluster that the plan was made for, even where --hosts had changed it then. */
static xm_status_t run(const xm_cli_t *cli, void *options)
{
    const char *path = ap_command_argument(cli, 0);
    const explain_options_t *o = options;
    xm_cluster_profile_t *profile = NULL;
    ap_explanation_t *explanation = NULL;
    ap_plan_t *plan;
    xm_status_t status;

    XM_TRY(ap_plan_load(path, &plan));
    status = o->cluster == NULL ? XM_INVALID("--cluster is needed")
                                : ap_command_load_cluster(o->cluster, ap_plan_info(plan)->hosts,
                                                          ap_plan_info(plan)->devices_per_host,
                                                          o->overlap, &profile);
    XM_THEN(status, ap_explanation_create(plan, profile, o->operators, &explanation));
    XM_THEN(status, print(plan, explanation, &o->json));
    ap_explanation_destroy(explanation);
    xm_cluster_profile_destroy(profile);
    ap_plan_destroy(plan);
    return status;
}

int ap_command_explain(int argc, char *const *argv)
{
    explain_options_t o = {.operators = DEFAULT_OPERATORS, .overlap = AP_COMMAND_NO_OVERLAP};
    const xm_cli_option_t table[] = {
        {"cluster", 0, XM_CLI_STRING, &o.cluster, "FILE", 0, 0,
         "Cluster profile that the plan was made with; resized to the plan's hosts."},
        {"overlap", 0, XM_CLI_DOUBLE, &o.overlap, "PART", 0, 1,
         "Part of the gradients' collectives that hides behind the backward pass, 0 to 1 "
         "(default: the profile's); as the plan was made with."},
        {"operators", 0, XM_CLI_INT, &o.operators, "COUNT", 0, 1000,
         "Operators to explain in each stage, the dearest first (default 3)."},
        XM_CLI_JSON_OPTIONS(XM_CLI_OUTPUT, &o.json, "Print JSON instead of text."),
    };
    const xm_cli_command_t command =
        XM_CLI_COMMAND(program, "PLAN.json", summary,
                       "autopar explain plan.json --cluster cluster.json", table, 1, 1);

    return xm_cli_main(&command, argc, argv, run, &o);
}
