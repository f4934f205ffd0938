/* SPDX-License-Identifier: Apache-2.0 */
/* A cluster profile: what hosts, devices and links cost, as planners use it. It is immutable
 * and owns copies of everything, so it can be shared by threads and outlives its sources. All
 * checks are made in one place, when a profile is created, whatever it comes from (a probe, a
 * file, a change of another one); later code need not handle impossible numbers. Numbers are
 * rounded to 12 digits, as in files, so a profile that was saved and loaded makes the same
 * plans. */
#include "comm/profile/cluster_profile_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

/* RESIZED_SIZE: room for what a resize adds to the provenance. */
enum { MAX_DEVICES = 1 << 24, MAX_COLLECTIVES = 4096, MAX_OP_TIMES = 65536, RESIZED_SIZE = 96 };

struct xm_cluster_profile {
    char *name, *provenance;
    int hosts, devices_per_host;
    xm_cluster_device_t device; /* a typical one */
    double nic_bandwidth;
    double *host_nic_bandwidth; /* by host, or NULL */
    int host_nic_count;
    int nics_per_host;
    xm_cluster_device_t *host_device; /* by host, or NULL */
    int host_device_count;
    double nic_spread, nic_both_ways, host_fabric;
    double cores_per_host, nic_cpu, host_cpu;
    int hosts_per_rack;
    double uplink_bandwidth;
    xm_curve_point_t *curve[XM_LINK_CLASS_COUNT];
    double *curve_spread[XM_LINK_CLASS_COUNT]; /* or NULL */
    size_t curve_points[XM_LINK_CLASS_COUNT];
    xm_collective_curve_t *collectives;
    size_t collective_count;
    xm_op_time_t *op_times;
    size_t op_time_count;
    double gradient_overlap;
};

/* These names are keys in files. */
static const char *const link_names[XM_LINK_CLASS_COUNT] = {"self", "intra_host", "inter_host"};

const char *xm_link_class_name(xm_link_class_t link)
{
    return link_names[link];
}

/* Written so that NaN and infinity fail as well. */
static xm_status_t check_positive(const char *key, double value)
{
    if (!isfinite(value) || value <= 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "%s is %g; it must be positive", key, value);
    }
    return XM_OK;
}

/* For numbers that may be unknown: 0 means that nobody has measured them. */
static xm_status_t check_not_negative(const char *key, double value)
{
    if (!isfinite(value) || value < 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "%s is %g; it must not be negative", key,
                            value);
    }
    return XM_OK;
}

/* The product is bounded before it is computed, so it cannot overflow. */
static xm_status_t check_sizes(int hosts, int devices_per_host)
{
    if (hosts < 1) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "hosts is %d; it must be at least 1", hosts);
    }
    if (devices_per_host < 1) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "devices_per_host is %d; it must be at least 1", devices_per_host);
    }
    if (hosts > MAX_DEVICES / devices_per_host) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "hosts x devices_per_host is %d x %d; a cluster has at most %d devices",
                            hosts, devices_per_host, MAX_DEVICES);
    }
    return XM_OK;
}

/* Checks the typical device, and those of hosts that differ. */
static xm_status_t check_devices(const xm_cluster_profile_params_t *params)
{
    xm_status_t status = xm_cluster_device_check("device", &params->device);

    for (int h = 0; params->host_device != NULL && h < params->hosts && status == XM_OK; ++h) {
        char path[40];

        (void)snprintf(path, sizeof(path), "device.hosts[%d]", h);
        status = xm_cluster_device_check(path, &params->host_device[h]);
    }
    return status;
}

/* Checks what is optional: hosts that differ, racks. */
static xm_status_t check_network(const xm_cluster_profile_params_t *params)
{
    xm_status_t status;

    /* Without a list all hosts have the same NIC. */
    for (int h = 0; params->host_nic_bandwidth != NULL && h < params->hosts; ++h) {
        char key[48];

        (void)snprintf(key, sizeof(key), "nic.hosts[%d]", h);
        status = check_positive(key, params->host_nic_bandwidth[h]);
        if (status < 0) {
            return status;
        }
    }
    if (params->nics_per_host < 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "nic.per_host is %d; it must be at least 1",
                            params->nics_per_host);
    }
    if ((status = check_not_negative("nic.spread", params->nic_spread)) < 0 ||
        (status = check_not_negative("nic.both_ways_bytes_per_s", params->nic_both_ways)) < 0 ||
        (status = check_not_negative("fabric.bytes_per_s", params->host_fabric)) < 0 ||
        (status = check_not_negative("cores.per_host", params->cores_per_host)) < 0 ||
        (status = check_not_negative("cores.nic_s_per_byte", params->nic_cpu)) < 0 ||
        (status = check_not_negative("cores.host_s_per_byte", params->host_cpu)) < 0) {
        return status;
    }
    if (params->hosts_per_rack < 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "uplink.hosts_per_rack is %d; it must be at least 1",
                            params->hosts_per_rack);
    }
    return params->hosts_per_rack == 0
               ? XM_OK
               : check_positive("uplink.bytes_per_s", params->uplink_bandwidth);
}

/* Two curves for the same collective and group would make it depend on their order which one
 * counts. */
static xm_status_t check_collectives(const xm_cluster_profile_params_t *params)
{
    if (params->collective_count > MAX_COLLECTIVES) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "%zu collectives; a profile has at most %d",
                            params->collective_count, MAX_COLLECTIVES);
    }
    for (size_t i = 0; i < params->collective_count; ++i) {
        char name[40];
        xm_status_t status;

        (void)snprintf(name, sizeof(name), "collectives[%zu]", i);
        status = xm_collective_curve_check(name, &params->collectives[i]);
        if (status < 0) {
            return status;
        }
        /* Quadratic, but MAX_COLLECTIVES bounds it. */
        for (size_t j = 0; j < i; ++j) {
            if (xm_collective_curve_same(&params->collectives[i], &params->collectives[j])) {
                return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                    "%s is about the same collective and group as collectives[%zu]",
                                    name, j);
            }
        }
    }
    return XM_OK;
}

/* The overlap's comparison is written so that NaN fails. */
static xm_status_t check_computation(const xm_cluster_profile_params_t *params)
{
    xm_status_t status = XM_OK;

    if (!(params->gradient_overlap >= 0) || params->gradient_overlap > 1) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "gradient_overlap is %g; it must be 0 to 1",
                            params->gradient_overlap);
    }
    if (params->op_time_count > MAX_OP_TIMES) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "%zu op_times; a profile has at most %d",
                            params->op_time_count, MAX_OP_TIMES);
    }
    for (size_t i = 0; status == XM_OK && i < params->op_time_count; ++i) {
        char name[40];

        (void)snprintf(name, sizeof(name), "op_times[%zu]", i);
        status = xm_op_time_check(name, &params->op_times[i]);
    }
    return status;
}

/* Every class of links needs a curve; a planner asks for all of them. */
static xm_status_t check_curves(const xm_cluster_profile_params_t *params)
{
    xm_status_t status = XM_OK;

    for (int link = 0; status == XM_OK && link < XM_LINK_CLASS_COUNT; ++link) {
        char name[32];

        (void)snprintf(name, sizeof(name), "curves.%s", link_names[link]);
        status = xm_curve_check(name, params->curve[link], params->curve_spread[link],
                                params->curve_points[link]);
    }
    return status;
}

/* Checks everything; the sentence has the JSON path of the first mistake, whoever made it. */
static xm_status_t check(const xm_cluster_profile_params_t *params)
{
    xm_status_t status;

    if (params->name == NULL || params->name[0] == '\0') {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "name is empty; it must say which cluster");
    }
    /* A profile that does not say where its numbers come from cannot be judged later. */
    if (params->provenance == NULL || params->provenance[0] == '\0') {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "provenance is empty; it must say how the numbers came about");
    }
    status = check_sizes(params->hosts, params->devices_per_host);
    if (status == XM_OK) {
        status = check_devices(params);
    }
    if (status == XM_OK) {
        status = check_positive("nic.bytes_per_s", params->nic_bandwidth);
    }
    if (status == XM_OK) {
        status = check_network(params);
    }
    if (status == XM_OK) {
        status = check_computation(params);
    }
    if (status == XM_OK) {
        status = check_curves(params);
    }
    return status == XM_OK ? check_collectives(params) : status;
}

/* Copies the curves of the link classes and of the collectives; false: no memory. What was
 * copied so far is counted, so destroying finds it. */
static bool copy_curves(const xm_cluster_profile_params_t *params, xm_cluster_profile_t *made)
{
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        size_t count = params->curve_points[link];
        const double *spread = params->curve_spread[link];

        made->curve_points[link] = count;
        /* The check has made sure that count is not 0. */
        made->curve[link] = calloc(count, sizeof(xm_curve_point_t));
        made->curve_spread[link] = spread != NULL ? calloc(count, sizeof(double)) : NULL;
        if (made->curve[link] == NULL || (spread != NULL && made->curve_spread[link] == NULL)) {
            return false;
        }
        for (size_t i = 0; i < count; ++i) {
            made->curve[link][i].bytes = params->curve[link][i].bytes;
            made->curve[link][i].seconds = xm_curve_rounded(params->curve[link][i].seconds);
            if (spread != NULL) {
                made->curve_spread[link][i] = xm_curve_rounded(spread[i]);
            }
        }
    }
    made->collectives = calloc(params->collective_count + 1, sizeof(*made->collectives));
    if (made->collectives == NULL) {
        return false;
    }
    for (size_t i = 0; i < params->collective_count; ++i) {
        if (xm_collective_curve_copy(&params->collectives[i], &made->collectives[i]) < 0) {
            return false;
        }
        ++made->collective_count;
    }
    return true;
}

/* Creates a profile. There is one failure after the checks, want of memory, and one exit for it. */
xm_status_t xm_cluster_profile_create(const xm_cluster_profile_params_t *given,
                                      xm_cluster_profile_t **profile)
{
    xm_cluster_profile_params_t own = XM_CLUSTER_PROFILE_PARAMS_INIT;
    const xm_cluster_profile_params_t *params = &own;
    xm_status_t status = XM_PARAMS_COPY(xm_cluster_profile_params_t, &own, given);
    xm_cluster_profile_t *made;

    if (status == XM_OK) {
        status = check(params);
    }
    if (status < 0) {
        return status;
    }
    made = calloc(1, sizeof(*made));
    if (made == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "cluster profile: out of memory");
    }
    made->name = strdup(params->name);
    made->provenance = strdup(params->provenance);
    if (made->name == NULL || made->provenance == NULL) {
        goto destroy_made;
    }
    made->hosts = params->hosts;
    made->devices_per_host = params->devices_per_host;
    made->device = xm_cluster_device_rounded(&params->device);
    made->nic_bandwidth = xm_curve_rounded(params->nic_bandwidth);
    made->nics_per_host = params->nics_per_host;
    made->hosts_per_rack = params->hosts_per_rack;
    /* Without racks the uplink's rate has no meaning, and equal profiles should have equal
     * fields. */
    made->uplink_bandwidth =
        params->hosts_per_rack > 0 ? xm_curve_rounded(params->uplink_bandwidth) : 0;
    if (params->host_nic_bandwidth != NULL) {
        made->host_nic_count = params->hosts;
        made->host_nic_bandwidth = calloc((size_t)params->hosts, sizeof(double));
        if (made->host_nic_bandwidth == NULL) {
            goto destroy_made;
        }
        for (int h = 0; h < params->hosts; ++h) {
            made->host_nic_bandwidth[h] = xm_curve_rounded(params->host_nic_bandwidth[h]);
        }
    }
    if (params->host_device != NULL) {
        made->host_device_count = params->hosts;
        made->host_device = calloc((size_t)params->hosts, sizeof(*made->host_device));
        if (made->host_device == NULL) {
            goto destroy_made;
        }
        for (int h = 0; h < params->hosts; ++h) {
            made->host_device[h] = xm_cluster_device_rounded(&params->host_device[h]);
        }
    }
    made->nic_spread = xm_curve_rounded(params->nic_spread);
    made->nic_both_ways = xm_curve_rounded(params->nic_both_ways);
    made->host_fabric = xm_curve_rounded(params->host_fabric);
    made->cores_per_host = xm_curve_rounded(params->cores_per_host);
    made->nic_cpu = xm_curve_rounded(params->nic_cpu);
    made->host_cpu = xm_curve_rounded(params->host_cpu);
    made->gradient_overlap = xm_curve_rounded(params->gradient_overlap);
    if (!copy_curves(params, made) || xm_op_times_copy(params->op_times, params->op_time_count,
                                                       &made->device, &made->op_times) != XM_OK) {
        goto destroy_made;
    }
    made->op_time_count = params->op_time_count;
    *profile = made;
    return XM_OK;

destroy_made:
    xm_cluster_profile_destroy(made);
    return xm_error_set(XM_ERR_NO_MEMORY, "cluster profile: out of memory");
}

/* The profile as parameters that point into it: changes are made by altering these and creating
 * a new profile. */
xm_cluster_profile_params_t xm_cluster_profile_params_of(const xm_cluster_profile_t *profile)
{
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;

    params.name = profile->name;
    params.provenance = profile->provenance;
    params.hosts = profile->hosts;
    params.devices_per_host = profile->devices_per_host;
    params.device = profile->device;
    params.nic_bandwidth = profile->nic_bandwidth;
    params.host_nic_bandwidth = profile->host_nic_bandwidth;
    params.host_device = profile->host_device;
    params.nics_per_host = profile->nics_per_host;
    params.nic_spread = profile->nic_spread;
    params.nic_both_ways = profile->nic_both_ways;
    params.host_fabric = profile->host_fabric;
    params.cores_per_host = profile->cores_per_host;
    params.nic_cpu = profile->nic_cpu;
    params.host_cpu = profile->host_cpu;
    params.hosts_per_rack = profile->hosts_per_rack;
    params.uplink_bandwidth = profile->uplink_bandwidth;
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        params.curve[link] = profile->curve[link];
        params.curve_points[link] = profile->curve_points[link];
        params.curve_spread[link] = profile->curve_spread[link];
    }
    params.collectives = profile->collectives;
    params.collective_count = profile->collective_count;
    params.op_times = profile->op_times;
    params.op_time_count = profile->op_time_count;
    params.gradient_overlap = profile->gradient_overlap;
    return params;
}

/* The same cluster with other sizes. Hosts that are added repeat the known ones in turn;
 * devices that are added to a host share its memory, since a host gains no memory by being cut
 * finer. The provenance records the change. */
xm_status_t xm_cluster_profile_resize(const xm_cluster_profile_t *profile, int hosts,
                                      int devices_per_host, xm_cluster_profile_t **resized)
{
    if (XM_IS_NULL(profile) || XM_IS_NULL(resized)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    xm_cluster_profile_params_t params = xm_cluster_profile_params_of(profile);
    size_t size = strlen(profile->provenance) + RESIZED_SIZE;
    char *provenance = NULL;
    double *rates = NULL, share = 1.0;
    xm_cluster_device_t *devices = NULL;
    xm_status_t status = check_sizes(hosts, devices_per_host);

    if (status < 0) {
        return status;
    }
    provenance = malloc(size);
    rates = malloc((size_t)hosts * sizeof(*rates));
    devices = malloc((size_t)hosts * sizeof(*devices));
    if (provenance == NULL || rates == NULL || devices == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "cluster profile: out of memory");
        goto free_all;
    }
    (void)snprintf(provenance, size, "%s; resized from %d x %d to %d x %d devices",
                   profile->provenance, profile->hosts, profile->devices_per_host, hosts,
                   devices_per_host);
    params.provenance = provenance;
    params.hosts = hosts;
    params.devices_per_host = devices_per_host;
    /* Fewer devices on a host do not get more memory each: the others are just not used. */
    if (devices_per_host > profile->devices_per_host) {
        share = (double)profile->devices_per_host / devices_per_host;
    }
    params.device.memory_bytes *= share;
    for (int h = 0; h < hosts; ++h) {
        rates[h] = xm_cluster_profile_host_nic_bandwidth(profile, h);
        devices[h] = xm_cluster_profile_host_device(profile, h);
        devices[h].memory_bytes *= share;
    }
    /* Lists are passed on only where there were some, so a uniform cluster stays uniform. */
    params.host_nic_bandwidth = profile->host_nic_bandwidth != NULL ? rates : NULL;
    params.host_device = profile->host_device != NULL ? devices : NULL;
    status = xm_cluster_profile_create(&params, resized);

free_all:
    free(devices);
    free(rates);
    free(provenance);
    return status;
}

/* Adds collectives; one that is there already is replaced by the newer measurement. */
xm_status_t xm_cluster_profile_add_collectives(const xm_cluster_profile_t *profile,
                                               const xm_collective_curve_t *added, size_t count,
                                               const char *note, xm_cluster_profile_t **extended)
{
    xm_cluster_profile_params_t params = xm_cluster_profile_params_of(profile);
    size_t size = strlen(profile->provenance) + strlen(note) + sizeof("; ");
    char *provenance = malloc(size);
    xm_collective_curve_t *all = calloc(profile->collective_count + count + 1, sizeof(*all));
    size_t kept = 0;
    xm_status_t status;

    if (provenance == NULL || all == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "cluster profile: out of memory");
        goto free_all;
    }
    for (size_t i = 0; i < profile->collective_count; ++i) {
        /* The new ones come after those that are kept, so the order of old entries does not
         * change. */
        bool replaced = false;

        for (size_t j = 0; j < count; ++j) {
            replaced = replaced || xm_collective_curve_same(&profile->collectives[i], &added[j]);
        }
        if (!replaced) {
            all[kept++] = profile->collectives[i];
        }
    }
    for (size_t j = 0; j < count; ++j) {
        all[kept++] = added[j];
    }
    (void)snprintf(provenance, size, "%s; %s", profile->provenance, note);
    params.provenance = provenance;
    params.collectives = all;
    params.collective_count = kept;
    status = xm_cluster_profile_create(&params, extended);

free_all:
    free(all);
    free(provenance);
    return status;
}

/* A changed copy, because profiles are immutable; the value is checked as in any creation. */
xm_status_t xm_cluster_profile_set_gradient_overlap(const xm_cluster_profile_t *profile,
                                                    double overlap, xm_cluster_profile_t **changed)
{
    xm_cluster_profile_params_t params = xm_cluster_profile_params_of(profile);

    params.gradient_overlap = overlap;
    return xm_cluster_profile_create(&params, changed);
}

double xm_cluster_profile_gradient_overlap(const xm_cluster_profile_t *profile)
{
    return profile->gradient_overlap;
}

/* The measured time of a similar operation, or the roofline's if there is none. */
double xm_cluster_profile_op_seconds(const xm_cluster_profile_t *profile, const char *op,
                                     xm_number_t number, double flops, double bytes)
{
    return xm_op_times_seconds(profile->op_times, profile->op_time_count, &profile->device, op,
                               number, flops, bytes);
}

const xm_op_time_t *xm_cluster_profile_op_times(const xm_cluster_profile_t *profile, size_t *count)
{
    *count = profile->op_time_count;
    return profile->op_times;
}

const char *xm_cluster_profile_name(const xm_cluster_profile_t *profile)
{
    return profile->name;
}

const char *xm_cluster_profile_provenance(const xm_cluster_profile_t *profile)
{
    return profile->provenance;
}

int xm_cluster_profile_hosts(const xm_cluster_profile_t *profile)
{
    if (XM_IS_NULL(profile)) {
        return 0;
    }
    return profile->hosts;
}

int xm_cluster_profile_devices_per_host(const xm_cluster_profile_t *profile)
{
    if (XM_IS_NULL(profile)) {
        return 0;
    }
    return profile->devices_per_host;
}

xm_cluster_device_t xm_cluster_profile_device(const xm_cluster_profile_t *profile)
{
    return profile->device;
}

double xm_cluster_profile_device_flops(const xm_cluster_profile_t *profile)
{
    return profile->device.flops;
}

double xm_cluster_profile_device_memory_bytes(const xm_cluster_profile_t *profile)
{
    return profile->device.memory_bytes;
}

double xm_cluster_profile_device_memory_bandwidth(const xm_cluster_profile_t *profile)
{
    return profile->device.memory_bandwidth;
}

double xm_cluster_profile_nic_bandwidth(const xm_cluster_profile_t *profile)
{
    return profile->nic_bandwidth;
}

/* Hosts beyond the list repeat it, after a resize. */
double xm_cluster_profile_host_nic_bandwidth(const xm_cluster_profile_t *profile, int host)
{
    return profile->host_nic_bandwidth != NULL
               ? profile->host_nic_bandwidth[host % profile->host_nic_count]
               : profile->nic_bandwidth;
}

xm_cluster_device_t xm_cluster_profile_host_device(const xm_cluster_profile_t *profile, int host)
{
    return profile->host_device != NULL ? profile->host_device[host % profile->host_device_count]
                                        : profile->device;
}

/* True if there is a list, even one of equal entries, so that saving keeps it. */
bool xm_cluster_profile_devices_differ(const xm_cluster_profile_t *profile)
{
    return profile->host_device != NULL;
}

bool xm_cluster_profile_hosts_differ(const xm_cluster_profile_t *profile)
{
    return profile->host_nic_bandwidth != NULL;
}

double xm_cluster_profile_nic_spread(const xm_cluster_profile_t *profile)
{
    return profile->nic_spread;
}

int xm_cluster_profile_nics_per_host(const xm_cluster_profile_t *profile)
{
    return profile->nics_per_host;
}

double xm_cluster_profile_nic_both_ways(const xm_cluster_profile_t *profile)
{
    return profile->nic_both_ways;
}

double xm_cluster_profile_host_fabric(const xm_cluster_profile_t *profile)
{
    return profile->host_fabric;
}

void xm_cluster_profile_processors(const xm_cluster_profile_t *profile, double *cores_per_host,
                                   double *nic_cpu, double *host_cpu)
{
    *cores_per_host = profile->cores_per_host;
    *nic_cpu = profile->nic_cpu;
    *host_cpu = profile->host_cpu;
}

const double *xm_cluster_profile_spread(const xm_cluster_profile_t *profile, xm_link_class_t link)
{
    return profile->curve_spread[link];
}

size_t xm_cluster_profile_collectives(const xm_cluster_profile_t *profile)
{
    return profile->collective_count;
}

const xm_collective_curve_t *xm_cluster_profile_collective(const xm_cluster_profile_t *profile,
                                                           size_t index)
{
    return &profile->collectives[index];
}

/* NULL if it was never measured; there is no guess from a similar group here. */
const xm_collective_curve_t *xm_cluster_profile_find_collective(const xm_cluster_profile_t *profile,
                                                                xm_collective_t kind, int hosts,
                                                                int devices, int groups)
{
    const xm_collective_curve_t wanted = {
        .kind = kind, .hosts = hosts, .devices_per_host = devices, .groups_per_host = groups};

    for (size_t i = 0; i < profile->collective_count; ++i) {
        if (xm_collective_curve_same(&profile->collectives[i], &wanted)) {
            return &profile->collectives[i];
        }
    }
    return NULL;
}

int xm_cluster_profile_hosts_per_rack(const xm_cluster_profile_t *profile)
{
    return profile->hosts_per_rack;
}

double xm_cluster_profile_uplink_bandwidth(const xm_cluster_profile_t *profile)
{
    return profile->uplink_bandwidth;
}

const xm_curve_point_t *xm_cluster_profile_curve(const xm_cluster_profile_t *profile,
                                                 xm_link_class_t link, size_t *points)
{
    *points = profile->curve_points[link];
    return profile->curve[link];
}

double xm_cluster_profile_seconds(const xm_cluster_profile_t *profile, xm_link_class_t link,
                                  double bytes)
{
    return xm_curve_seconds(profile->curve[link], profile->curve_points[link], bytes);
}

/* The time of the smallest message, which is nearly all latency. */
double xm_cluster_profile_latency(const xm_cluster_profile_t *profile, xm_link_class_t link)
{
    return profile->curve[link][0].seconds;
}

/* The best rate of any size: latency hides it at small ones. */
double xm_cluster_profile_bandwidth(const xm_cluster_profile_t *profile, xm_link_class_t link)
{
    double best = 0;

    for (size_t i = 0; i < profile->curve_points[link]; ++i) {
        const xm_curve_point_t *point = &profile->curve[link][i];

        best = fmax(best, (double)point->bytes / point->seconds);
    }
    return best;
}

/* Also takes apart what creation has left half made. */
void xm_cluster_profile_destroy(xm_cluster_profile_t *profile)
{
    if (profile == NULL) {
        return;
    }
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        free(profile->curve[link]);
        free(profile->curve_spread[link]);
    }
    xm_collective_curves_free(profile->collectives, profile->collective_count);
    xm_op_times_free(profile->op_times, profile->op_time_count);
    free(profile->host_device);
    free(profile->host_nic_bandwidth);
    free(profile->provenance);
    free(profile->name);
    free(profile);
}
