/* SPDX-License-Identifier: Apache-2.0 */
/* Goes through the parts of a cluster that can be paid for, and plans for each. */

#include "planner/search/rent.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

enum { MOST_PARTS = 1024 };

typedef struct parts {
    const ap_planner_params_t *params;
    const ap_planner_goal_t *goal;
    int hosts, devices, kinds;
    int *kind_of; /* [hosts] */
    int *have;    /* [kinds] hosts */
    int *take;    /* [kinds], of a part */
    int *order;   /* [hosts]: those of a part first */
    int64_t count;
    double fastest; /* samples per second of any part */
    ap_planner_result_t *result;
    ap_planner_rent_t *rent;
} parts_t;

static bool are_alike(const xm_cluster_profile_t *profile, int a, int b)
{
    const xm_cluster_device_t one = xm_cluster_profile_host_device(profile, a);
    const xm_cluster_device_t other = xm_cluster_profile_host_device(profile, b);

    return xm_cluster_device_same(&one, &other) &&
           xm_cluster_profile_host_nic_bandwidth(profile, a) ==
               xm_cluster_profile_host_nic_bandwidth(profile, b);
}

static void find_kinds(parts_t *parts)
{
    for (int h = 0; h < parts->hosts; ++h) {
        int same = 0;

        while (same < h && !are_alike(parts->params->profile, same, h)) {
            ++same;
        }
        parts->kind_of[h] = same < h ? parts->kind_of[same] : parts->kinds++;
        ++parts->have[parts->kind_of[h]];
    }
}

/* The hosts of the part that `take` says come first, in the profile's order; how many they are. */
static int order_hosts(const parts_t *parts)
{
    int taken = 0, left = 0;

    for (int k = 0; k < parts->kinds; ++k) {
        taken += parts->take[k];
    }
    for (int h = 0, next = 0; h < parts->hosts; ++h) {
        int before = 0, kind = parts->kind_of[h];

        for (int i = 0; i < h; ++i) {
            before += parts->kind_of[i] == kind;
        }
        if (before < parts->take[kind]) {
            parts->order[next++] = h;
        } else {
            parts->order[taken + left++] = h;
        }
    }
    return taken;
}

static double price_of(const parts_t *parts, int hosts, int devices)
{
    double sum = 0;

    for (int i = 0; i < hosts; ++i) {
        sum +=
            devices * xm_cluster_profile_host_device(parts->params->profile, parts->order[i]).price;
    }
    return sum;
}

/* Keeps a part's plan if it is fast enough and the cheapest so far. */
static xm_status_t take_in(parts_t *parts, int hosts, int devices, ap_planner_result_t *made)
{
    const ap_plan_info_t *info = ap_plan_info(made->plan);
    double throughput = (double)info->global_batch / info->step;
    double price = price_of(parts, hosts, devices), cost = price * info->step / 3600;
    int *list;

    parts->fastest = fmax(parts->fastest, throughput);
    if (throughput < parts->goal->min_throughput ||
        (parts->result->plan != NULL && cost >= parts->rent->cost)) {
        ap_planner_result_clear(made);
        return XM_OK;
    }
    list = malloc((size_t)hosts * sizeof(*list));
    if (list == NULL) {
        ap_planner_result_clear(made);
        return XM_NO_MEMORY("%d hosts", hosts);
    }
    memcpy(list, parts->order, (size_t)hosts * sizeof(*list));
    free(parts->rent->host);
    ap_planner_result_clear(parts->result);
    *parts->rent = (ap_planner_rent_t){hosts, devices, list, price, cost};
    *parts->result = *made;
    return XM_OK;
}

/* Of hosts that are all alike a part needs no new order, which uplinks might forbid. */
static xm_status_t plan_part(parts_t *parts, int hosts, int devices)
{
    ap_planner_params_t params = *parts->params;
    ap_planner_result_t made = {0};
    xm_cluster_profile_t *ordered = NULL, *part = NULL;
    xm_status_t status = XM_OK;

    if (parts->kinds > 1) {
        status = xm_cluster_profile_reorder(parts->params->profile, parts->order, &ordered);
    }
    XM_THEN(status, xm_cluster_profile_resize(ordered != NULL ? ordered : parts->params->profile,
                                              hosts, devices, &part));
    if (status == XM_OK) {
        params.profile = part;
        params.all_devices = true;
        params.time_limit /= (double)parts->count;
        status = ap_planner_run(&params, &made);
    }
    XM_THEN(status, take_in(parts, hosts, devices, &made));
    xm_cluster_profile_destroy(part);
    xm_cluster_profile_destroy(ordered);
    /* A part that is too small has no plan, and none within its share of the time. */
    return status == XM_ERR_NO_SOLUTION || status == XM_ERR_TIMEOUT ? XM_OK : status;
}

/* The next part in the order of numbers whose digits are `take`; false: there is none. */
static bool next_part(parts_t *parts)
{
    for (int k = 0; k < parts->kinds; ++k) {
        if (parts->take[k] < parts->have[k]) {
            ++parts->take[k];
            return true;
        }
        parts->take[k] = 0;
    }
    return false;
}

static xm_status_t plan_parts(parts_t *parts)
{
    while (next_part(parts)) {
        int hosts = order_hosts(parts);

        for (int devices = hosts == 1 ? 1 : parts->devices; devices <= parts->devices; ++devices) {
            if (parts->devices % devices == 0) {
                XM_TRY(plan_part(parts, hosts, devices));
            }
        }
    }
    if (parts->result->plan == NULL && parts->fastest > 0) {
        return XM_NO_SOLUTION(
            "no plan is fast enough: the fastest has %.4g samples/s, %.4g are asked for",
            parts->fastest, parts->goal->min_throughput);
    }
    /* The last part was all of the cluster, and its sentence is still there. */
    return parts->result->plan == NULL ? XM_ERR_NO_SOLUTION : XM_OK;
}

static xm_status_t check_parts(parts_t *parts)
{
    parts->count = 1;
    for (int k = 0; k < parts->kinds && parts->count <= MOST_PARTS; ++k) {
        parts->count *= parts->have[k] + 1;
    }
    if (parts->count > MOST_PARTS) {
        return XM_UNSUPPORTED("%d hosts of %d kinds have more than %d parts to choose from",
                              parts->hosts, parts->kinds, MOST_PARTS);
    }
    for (int h = 0; h < parts->hosts; ++h) {
        if (!(xm_cluster_profile_host_device(parts->params->profile, h).price > 0)) {
            return XM_INVALID("the cluster profile has no price_per_hour of host %d's devices", h);
        }
    }
    return XM_OK;
}

/* The fastest plan of all, if it is fast enough. */
static xm_status_t run_time(const ap_planner_params_t *params, const ap_planner_goal_t *goal,
                            ap_planner_result_t *result)
{
    xm_status_t status = ap_planner_run(params, result);
    double throughput;

    XM_TRY(status);
    throughput =
        (double)ap_plan_info(result->plan)->global_batch / ap_plan_info(result->plan)->step;
    if (throughput < goal->min_throughput) {
        ap_planner_result_clear(result);
        status = XM_NO_SOLUTION(
            "no plan is fast enough: the fastest has %.4g samples/s, %.4g are asked for",
            throughput, goal->min_throughput);
    }
    return status;
}

xm_status_t ap_planner_run_goal(const ap_planner_params_t *params, const ap_planner_goal_t *goal,
                                ap_planner_result_t *result, ap_planner_rent_t *rent)
{
    int hosts = xm_cluster_profile_hosts(params->profile);
    xm_arena_t arena = {0};
    parts_t parts = {.params = params,
                     .goal = goal,
                     .hosts = hosts,
                     .devices = xm_cluster_profile_devices_per_host(params->profile),
                     .result = result,
                     .rent = rent};
    xm_status_t status;

    *result = (ap_planner_result_t){0};
    *rent = (ap_planner_rent_t){0};
    if (!goal->cost) {
        return run_time(params, goal, result);
    }
    parts.kind_of = xm_arena_get(&arena, (size_t)hosts, sizeof(int));
    parts.have = xm_arena_get(&arena, (size_t)hosts, sizeof(int));
    parts.take = xm_arena_get(&arena, (size_t)hosts, sizeof(int));
    parts.order = xm_arena_get(&arena, (size_t)hosts, sizeof(int));
    if (arena.failed) {
        status = XM_NO_MEMORY("%d hosts", hosts);
    } else {
        find_kinds(&parts);
        status = check_parts(&parts);
    }
    XM_THEN(status, plan_parts(&parts));
    if (status != XM_OK) {
        ap_planner_result_clear(result);
        free(rent->host);
        *rent = (ap_planner_rent_t){0};
    }
    xm_arena_clear(&arena);
    return status;
}
