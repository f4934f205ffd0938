/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans whose stages take the hosts in an order of their own. The search numbers hosts in the order
 * it tries, which keeps every other part of the planner free of permutations; this file translates
 * at the border: a finished plan into the cluster's own ranks, and, for whoever examines a plan,
 * plan and profile back into the order.
 *
 * Both directions renumber the same things: ranks of stages and boundaries, and the hosts and racks
 * of links.
 */

#include "planner/plan/order.h"

#include <stdlib.h>

#include "planner/plan/plan_private.h"

/* A plan's parts while ranks and hosts are renumbered. */
typedef struct parts {
    ap_plan_params_t params;
    xm_arena_t arena; /* the arrays below */
    ap_plan_stage_t *stages;
    ap_plan_boundary_t *boundaries;
    int *place;            /* per host, for whoever renumbers */
    int *devices;          /* of all stages, one after the other */
    ap_link_load_t *links; /* of all boundaries, likewise */
} parts_t;

static xm_status_t open_parts(const ap_plan_t *plan, parts_t *parts)
{
    size_t stages = (size_t)ap_plan_stages(plan), devices = 0, links = 0;
    size_t boundaries = (size_t)ap_plan_boundaries(plan);

    *parts = (parts_t){.params = ap_plan_params(plan)};
    for (int i = 0; i < ap_plan_stages(plan); ++i) {
        const ap_plan_stage_t *stage = ap_plan_stage(plan, i);

        devices += (size_t)stage->hosts * (size_t)stage->devices_per_host;
    }
    for (int i = 0; i < ap_plan_boundaries(plan); ++i) {
        links += (size_t)ap_plan_boundary(plan, i)->link_count;
    }
    parts->stages = xm_arena_get(&parts->arena, stages, sizeof(*parts->stages));
    parts->boundaries = xm_arena_get(&parts->arena, boundaries, sizeof(*parts->boundaries));
    parts->place = xm_arena_get(&parts->arena, (size_t)ap_plan_info(plan)->hosts, sizeof(int));
    parts->devices = xm_arena_get(&parts->arena, devices, sizeof(*parts->devices));
    parts->links = xm_arena_get(&parts->arena, links, sizeof(*parts->links));
    XM_NEED_MEMORY(!parts->arena.failed, "a plan of %zu stages", stages);
    parts->params.stages = parts->stages;
    parts->params.boundaries = parts->boundaries;
    return XM_OK;
}

/* Hosts before racks, each by number, as plans have them. */
static int compare_links(const void *a, const void *b)
{
    const ap_link_load_t *x = a, *y = b;

    return x->rack != y->rack ? xm_order(x->rack, y->rack) : xm_order(x->index, y->index);
}

/* Host h of the plan is host map[h] in its parts. A rack is told by any of its hosts, because
 * orders keep racks together; links are sorted again, so equal plans are written alike. */
static void renumber(const ap_plan_t *plan, const int *map, int per_rack, parts_t *parts)
{
    int per_host = ap_plan_info(plan)->devices_per_host, *devices = parts->devices;
    int racks = per_rack > 0 ? (ap_plan_info(plan)->hosts + per_rack - 1) / per_rack : 0;
    ap_link_load_t *links = parts->links;

    for (int i = 0; i < ap_plan_stages(plan); ++i) {
        const ap_plan_stage_t *stage = ap_plan_stage(plan, i);
        int count = stage->hosts * stage->devices_per_host;

        for (int d = 0; d < count; ++d) {
            int device = stage->devices[d];

            devices[d] = map[device / per_host] * per_host + device % per_host;
        }
        parts->stages[i] = *stage;
        parts->stages[i].devices = devices;
        devices += count;
    }
    for (int i = 0; i < ap_plan_boundaries(plan); ++i) {
        ap_plan_boundary_t *boundary = &parts->boundaries[i];

        *boundary = *ap_plan_boundary(plan, i);
        boundary->src.devices = parts->stages[boundary->from].devices;
        boundary->dst.devices = parts->stages[boundary->to].devices;
        for (int l = 0; l < boundary->link_count; ++l) {
            int index = boundary->links[l].index;

            links[l] = boundary->links[l];
            if (!links[l].rack) {
                links[l].index = map[index];
            } else if (index < racks) {
                links[l].index = map[index * per_rack] / per_rack;
            }
        }
        qsort(links, (size_t)boundary->link_count, sizeof(*links), compare_links);
        boundary->links = links;
        links += boundary->link_count;
    }
}

xm_status_t ap_plan_place(const ap_plan_t *plan, const int *order, int per_rack, ap_plan_t **result)
{
    bool moved = false;
    parts_t parts;
    xm_status_t status = open_parts(plan, &parts);

    if (status == XM_OK) {
        renumber(plan, order, per_rack, &parts);
        for (int i = 0; i < ap_plan_info(plan)->hosts; ++i) {
            moved = moved || order[i] != i;
        }
        parts.params.info.host_order = moved ? order : NULL;
        status = ap_plan_create(&parts.params, result);
    }
    xm_arena_clear(&parts.arena);
    return status;
}

/* The document is made anew, because the digest covers the line. */
xm_status_t ap_plan_note(const ap_plan_t *plan, const char *optimiser, double bound,
                         ap_plan_t **result)
{
    ap_plan_params_t params = ap_plan_params(plan);

    params.info.optimiser = optimiser;
    params.info.bound = bound;
    return ap_plan_create(&params, result);
}

static xm_status_t check_profile(const ap_plan_info_t *info, const xm_cluster_profile_t *profile)
{
    int hosts = xm_cluster_profile_hosts(profile);
    int devices = xm_cluster_profile_devices_per_host(profile);

    if (hosts != info->hosts || devices != info->devices_per_host) {
        return XM_MISMATCH("the plan is for %d x %d devices, the cluster profile has %d x %d",
                           info->hosts, info->devices_per_host, hosts, devices);
    }
    return XM_OK;
}

/* The plan with its hosts numbered in their order. */
static xm_status_t unplace(const ap_plan_t *plan, int per_rack, ap_plan_t **result)
{
    const ap_plan_info_t *info = ap_plan_info(plan);
    parts_t parts;
    xm_status_t status = open_parts(plan, &parts);

    if (status == XM_OK) {
        int *place = parts.place;

        for (int i = 0; i < info->hosts; ++i) {
            place[info->host_order[i]] = i;
        }
        renumber(plan, place, per_rack, &parts);
        parts.params.info.host_order = NULL;
        status = ap_plan_create(&parts.params, result);
    }
    xm_arena_clear(&parts.arena);
    return status;
}

/* Without an order nothing is copied: the view borrows plan and profile. */
xm_status_t ap_plan_view_open(const ap_plan_t *plan, const xm_cluster_profile_t *profile,
                              ap_plan_view_t *view)
{
    const int *order = ap_plan_info(plan)->host_order;
    xm_status_t status = check_profile(ap_plan_info(plan), profile);

    *view = (ap_plan_view_t){.plan = plan, .profile = profile};
    if (status != XM_OK || order == NULL) {
        return status;
    }
    XM_TRY(xm_cluster_profile_reorder(profile, order, &view->own_profile));
    XM_TRY(unplace(plan, xm_cluster_profile_hosts_per_rack(profile), &view->own_plan));
    view->plan = view->own_plan;
    view->profile = view->own_profile;
    return XM_OK;
}

void ap_plan_view_close(ap_plan_view_t *view)
{
    ap_plan_destroy(view->own_plan);
    xm_cluster_profile_destroy(view->own_profile);
    *view = (ap_plan_view_t){0};
}
