/* SPDX-License-Identifier: Apache-2.0 */
/* The same cluster with its hosts numbered in another order, for planners that try which order
 * suits a mesh best. Racks are runs of hosts by number, so an order has to keep them together,
 * or the profile would describe another network. */
#include <stdlib.h>

#include "comm/profile/cluster_profile_private.h"

/* Checks that the order has every host exactly once; the sentence names the places. */
static xm_status_t check_permutation(int hosts, const int *order)
{
    int *place = malloc((size_t)hosts * sizeof(*place));
    xm_status_t status = XM_OK;

    if (place == NULL) {
        return XM_NO_MEMORY("an order of %d hosts", hosts);
    }
    for (int h = 0; h < hosts; ++h) {
        place[h] = -1;
    }
    for (int i = 0; i < hosts && status == XM_OK; ++i) {
        if (order[i] < 0 || order[i] >= hosts) {
            status = XM_INVALID(
                "an order of hosts names host %d in place %d; the cluster has hosts 0 to %d",
                order[i], i, hosts - 1);
        } else if (place[order[i]] >= 0) {
            status = XM_INVALID("an order of hosts names host %d in places %d and %d", order[i],
                                place[order[i]], i);
        } else {
            place[order[i]] = i;
        }
    }
    free(place);
    return status;
}

/* Checks the racks: they are runs of hosts by number, so those of one rack have to stay
 * together. */
static xm_status_t check_racks(const xm_cluster_profile_t *profile, const int *order)
{
    int per_rack = xm_cluster_profile_hosts_per_rack(profile);

    for (int i = 0; per_rack > 0 && i < xm_cluster_profile_hosts(profile); ++i) {
        int first = i / per_rack * per_rack;

        if (order[i] / per_rack != order[first] / per_rack) {
            return XM_INVALID(
                "an order of hosts puts hosts %d and %d of two racks into places %d and %d of one",
                order[first], order[i], first, i);
        }
    }
    return XM_OK;
}

/* Only what belongs to single hosts changes; curves are of link classes and stay. */
xm_status_t xm_cluster_profile_reorder(const xm_cluster_profile_t *profile, const int *order,
                                       xm_cluster_profile_t **reordered)
{
    xm_cluster_profile_params_t params = xm_cluster_profile_params_of(profile);
    double *rates = malloc((size_t)params.hosts * sizeof(*rates));
    xm_cluster_device_t *devices = malloc((size_t)params.hosts * sizeof(*devices));
    xm_status_t status = XM_OK;

    if (rates == NULL || devices == NULL) {
        status = XM_NO_MEMORY("an order of %d hosts", params.hosts);
        goto free_all;
    }
    status = check_permutation(params.hosts, order);
    if (status == XM_OK) {
        status = check_racks(profile, order);
    }
    if (status != XM_OK) {
        goto free_all;
    }
    for (int i = 0; i < params.hosts; ++i) {
        rates[i] = xm_cluster_profile_host_nic_bandwidth(profile, order[i]);
        devices[i] = xm_cluster_profile_host_device(profile, order[i]);
    }
    params.host_nic_bandwidth = params.host_nic_bandwidth != NULL ? rates : NULL;
    params.host_device = params.host_device != NULL ? devices : NULL;
    status = xm_cluster_profile_create(&params, reordered);

free_all:
    free(devices);
    free(rates);
    return status;
}
