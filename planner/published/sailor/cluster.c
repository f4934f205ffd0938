/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster profile that Sailor's network fits describe. A fit says the bytes per second of a
 * message by a parabola over the logarithm of its megabytes, and the most that was seen. Outside
 * the sizes that were measured a parabola turns down; there the nearest rate counts.
 */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "planner/published/sailor/sailor_private.h"

/* From a quarter of a megabyte, below which fits of fast links are negative, to a gigabyte. */
enum { POINTS = 13, FIRST_POWER = -2 };

typedef struct rate_fit {
    double a, b, c, top;
} rate_fit_t;

static xm_status_t read_fit(const ap_sailor_t *sailor, const char *where, int gpus, rate_fit_t *fit)
{
    char count[16];
    json_error_t error;
    json_t *counts = json_object_get(json_object_get(sailor->network, where), sailor->gpu);

    (void)snprintf(count, sizeof(count), "%d", gpus);
    if (json_unpack_ex(json_object_get(counts, count), &error, 0, "[[F,F,F],F]", &fit->a, &fit->b,
                       &fit->c, &fit->top) != 0 ||
        !(fit->top > 0)) {
        return XM_MALFORMED("%s/network_coeffs.json: %s has no fit [[a, b, c], top] for %d of %s",
                            sailor->folder, where, gpus, sailor->gpu);
    }
    return XM_OK;
}

static double rate(const rate_fit_t *fit, double power)
{
    double highest = fit->a < 0 ? fmin(power, -0.5 * fit->b / fit->a) : power;
    double gigabytes = fit->a * highest * highest + fit->b * highest + fit->c;

    return fmin(fit->top, fmax(1e9 * gigabytes, 0.01 * fit->top));
}

/* Times never fall: a larger message takes as long as a smaller one at least. */
static void fill_curve(const rate_fit_t *fit, xm_curve_point_t *points)
{
    double last = 0;

    for (int i = 0; i < POINTS; ++i) {
        double bytes = 1e6 * exp2(FIRST_POWER + i);

        last = fmax(last * (1 + 1e-9), bytes / rate(fit, FIRST_POWER + i));
        points[i] = (xm_curve_point_t){(uint64_t)bytes, last};
    }
}

/* What the GPUs compute is not in the artifact but as times of layers, which plans get directly;
 * memory rates are not either. A copy inside a GPU has no fit, and takes the one between two. */
xm_status_t ap_sailor_cluster(ap_sailor_t *sailor, int hosts)
{
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;
    xm_curve_point_t inside[POINTS], between[POINTS];
    const json_t *gpu = json_object_get(sailor->clusters, sailor->gpu);
    char name[64], provenance[320];
    rate_fit_t one, all, pair;
    xm_status_t status;

    if (gpu == NULL) {
        return XM_MALFORMED("%s/clusters.json: %s is missing", sailor->folder, sailor->gpu);
    }
    if ((status = xm_json_int(gpu, "gpus_per_node", &sailor->per_host)) < 0 ||
        (status = xm_json_number(gpu, "mem_per_gpu", &params.device.memory_bytes)) < 0) {
        return xm_error_prefix(status, "%s/clusters.json: %s", sailor->folder, sailor->gpu);
    }
    if ((status = read_fit(sailor, "inter", 1, &one)) < 0 ||
        (status = read_fit(sailor, "inter", sailor->per_host, &all)) < 0 ||
        (status = read_fit(sailor, "intra", 2, &pair)) < 0) {
        return status;
    }
    fill_curve(&pair, inside);
    fill_curve(&one, between);
    (void)snprintf(name, sizeof(name), "sailor-%.30s-%d", sailor->gpu, hosts);
    (void)snprintf(provenance, sizeof(provenance),
                   "measured by Sailor (SOSP'25): links by its fits; self takes intra_host's; "
                   "device rates assumed, times of layers are in the plans");
    params.name = name;
    params.provenance = provenance;
    params.hosts = hosts;
    params.devices_per_host = sailor->per_host;
    params.device.flops = 1e14;
    params.device.memory_bandwidth = 1e12;
    params.nic_bandwidth = all.top;
    /* All GPUs together carry what each does alone: each has a NIC of its own. */
    params.nics_per_host = all.top > 0.9 * sailor->per_host * one.top ? sailor->per_host : 0;
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        params.curve[link] = link == XM_LINK_INTER_HOST ? between : inside;
        params.curve_points[link] = POINTS;
    }
    return xm_cluster_profile_create(&params, &sailor->cluster);
}
