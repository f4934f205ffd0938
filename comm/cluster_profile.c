#include "comm/cluster_profile.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* RESIZED_SIZE: room for what a resize adds to the provenance. */
enum { MAX_DEVICES = 1 << 24, MAX_POINTS = 1 << 16, RESIZED_SIZE = 96 };

struct xm_cluster_profile {
    char *name, *provenance;
    int hosts, devices_per_host;
    double device_flops, device_memory_bytes, device_memory_bandwidth, nic_bandwidth;
    double *host_nic_bandwidth; /* by host, or NULL */
    int host_nic_count;
    int hosts_per_rack;
    double uplink_bandwidth;
    xm_curve_point_t *curve[XM_LINK_CLASS_COUNT];
    size_t curve_points[XM_LINK_CLASS_COUNT];
};

static const char *const link_names[XM_LINK_CLASS_COUNT] = {"self", "intra_host", "inter_host"};

const char *xm_link_class_name(xm_link_class_t link)
{
    return link_names[link];
}

/* What the file holds: 12 significant digits. */
static double rounded(double value)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%.12g", value);
    return strtod(text, NULL);
}

static xm_status_t check_positive(const char *key, double value)
{
    if (!isfinite(value) || value <= 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "%s is %g; it must be positive", key, value);
    }
    return XM_OK;
}

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

/* Times are compared as they will be stored. */
static xm_status_t check_curve(const char *link, const xm_curve_point_t *curve, size_t points)
{
    double last = 0;

    if (curve == NULL || points < 2 || points > MAX_POINTS) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "curves.%s has %zu points; it needs 2 to %d",
                            link, curve == NULL ? (size_t)0 : points, MAX_POINTS);
    }
    for (size_t i = 0; i < points; ++i) {
        double seconds = rounded(curve[i].seconds);

        if (!isfinite(seconds) || seconds <= 0) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "curves.%s[%zu]: %g seconds; a time must be positive", link, i,
                                curve[i].seconds);
        }
        if (curve[i].bytes > INT64_MAX) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "curves.%s[%zu]: %" PRIu64 " bytes; the most is %" PRId64, link, i,
                                curve[i].bytes, INT64_MAX);
        }
        if (i > 0 && curve[i].bytes <= curve[i - 1].bytes) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "curves.%s[%zu]: %" PRIu64 " bytes after %" PRIu64
                                "; bytes must rise",
                                link, i, curve[i].bytes, curve[i - 1].bytes);
        }
        if (seconds < last) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "curves.%s[%zu]: %g seconds after %g; times must not fall", link, i,
                                seconds, last);
        }
        if (i == points - 1 && seconds <= last) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "curves.%s: the last two times are equal; the last must be longer, "
                                "because its slope prices larger messages",
                                link);
        }
        last = seconds;
    }
    return XM_OK;
}

/* What is optional: hosts that differ, racks. */
static xm_status_t check_network(const xm_cluster_profile_params_t *params)
{
    for (int h = 0; params->host_nic_bandwidth != NULL && h < params->hosts; ++h) {
        char key[48];
        xm_status_t status;

        (void)snprintf(key, sizeof(key), "nic.hosts[%d]", h);
        status = check_positive(key, params->host_nic_bandwidth[h]);
        if (status < 0) {
            return status;
        }
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

static xm_status_t check(const xm_cluster_profile_params_t *params)
{
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"device.flop_per_s", params->device_flops},
                   {"device.memory_bytes", params->device_memory_bytes},
                   {"device.memory_bytes_per_s", params->device_memory_bandwidth},
                   {"nic.bytes_per_s", params->nic_bandwidth}};
    xm_status_t status = XM_OK;

    if (params->struct_size != sizeof(*params)) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "cluster profile parameters have %zu bytes instead of %zu",
                            params->struct_size, sizeof(*params));
    }
    if (params->name == NULL || params->name[0] == '\0') {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "name is empty; it must say which cluster");
    }
    if (params->provenance == NULL || params->provenance[0] == '\0') {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "provenance is empty; it must say how the numbers came about");
    }
    status = check_sizes(params->hosts, params->devices_per_host);
    for (size_t i = 0; status == XM_OK && i < sizeof(numbers) / sizeof(numbers[0]); ++i) {
        status = check_positive(numbers[i].key, numbers[i].value);
    }
    if (status == XM_OK) {
        status = check_network(params);
    }
    for (int link = 0; status == XM_OK && link < XM_LINK_CLASS_COUNT; ++link) {
        status = check_curve(link_names[link], params->curve[link], params->curve_points[link]);
    }
    return status;
}

xm_status_t xm_cluster_profile_create(const xm_cluster_profile_params_t *params,
                                      xm_cluster_profile_t **profile)
{
    xm_status_t status = check(params);
    xm_cluster_profile_t *made;

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
    made->device_flops = rounded(params->device_flops);
    made->device_memory_bytes = rounded(params->device_memory_bytes);
    made->device_memory_bandwidth = rounded(params->device_memory_bandwidth);
    made->nic_bandwidth = rounded(params->nic_bandwidth);
    made->hosts_per_rack = params->hosts_per_rack;
    made->uplink_bandwidth = params->hosts_per_rack > 0 ? rounded(params->uplink_bandwidth) : 0;
    if (params->host_nic_bandwidth != NULL) {
        made->host_nic_count = params->hosts;
        made->host_nic_bandwidth = calloc((size_t)params->hosts, sizeof(double));
        if (made->host_nic_bandwidth == NULL) {
            goto destroy_made;
        }
        for (int h = 0; h < params->hosts; ++h) {
            made->host_nic_bandwidth[h] = rounded(params->host_nic_bandwidth[h]);
        }
    }
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        made->curve_points[link] = params->curve_points[link];
        made->curve[link] = calloc(params->curve_points[link], sizeof(xm_curve_point_t));
        if (made->curve[link] == NULL) {
            goto destroy_made;
        }
        for (size_t i = 0; i < params->curve_points[link]; ++i) {
            made->curve[link][i].bytes = params->curve[link][i].bytes;
            made->curve[link][i].seconds = rounded(params->curve[link][i].seconds);
        }
    }
    *profile = made;
    return XM_OK;

destroy_made:
    xm_cluster_profile_destroy(made);
    return xm_error_set(XM_ERR_NO_MEMORY, "cluster profile: out of memory");
}

xm_status_t xm_cluster_profile_resize(const xm_cluster_profile_t *profile, int hosts,
                                      int devices_per_host, xm_cluster_profile_t **resized)
{
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;
    size_t size = strlen(profile->provenance) + RESIZED_SIZE;
    char *provenance = malloc(size);
    double *rates = NULL;
    xm_status_t status = check_sizes(hosts, devices_per_host);

    if (status == XM_OK && profile->host_nic_bandwidth != NULL) {
        rates = malloc((size_t)hosts * sizeof(*rates));
    }
    if (status < 0) {
        free(provenance);
        return status;
    }
    if (provenance == NULL || (rates == NULL && profile->host_nic_bandwidth != NULL)) {
        free(rates);
        free(provenance);
        return xm_error_set(XM_ERR_NO_MEMORY, "cluster profile: out of memory");
    }
    (void)snprintf(provenance, size, "%s; resized from %d x %d to %d x %d devices",
                   profile->provenance, profile->hosts, profile->devices_per_host, hosts,
                   devices_per_host);
    params.name = profile->name;
    params.provenance = provenance;
    params.hosts = hosts;
    params.devices_per_host = devices_per_host;
    params.device_flops = profile->device_flops;
    params.device_memory_bytes = profile->device_memory_bytes;
    params.device_memory_bandwidth = profile->device_memory_bandwidth;
    params.nic_bandwidth = profile->nic_bandwidth;
    for (int h = 0; rates != NULL && h < hosts; ++h) {
        rates[h] = xm_cluster_profile_host_nic_bandwidth(profile, h);
    }
    params.host_nic_bandwidth = rates;
    params.hosts_per_rack = profile->hosts_per_rack;
    params.uplink_bandwidth = profile->uplink_bandwidth;
    if (devices_per_host > profile->devices_per_host) {
        params.device_memory_bytes *= (double)profile->devices_per_host / devices_per_host;
    }
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        params.curve[link] = profile->curve[link];
        params.curve_points[link] = profile->curve_points[link];
    }
    status = xm_cluster_profile_create(&params, resized);
    free(rates);
    free(provenance);
    return status;
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
    return profile->hosts;
}

int xm_cluster_profile_devices_per_host(const xm_cluster_profile_t *profile)
{
    return profile->devices_per_host;
}

double xm_cluster_profile_device_flops(const xm_cluster_profile_t *profile)
{
    return profile->device_flops;
}

double xm_cluster_profile_device_memory_bytes(const xm_cluster_profile_t *profile)
{
    return profile->device_memory_bytes;
}

double xm_cluster_profile_device_memory_bandwidth(const xm_cluster_profile_t *profile)
{
    return profile->device_memory_bandwidth;
}

double xm_cluster_profile_nic_bandwidth(const xm_cluster_profile_t *profile)
{
    return profile->nic_bandwidth;
}

double xm_cluster_profile_host_nic_bandwidth(const xm_cluster_profile_t *profile, int host)
{
    return profile->host_nic_bandwidth != NULL
               ? profile->host_nic_bandwidth[host % profile->host_nic_count]
               : profile->nic_bandwidth;
}

bool xm_cluster_profile_hosts_differ(const xm_cluster_profile_t *profile)
{
    return profile->host_nic_bandwidth != NULL;
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
    const xm_curve_point_t *curve = profile->curve[link];
    size_t low = 0, high = profile->curve_points[link] - 1;
    double span, slope;

    if (bytes <= (double)curve[0].bytes) {
        return curve[0].seconds;
    }
    /* The segment low … low + 1 that holds the size, or the last one. */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if ((double)curve[middle].bytes <= bytes) {
            low = middle;
        } else {
            high = middle;
        }
    }
    span = (double)(curve[low + 1].bytes - curve[low].bytes);
    slope = (curve[low + 1].seconds - curve[low].seconds) / span;
    return curve[low].seconds + (bytes - (double)curve[low].bytes) * slope;
}

double xm_cluster_profile_latency(const xm_cluster_profile_t *profile, xm_link_class_t link)
{
    return profile->curve[link][0].seconds;
}

double xm_cluster_profile_bandwidth(const xm_cluster_profile_t *profile, xm_link_class_t link)
{
    double best = 0;

    for (size_t i = 0; i < profile->curve_points[link]; ++i) {
        const xm_curve_point_t *point = &profile->curve[link][i];

        best = fmax(best, (double)point->bytes / point->seconds);
    }
    return best;
}

void xm_cluster_profile_destroy(xm_cluster_profile_t *profile)
{
    if (profile == NULL) {
        return;
    }
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        free(profile->curve[link]);
    }
    free(profile->host_nic_bandwidth);
    free(profile->provenance);
    free(profile->name);
    free(profile);
}
