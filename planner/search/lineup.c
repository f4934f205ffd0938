#include "planner/search/lineup.h"

#include <stdlib.h>
#include <string.h>

/* A case is bounded for so many orders at most, and for so many at least, however large it is. */
enum { MOST_ORDERS = 128, FEWEST_ORDERS = 8 };

/* Layers x layers x devices that all orders of a case may come to. */
static const double WORK = 2e7;

int ap_lineups_most(const ap_planner_setup_t *setup, int layers)
{
    double devices = (double)xm_cluster_profile_hosts(setup->params->profile) *
                     xm_cluster_profile_devices_per_host(setup->params->profile);
    double most = WORK / ((double)layers * layers * devices);

    return most < FEWEST_ORDERS ? FEWEST_ORDERS : most > MOST_ORDERS ? MOST_ORDERS : (int)most;
}

xm_status_t ap_lineup_open(const ap_planner_setup_t *setup, const int *order, ap_lineup_t *lineup)
{
    const xm_cluster_profile_t *profile = setup->params->profile;
    size_t size = (size_t)xm_cluster_profile_hosts(profile) * sizeof(*order);
    bool one_network = !xm_cluster_profile_hosts_differ(profile) &&
                       xm_cluster_profile_hosts_per_rack(profile) == 0;
    xm_status_t status = XM_OK;

    *lineup = (ap_lineup_t){.order = malloc(size)};
    if (lineup->order == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for an order of hosts");
    }
    memcpy(lineup->order, order, size);
    status = ap_device_classes_arrange(setup->classes, profile, setup->params->memory_limit, order,
                                       &lineup->classes);
    if (one_network) {
        lineup->cross_mesh = setup->cross_mesh;
    } else if (status == XM_OK) {
        status = xm_cluster_profile_reorder(profile, order, &lineup->profile);
        if (status == XM_OK) {
            status = ap_cross_mesh_create(lineup->profile, &lineup->cross_mesh);
        }
    }
    if (status != XM_OK) {
        ap_lineup_close(setup, lineup);
    }
    return status;
}

void ap_lineup_close(const ap_planner_setup_t *setup, ap_lineup_t *lineup)
{
    if (lineup->cross_mesh != setup->cross_mesh) {
        ap_cross_mesh_destroy(lineup->cross_mesh);
    }
    xm_cluster_profile_destroy(lineup->profile);
    ap_device_classes_destroy(lineup->classes);
    free(lineup->order);
    *lineup = (ap_lineup_t){0};
}

/* The setup's classes become those of all orders of a list, if a table has room for them. */
static xm_status_t widen(ap_planner_setup_t *setup, const int *list, int count, bool *fit)
{
    const ap_planner_params_t *params = setup->params;
    size_t hosts = (size_t)xm_cluster_profile_hosts(params->profile);
    ap_device_classes_t *classes;
    xm_status_t status = ap_device_classes_create(params->profile, params->memory_limit, &classes);

    *fit = false;
    if (status != XM_OK) {
        return status;
    }
    for (int i = 1; i < count && status == XM_OK; ++i) {
        status = ap_device_classes_widen(classes, params->profile, params->memory_limit,
                                         list + (size_t)i * hosts);
    }
    *fit = status == XM_OK &&
           ap_stage_table_has_room(classes, xm_cluster_profile_devices_per_host(params->profile),
                                   params->all_submeshes);
    if (*fit) {
        ap_device_classes_t *narrow = setup->classes;

        setup->classes = classes;
        classes = narrow;
    }
    ap_device_classes_destroy(classes);
    return status;
}

static xm_status_t open_items(const ap_planner_setup_t *setup, const int *list, int count,
                              ap_lineups_t *lineups)
{
    size_t hosts = (size_t)xm_cluster_profile_hosts(setup->params->profile);
    xm_status_t status = XM_OK;

    lineups->items = calloc((size_t)count, sizeof(*lineups->items));
    if (lineups->items == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d orders of hosts", count);
    }
    while (status == XM_OK && lineups->count < count) {
        status = ap_lineup_open(setup, list + (size_t)lineups->count * hosts,
                                &lineups->items[lineups->count]);
        lineups->count += status == XM_OK;
    }
    return status;
}

xm_status_t ap_lineups_open(ap_planner_setup_t *setup, int layers, ap_lineups_t *lineups)
{
    const ap_planner_params_t *params = setup->params;
    size_t hosts = (size_t)xm_cluster_profile_hosts(params->profile);
    int most = ap_lineups_most(setup, layers), count;
    int *list = NULL;
    bool fit = false;
    xm_status_t status;

    *lineups = (ap_lineups_t){.all = true};
    if (params->keep_host_order || params->pins != NULL) {
        return XM_OK;
    }
    status = ap_host_orders_create(params->profile, params->memory_limit, &lineups->orders);
    if (status != XM_OK || ap_host_orders_kinds(lineups->orders) == 1) {
        return status;
    }
    list = calloc((size_t)most * hosts, sizeof(*list));
    if (list == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d orders of hosts", most);
    }
    count = ap_host_orders_list(lineups->orders, most, list);
    lineups->all = count <= most;
    if (!lineups->all) {
        count = ap_host_orders_grouped(lineups->orders, most, list);
    }
    if (count > 1) { /* racks may leave no choice */
        status = widen(setup, list, count, &fit);
        lineups->all = lineups->all && fit;
    }
    if (status == XM_OK && fit) {
        status = open_items(setup, list, count, lineups);
    }
    free(list);
    return status;
}

void ap_lineups_close(const ap_planner_setup_t *setup, ap_lineups_t *lineups)
{
    for (int i = 0; i < lineups->count; ++i) {
        ap_lineup_close(setup, &lineups->items[i]);
    }
    free(lineups->items);
    ap_host_orders_destroy(lineups->orders);
    *lineups = (ap_lineups_t){0};
}

int64_t ap_lineups_simulated(const ap_planner_setup_t *setup, const ap_lineups_t *lineups)
{
    int64_t count = 0;

    for (int i = 0; i < lineups->count; ++i) {
        if (lineups->items[i].cross_mesh != setup->cross_mesh) {
            count += (int64_t)ap_cross_mesh_simulated(lineups->items[i].cross_mesh);
        }
    }
    return count;
}
