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

enum { MAX_DEVICES = 1 << 24, MAX_COLLECTIVES = 4096, MAX_OP_TIMES = 65536 };

struct xm_cluster_profile {
    xm_cluster_profile_params_t has; /* texts and arrays lie in the arena */
    xm_arena_t memory;
};

/* These names are keys in files. */
static const char *const link_names[XM_LINK_CURVES] = {
    "self", "intra_host", "inter_host", "self_hot", "intra_host_hot", "inter_host_hot"};

const char *xm_link_class_name(xm_link_class_t link)
{
    return link_names[link];
}

#define NUMBER(section, key, member)                                                               \
    {                                                                                              \
        section, key, offsetof(xm_cluster_profile_params_t, member)                                \
    }
const xm_profile_number_t xm_profile_numbers[XM_PROFILE_NUMBERS] = {
    NUMBER("nic", "spread", nic_spread),
    NUMBER("nic", "both_ways_bytes_per_s", nic_both_ways),
    NUMBER("nic", "both_ways_spread", nic_both_ways_spread),
    NUMBER("fabric", "bytes_per_s", host_fabric),
    NUMBER("fabric", "spread", host_fabric_spread),
    NUMBER("cores", "per_host", cores_per_host),
    NUMBER("cores", "nic_s_per_byte", nic_cpu),
    NUMBER("cores", "host_s_per_byte", host_cpu),
};

double *xm_profile_number(xm_cluster_profile_params_t *params, const xm_profile_number_t *number)
{
    return (double *)(void *)((char *)params + number->offset);
}

/* Written so that NaN and infinity fail as well. */
static xm_status_t check_positive(const char *key, double value)
{
    if (!isfinite(value) || value <= 0) {
        return XM_INVALID("%s is %g; it must be positive", key, value);
    }
    return XM_OK;
}

/* The product is bounded before it is computed, so it cannot overflow. */
xm_status_t xm_cluster_profile_check_sizes(int hosts, int devices_per_host)
{
    if (hosts < 1) {
        return XM_INVALID("hosts is %d; it must be at least 1", hosts);
    }
    if (devices_per_host < 1) {
        return XM_INVALID("devices_per_host is %d; it must be at least 1", devices_per_host);
    }
    if (hosts > MAX_DEVICES / devices_per_host) {
        return XM_INVALID("hosts x devices_per_host is %d x %d; a cluster has at most %d devices",
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
static xm_status_t check_network(xm_cluster_profile_params_t *params)
{
    /* Without a list all hosts have the same NIC. */
    for (int h = 0; params->host_nic_bandwidth != NULL && h < params->hosts; ++h) {
        char key[48];

        (void)snprintf(key, sizeof(key), "nic.hosts[%d]", h);
        XM_TRY(check_positive(key, params->host_nic_bandwidth[h]));
    }
    if (params->nics_per_host < 0) {
        return XM_INVALID("nic.per_host is %d; it must be at least 1", params->nics_per_host);
    }
    for (int n = 0; n < XM_PROFILE_NUMBERS; ++n) {
        const xm_profile_number_t *number = &xm_profile_numbers[n];
        double value = *xm_profile_number(params, number);

        if (!isfinite(value) || value < 0) {
            return XM_INVALID("%s.%s is %g; it must not be negative", number->section, number->key,
                              value);
        }
    }
    if (params->hosts_per_rack < 0) {
        return XM_INVALID("uplink.hosts_per_rack is %d; it must be at least 1",
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
        return XM_INVALID("%zu collectives; a profile has at most %d", params->collective_count,
                          MAX_COLLECTIVES);
    }
    for (size_t i = 0; i < params->collective_count; ++i) {
        char name[40];

        (void)snprintf(name, sizeof(name), "collectives[%zu]", i);
        XM_TRY(xm_collective_curve_check(name, &params->collectives[i]));
        /* Quadratic, but MAX_COLLECTIVES bounds it. */
        for (size_t j = 0; j < i; ++j) {
            if (xm_collective_curve_same(&params->collectives[i], &params->collectives[j])) {
                return XM_INVALID("%s is about the same collective and group as collectives[%zu]",
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
        return XM_INVALID("gradient_overlap is %g; it must be 0 to 1", params->gradient_overlap);
    }
    if (params->op_time_count > MAX_OP_TIMES) {
        return XM_INVALID("%zu op_times; a profile has at most %d", params->op_time_count,
                          MAX_OP_TIMES);
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

    for (int link = 0; status == XM_OK && link < XM_LINK_CURVES; ++link) {
        char name[32];

        if (link >= XM_LINK_HOT && params->curve_points[link] == 0) {
            continue;
        }
        (void)snprintf(name, sizeof(name), "curves.%s", link_names[link]);
        status = xm_curve_check(name, params->curve[link], params->curve_spread[link],
                                params->curve_points[link]);
    }
    return status;
}

/* Checks everything; the sentence has the JSON path of the first mistake, whoever made it. */
static xm_status_t check(xm_cluster_profile_params_t *params)
{
    if (params->name == NULL || params->name[0] == '\0') {
        return XM_INVALID("name is empty; it must say which cluster");
    }
    /* A profile that does not say where its numbers come from cannot be judged later. */
    if (params->provenance == NULL || params->provenance[0] == '\0') {
        return XM_INVALID("provenance is empty; it must say how the numbers came about");
    }
    XM_TRY(xm_cluster_profile_check_sizes(params->hosts, params->devices_per_host));
    XM_TRY(check_devices(params));
    XM_TRY(check_positive("nic.bytes_per_s", params->nic_bandwidth));
    XM_TRY(check_network(params));
    XM_TRY(check_computation(params));
    XM_TRY(check_curves(params));
    return check_collectives(params);
}

/* Puts a rounded copy in the place of a curve. Want of memory is asked for once, at the end, here
 * and below. */
static void own_curve(xm_arena_t *memory, size_t count, const xm_curve_point_t **points,
                      const double **spread)
{
    xm_curve_point_t *rounded = xm_arena_get(memory, count, sizeof(*rounded));
    double *spreads = *spread != NULL ? xm_arena_get(memory, count, sizeof(*spreads)) : NULL;

    for (size_t i = 0; rounded != NULL && i < count; ++i) {
        rounded[i].bytes = (*points)[i].bytes;
        rounded[i].seconds = xm_curve_rounded((*points)[i].seconds);
    }
    for (size_t i = 0; spreads != NULL && i < count; ++i) {
        spreads[i] = xm_curve_rounded((*spread)[i]);
    }
    *points = rounded;
    *spread = spreads;
}

static void own_collectives(xm_arena_t *memory, xm_cluster_profile_params_t *has)
{
    xm_collective_curve_t *curves = xm_arena_get(memory, has->collective_count, sizeof(*curves));

    for (size_t i = 0; curves != NULL && i < has->collective_count; ++i) {
        curves[i] = has->collectives[i];
        curves[i].library = xm_arena_text(memory, curves[i].library);
        own_curve(memory, curves[i].count, &curves[i].points, &curves[i].spread);
    }
    has->collectives = curves;
}

/* What each host has, where hosts differ. */
static void own_hosts(xm_arena_t *memory, xm_cluster_profile_params_t *has)
{
    size_t hosts = (size_t)has->hosts;
    double *rates =
        has->host_nic_bandwidth != NULL ? xm_arena_get(memory, hosts, sizeof(*rates)) : NULL;
    xm_cluster_device_t *devices =
        has->host_device != NULL ? xm_arena_get(memory, hosts, sizeof(*devices)) : NULL;

    for (size_t h = 0; rates != NULL && h < hosts; ++h) {
        rates[h] = xm_curve_rounded(has->host_nic_bandwidth[h]);
    }
    for (size_t h = 0; devices != NULL && h < hosts; ++h) {
        devices[h] = xm_cluster_device_rounded(&has->host_device[h]);
    }
    has->host_nic_bandwidth = rates;
    has->host_device = devices;
}

/* Creates a profile. There is one failure after the checks, want of memory, and one exit for it. */
xm_status_t xm_cluster_profile_create(const xm_cluster_profile_params_t *given,
                                      xm_cluster_profile_t **profile)
{
    xm_cluster_profile_params_t own = XM_CLUSTER_PROFILE_PARAMS_INIT;
    xm_cluster_profile_params_t *has;
    xm_status_t status = XM_PARAMS_COPY(xm_cluster_profile_params_t, &own, given);
    xm_cluster_profile_t *made;

    XM_THEN(status, check(&own));
    XM_TRY(status);
    made = calloc(1, sizeof(*made));
    if (made == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "cluster profile: out of memory");
    }
    has = &made->has;
    *has = own;
    has->name = xm_arena_text(&made->memory, own.name);
    has->provenance = xm_arena_text(&made->memory, own.provenance);
    has->device = xm_cluster_device_rounded(&own.device);
    has->nic_bandwidth = xm_curve_rounded(own.nic_bandwidth);
    /* Without racks the uplink's rate has no meaning, and equal profiles should have equal
     * fields. */
    has->uplink_bandwidth = own.hosts_per_rack > 0 ? xm_curve_rounded(own.uplink_bandwidth) : 0;
    for (int n = 0; n < XM_PROFILE_NUMBERS; ++n) {
        double *value = xm_profile_number(has, &xm_profile_numbers[n]);

        *value = xm_curve_rounded(*value);
    }
    has->gradient_overlap = xm_curve_rounded(own.gradient_overlap);
    has->runtime = xm_runtime_rounded(&own.runtime);
    own_hosts(&made->memory, has);
    for (int link = 0; link < XM_LINK_CURVES; ++link) {
        own_curve(&made->memory, has->curve_points[link], &has->curve[link],
                  &has->curve_spread[link]);
    }
    own_collectives(&made->memory, has);
    has->op_times = xm_op_times_copy(&made->memory, own.op_times, own.op_time_count, &has->device);
    if (made->memory.failed) {
        xm_cluster_profile_destroy(made);
        return xm_error_set(XM_ERR_NO_MEMORY, "cluster profile: out of memory");
    }
    *profile = made;
    return XM_OK;
}

/* The profile as parameters that point into it: changes are made by altering these and creating
 * a new profile. */
xm_cluster_profile_params_t xm_cluster_profile_params_of(const xm_cluster_profile_t *profile)
{
    return profile->has;
}

const xm_runtime_t *xm_cluster_profile_runtime(const xm_cluster_profile_t *profile)
{
    return &profile->has.runtime;
}

/* The measured time of a similar operation, or the roofline's if there is none. */
double xm_cluster_profile_op_seconds(const xm_cluster_profile_t *profile, const char *op,
                                     xm_number_t number, double flops, double bytes)
{
    return xm_op_times_seconds(profile->has.op_times, profile->has.op_time_count,
                               &profile->has.device, op, number, flops, bytes);
}

const xm_op_time_t *xm_cluster_profile_op_times(const xm_cluster_profile_t *profile, size_t *count)
{
    *count = profile->has.op_time_count;
    return profile->has.op_times;
}

/* What a profile has, member by member. */
#define MEMBER(type, name, member)                                                                 \
    type xm_cluster_profile_##name(const xm_cluster_profile_t *profile)                            \
    {                                                                                              \
        return profile->has.member;                                                                \
    }

MEMBER(double, gradient_overlap, gradient_overlap)
MEMBER(const char *, name, name)
MEMBER(const char *, provenance, provenance)
MEMBER(xm_cluster_device_t, device, device)
MEMBER(double, device_flops, device.flops)
MEMBER(double, device_memory_bytes, device.memory_bytes)
MEMBER(double, device_memory_bandwidth, device.memory_bandwidth)
MEMBER(double, nic_bandwidth, nic_bandwidth)
MEMBER(double, nic_spread, nic_spread)
MEMBER(int, nics_per_host, nics_per_host)
MEMBER(double, nic_both_ways, nic_both_ways)
MEMBER(double, host_fabric, host_fabric)
MEMBER(size_t, collectives, collective_count)
MEMBER(int, hosts_per_rack, hosts_per_rack)
MEMBER(double, uplink_bandwidth, uplink_bandwidth)

/* Those of the device, by type of number; then its memory, then links. */
bool xm_profile_figure(const xm_cluster_profile_params_t *params, int index,
                       xm_profile_figure_t *figure)
{
    static const char *const types[XM_NUMBER_COUNT] = {"device FLOP/s",
                                                       "device FLOP/s in float16",
                                                       "device FLOP/s in bfloat16",
                                                       "device FLOP/s in float32",
                                                       "device FLOP/s in float64",
                                                       "device FLOP/s in int8"};
    const xm_cluster_device_t *device = &params->device;
    const xm_profile_figure_t others[] = {
        {"device memory B/s", device->memory_bandwidth, device->memory_spread},
        {"nic B/s", params->nic_bandwidth, params->nic_spread},
        {"nic both ways B/s", params->nic_both_ways, params->nic_both_ways_spread},
        {"fabric of a host B/s", params->host_fabric, params->host_fabric_spread}};
    bool typed = index < XM_NUMBER_COUNT;

    if (index >= XM_NUMBER_COUNT + (int)(sizeof(others) / sizeof(others[0]))) {
        return false;
    }
    *figure = typed ? (xm_profile_figure_t){types[index],
                                            index == XM_NUMBER_ANY ? device->flops
                                                                   : device->number_flops[index],
                                            device->number_spread[index]}
                    : others[index - XM_NUMBER_COUNT];
    return true;
}

bool xm_cluster_profile_figure(const xm_cluster_profile_t *profile, int index,
                               xm_profile_figure_t *figure)
{
    return xm_profile_figure(&profile->has, index, figure);
}

int xm_cluster_profile_hosts(const xm_cluster_profile_t *profile)
{
    if (XM_IS_NULL(profile)) {
        return 0;
    }
    return profile->has.hosts;
}

int xm_cluster_profile_devices_per_host(const xm_cluster_profile_t *profile)
{
    if (XM_IS_NULL(profile)) {
        return 0;
    }
    return profile->has.devices_per_host;
}

/* Hosts beyond the list repeat it, after a resize. */
double xm_cluster_profile_host_nic_bandwidth(const xm_cluster_profile_t *profile, int host)
{
    return profile->has.host_nic_bandwidth != NULL
               ? profile->has.host_nic_bandwidth[host % profile->has.hosts]
               : profile->has.nic_bandwidth;
}

xm_cluster_device_t xm_cluster_profile_host_device(const xm_cluster_profile_t *profile, int host)
{
    return profile->has.host_device != NULL ? profile->has.host_device[host % profile->has.hosts]
                                            : profile->has.device;
}

/* True if there is a list, even one of equal entries, so that saving keeps it. */
bool xm_cluster_profile_devices_differ(const xm_cluster_profile_t *profile)
{
    return profile->has.host_device != NULL;
}

bool xm_cluster_profile_hosts_differ(const xm_cluster_profile_t *profile)
{
    return profile->has.host_nic_bandwidth != NULL;
}

void xm_cluster_profile_processors(const xm_cluster_profile_t *profile, double *cores_per_host,
                                   double *nic_cpu, double *host_cpu)
{
    *cores_per_host = profile->has.cores_per_host;
    *nic_cpu = profile->has.nic_cpu;
    *host_cpu = profile->has.host_cpu;
}

const double *xm_cluster_profile_spread(const xm_cluster_profile_t *profile, xm_link_class_t link)
{
    return profile->has.curve_spread[link];
}

const xm_collective_curve_t *xm_cluster_profile_collective(const xm_cluster_profile_t *profile,
                                                           size_t index)
{
    return &profile->has.collectives[index];
}

/* NULL if it was never measured; there is no guess from a similar group here. */
const xm_collective_curve_t *xm_cluster_profile_find_collective(const xm_cluster_profile_t *profile,
                                                                xm_collective_t kind, int hosts,
                                                                int devices, int groups)
{
    const xm_collective_curve_t wanted = {
        .kind = kind, .hosts = hosts, .devices_per_host = devices, .groups_per_host = groups};

    for (size_t i = 0; i < profile->has.collective_count; ++i) {
        if (xm_collective_curve_same(&profile->has.collectives[i], &wanted)) {
            return &profile->has.collectives[i];
        }
    }
    return NULL;
}

const xm_curve_point_t *xm_cluster_profile_curve(const xm_cluster_profile_t *profile,
                                                 xm_link_class_t link, size_t *points)
{
    *points = profile->has.curve_points[link];
    return profile->has.curve[link];
}

double xm_cluster_profile_seconds(const xm_cluster_profile_t *profile, xm_link_class_t link,
                                  double bytes)
{
    return xm_curve_seconds(profile->has.curve[link], profile->has.curve_points[link], bytes);
}

/* The time of the smallest message, which is nearly all latency. */
double xm_cluster_profile_latency(const xm_cluster_profile_t *profile, xm_link_class_t link)
{
    return profile->has.curve[link][0].seconds;
}

/* The best rate of any size: latency hides it at small ones. */
double xm_cluster_profile_bandwidth(const xm_cluster_profile_t *profile, xm_link_class_t link)
{
    double best = 0;

    for (size_t i = 0; i < profile->has.curve_points[link]; ++i) {
        const xm_curve_point_t *point = &profile->has.curve[link][i];

        best = fmax(best, (double)point->bytes / point->seconds);
    }
    return best;
}

/* Also takes apart what creation has left half made. */
void xm_cluster_profile_destroy(xm_cluster_profile_t *profile)
{
    if (profile != NULL) {
        xm_arena_clear(&profile->memory);
        free(profile);
    }
}
