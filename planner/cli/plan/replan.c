/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autopar replan plans again what a plan was made for, where something is different now: the first
 * layers of the model are trained no more, hosts are lost, or the cluster is another. Model, batch,
 * schedule and memory are the plan's, so that whoever notices the change needs nothing but the plan
 * that is running. Which layers freeze, and when, is for the training to say.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cli_support.h"
#include "comm/base.h"
#include "planner/cli/command.h"
#include "planner/plan.h"
#include "planner/search.h"

enum { MOST_LOST = 1024, MOST_MICRO_BATCHES = 64 };

typedef struct replan_options {
    const char *cluster, *lost, *micro_batches, *output;
    int hosts, frozen;
    double time_limit;
    xm_cli_json_t json;
} replan_options_t;

static bool is_lost(const int64_t *lost, size_t count, int host)
{
    size_t i = 0;

    while (i < count && lost[i] != host) {
        ++i;
    }
    return i < count;
}

/* Replaces the profile by that of the hosts that are left, which move together. */
static xm_status_t lose_hosts(const char *text, xm_cluster_profile_t **profile)
{
    int hosts = xm_cluster_profile_hosts(*profile), left = 0, gone = 0, *order;
    int64_t lost[MOST_LOST];
    xm_cluster_profile_t *moved = NULL, *smaller = NULL;
    size_t count;
    xm_status_t status;

    XM_TRY(ap_command_parse_list("--lost", text, 0, lost, MOST_LOST, &count));
    for (size_t i = 0; i < count; ++i) {
        if (lost[i] >= hosts) {
            return XM_INVALID("--lost: the cluster's hosts are 0 to %d", hosts - 1);
        }
    }
    for (int h = 0; h < hosts; ++h) {
        left += !is_lost(lost, count, h);
    }
    if (left == 0) {
        return XM_INVALID("--lost: no host is left");
    }
    order = malloc((size_t)hosts * sizeof(*order));
    XM_NEED_MEMORY(order, "%d hosts", hosts);
    for (int h = 0; h < hosts; ++h) {
        bool is_gone = is_lost(lost, count, h);

        order[is_gone ? left + gone : h - gone] = h;
        gone += is_gone;
    }
    status = xm_cluster_profile_reorder(*profile, order, &moved);
    XM_THEN(status, xm_cluster_profile_resize(
                        moved, left, xm_cluster_profile_devices_per_host(*profile), &smaller));
    if (status == XM_OK) {
        xm_cluster_profile_destroy(*profile);
        *profile = smaller;
    }
    xm_cluster_profile_destroy(moved);
    free(order);
    return status;
}

/* Says what the new plan has over the old one, which would have to go on without what is lost. */
static void print_both(const ap_plan_info_t *before, const ap_plan_info_t *now)
{
    char was[32], is[32];

    (void)printf("# %s: step %s, before %s\n# trained parameters %.0f, before %.0f\n",
                 before->model, xm_text_format_seconds(now->step, is, sizeof(is)),
                 xm_text_format_seconds(before->step, was, sizeof(was)), now->parameters,
                 before->parameters);
}

static xm_status_t give_plan(const replan_options_t *o, const ap_plan_t *before,
                             const ap_plan_t *plan)
{
    xm_status_t status = XM_OK;

    if (xm_cli_wants_json(&o->json)) {
        status = xm_cli_give_text(&o->json, ap_plan_text(plan), "the text of the plan");
    }
    if (!o->json.print) {
        print_both(ap_plan_info(before), ap_plan_info(plan));
        ap_plan_print(plan, stdout);
    }
    if (status == XM_OK && o->output != NULL) {
        status = ap_plan_save(plan, o->output);
    }
    return status == XM_OK ? xm_cli_flush() : status;
}

static xm_status_t plan_again(const replan_options_t *o, const ap_plan_t *before,
                              const xm_cluster_profile_t *profile)
{
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    ap_planner_result_t result = {0};
    int64_t micro_batches[MOST_MICRO_BATCHES];
    xm_status_t status = XM_OK;

    ap_planner_params_of_plan(ap_plan_info(before), profile, &params);
    params.time_limit = o->time_limit;
    params.frozen = o->frozen >= 0 ? o->frozen : params.frozen;
    if (o->micro_batches != NULL) {
        params.micro_batches = micro_batches;
        status = ap_command_parse_list("--micro-batches", o->micro_batches, 1, micro_batches,
                                       MOST_MICRO_BATCHES, &params.micro_batch_count);
    }
    XM_THEN(status, ap_planner_run(&params, &result));
    XM_THEN(status, give_plan(o, before, result.plan));
    ap_planner_result_clear(&result);
    return status;
}

static xm_status_t replan(const xm_cli_t *cli, void *options)
{
    const replan_options_t *o = options;
    xm_cluster_profile_t *profile = NULL;
    ap_plan_t *before = NULL;
    const ap_plan_info_t *info;
    xm_status_t status;

    XM_TRY(ap_plan_load(ap_command_argument(cli, 0), &before));
    info = ap_plan_info(before);
    status = o->cluster == NULL
                 ? XM_INVALID("--cluster is needed")
                 : ap_command_load_cluster(o->cluster, o->hosts > 0 ? o->hosts : info->hosts,
                                           info->devices_per_host, AP_COMMAND_NO_OVERLAP, &profile);
    if (status == XM_OK && o->lost != NULL) {
        status = lose_hosts(o->lost, &profile);
    }
    XM_THEN(status, plan_again(o, before, profile));
    xm_cluster_profile_destroy(profile);
    ap_plan_destroy(before);
    return status;
}

int ap_command_replan(int argc, char *const *argv)
{
    replan_options_t o = {.frozen = -1};
    const xm_cli_option_t table[] = {
        {"cluster", 0, XM_CLI_STRING, &o.cluster, "FILE", 0, 0,
         "Cluster profile as it is now; resized to the plan's hosts."},
        {"hosts", 0, XM_CLI_INT, &o.hosts, "HOSTS", 1, 4096, "So many hosts instead."},
        {"lost", 0, XM_CLI_STRING, &o.lost, "LIST", 0, 0,
         "Hosts that are gone, e.g. 1,3 (the first is 0); the others are numbered anew."},
        {"frozen", 0, XM_CLI_INT, &o.frozen, "LAYERS", 0, 1 << 20,
         "So many layers, the first, are not trained: no backward pass, gradients or optimizer "
         "state (default: the plan's)."},
        AP_COMMAND_MICRO_BATCHES(&o.micro_batches),
        {"time-limit", 0, XM_CLI_DOUBLE, &o.time_limit, "SECONDS", 0, 1000000,
         "Stop after this time with the best plan so far."},
        AP_COMMAND_PLAN_OUTPUT(&o.output, &o.json),
    };
    const xm_cli_command_t command = XM_CLI_COMMAND(
        "autopar replan", "PLAN.json",
        "Plans again what a plan was made for, with layers frozen or hosts lost.",
        "autopar replan plan.json --cluster cluster.json --frozen 12 -o next.json", table, 1, 1);

    return xm_cli_main(&command, argc, argv, replan, &o);
}
