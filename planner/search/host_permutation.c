/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Orders of hosts, for clusters whose hosts differ. A stage table is priced by classes of devices
 * and not by hosts, so one table serves all orders, as long as it knows the classes of them all;
 * for each order only the map from places to classes is exchanged, and where networks differ, the
 * boundary prices.
 *
 * How many orders are looked at follows from the size of the problem, by a fixed formula and not by
 * a clock, so that a plan does not depend on the machine.
 */

#include "planner/search/host_permutation.h"

#include <stdlib.h>
#include <string.h>

/* A case is bounded for so many orders at most, and for so many at least, however large it is. */
enum { MOST_ORDERS = 128, FEWEST_ORDERS = 8 };

/* Layers x layers x devices that all orders of a case may come to. */
static const double WORK = 2e7;

int ap_host_permutations_most(const ap_planner_setup_t *setup, int layers)
{
    double devices = (double)xm_cluster_profile_hosts(setup->params->profile) *
                     xm_cluster_profile_devices_per_host(setup->params->profile);
    double most = WORK / ((double)layers * layers * devices);

    return most < FEWEST_ORDERS ? FEWEST_ORDERS : most > MOST_ORDERS ? MOST_ORDERS : (int)most;
}

/* Where all hosts have the same network, an order changes no boundary price, and the setup's are
 * used. */
xm_status_t ap_host_permutation_open(const ap_planner_setup_t *setup, const int *order,
                                     ap_host_permutation_t *host_permutation)
{
    const xm_cluster_profile_t *profile = setup->params->profile;
    size_t size = (size_t)xm_cluster_profile_hosts(profile) * sizeof(*order);
    bool one_network = !xm_cluster_profile_hosts_differ(profile) &&
                       xm_cluster_profile_hosts_per_rack(profile) == 0;
    xm_status_t status = XM_OK;

    *host_permutation = (ap_host_permutation_t){.order = malloc(size)};
    XM_NEED_MEMORY(host_permutation->order, "an order of hosts");
    memcpy(host_permutation->order, order, size);
    status = ap_device_classes_arrange(setup->classes, profile, setup->budget, order,
                                       &host_permutation->classes);
    if (one_network) {
        host_permutation->cross_mesh = setup->cross_mesh;
    } else if (status == XM_OK) {
        status = xm_cluster_profile_reorder(profile, order, &host_permutation->profile);
        XM_THEN(status,
                ap_cross_mesh_create(host_permutation->profile, &host_permutation->cross_mesh));
    }
    if (status != XM_OK) {
        ap_host_permutation_close(setup, host_permutation);
    }
    return status;
}

void ap_host_permutation_close(const ap_planner_setup_t *setup,
                               ap_host_permutation_t *host_permutation)
{
    if (host_permutation->cross_mesh != setup->cross_mesh) {
        ap_cross_mesh_destroy(host_permutation->cross_mesh);
    }
    xm_cluster_profile_destroy(host_permutation->profile);
    ap_device_classes_destroy(host_permutation->classes);
    free(host_permutation->order);
    *host_permutation = (ap_host_permutation_t){0};
}

/* The setup's classes become those of all orders of a list, if a table has room for them; otherwise
 * they stay as they were. */
static xm_status_t widen(ap_planner_setup_t *setup, const int *list, int count, bool *fit)
{
    const ap_planner_params_t *params = setup->params;
    size_t hosts = (size_t)xm_cluster_profile_hosts(params->profile);
    ap_device_classes_t *classes;
    xm_status_t status = ap_device_classes_create(params->profile, setup->budget, &classes);

    *fit = false;
    XM_TRY(status);
    for (int i = 1; i < count && status == XM_OK; ++i) {
        status = ap_device_classes_widen(classes, params->profile, setup->budget,
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
                              ap_host_permutations_t *host_permutations)
{
    size_t hosts = (size_t)xm_cluster_profile_hosts(setup->params->profile);
    xm_status_t status = XM_OK;

    host_permutations->items = calloc((size_t)count, sizeof(*host_permutations->items));
    XM_NEED_MEMORY(host_permutations->items, "%d orders of hosts", count);
    while (status == XM_OK && host_permutations->count < count) {
        status = ap_host_permutation_open(setup, list + (size_t)host_permutations->count * hosts,
                                          &host_permutations->items[host_permutations->count]);
        host_permutations->count += status == XM_OK;
    }
    return status;
}

/* All orders where they are few; else those in which like hosts stand together, which keep stages
 * on hosts of one kind. Fixed pins leave no choice. */
xm_status_t ap_host_permutations_open(ap_planner_setup_t *setup, int layers,
                                      ap_host_permutations_t *host_permutations)
{
    const ap_planner_params_t *params = setup->params;
    size_t hosts = (size_t)xm_cluster_profile_hosts(params->profile);
    int most = ap_host_permutations_most(setup, layers), count;
    int *list = NULL;
    bool fit = false;
    xm_status_t status;

    *host_permutations = (ap_host_permutations_t){.all = true};
    if (params->keep_host_order || params->pins != NULL) {
        return XM_OK;
    }
    status =
        ap_host_orders_create(params->profile, params->memory_limit, &host_permutations->orders);
    if (status != XM_OK || ap_host_orders_kinds(host_permutations->orders) == 1) {
        return status;
    }
    list = calloc((size_t)most * hosts, sizeof(*list));
    XM_NEED_MEMORY(list, "%d orders of hosts", most);
    count = ap_host_orders_list(host_permutations->orders, most, list);
    host_permutations->all = count <= most;
    if (!host_permutations->all) {
        count = ap_host_orders_grouped(host_permutations->orders, most, list);
    }
    if (count > 1) { /* racks may leave no choice */
        status = widen(setup, list, count, &fit);
        host_permutations->all = host_permutations->all && fit;
    }
    if (status == XM_OK && fit) {
        status = open_items(setup, list, count, host_permutations);
    }
    free(list);
    return status;
}

void ap_host_permutations_close(const ap_planner_setup_t *setup,
                                ap_host_permutations_t *host_permutations)
{
    for (int i = 0; i < host_permutations->count; ++i) {
        ap_host_permutation_close(setup, &host_permutations->items[i]);
    }
    free(host_permutations->items);
    ap_host_orders_destroy(host_permutations->orders);
    *host_permutations = (ap_host_permutations_t){0};
}

int64_t ap_host_permutations_simulated(const ap_planner_setup_t *setup,
                                       const ap_host_permutations_t *host_permutations)
{
    int64_t count = 0;

    for (int i = 0; i < host_permutations->count; ++i) {
        if (host_permutations->items[i].cross_mesh != setup->cross_mesh) {
            count += (int64_t)ap_cross_mesh_simulated(host_permutations->items[i].cross_mesh);
        }
    }
    return count;
}
