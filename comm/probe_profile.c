#include "comm/probe_profile.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROVENANCE_SIZE = 1000 };

static const double usable_memory = 0.8; /* the rest is the operating system's and the program's */

int xm_probe_ranks_on(const int *host_of, int ranks, int host)
{
    int count = 0;

    for (int rank = 0; rank < ranks; ++rank) {
        count += host_of[rank] == host;
    }
    return count;
}

int xm_probe_rank_on(const int *host_of, int ranks, int host, int index)
{
    for (int rank = 0; rank < ranks; ++rank) {
        if (host_of[rank] == host && index-- == 0) {
            return rank;
        }
    }
    return -1;
}

bool xm_probe_pair(const int *host_of, int ranks, int hosts, xm_link_class_t link, int *a, int *b)
{
    if (link == XM_LINK_INTER_HOST && hosts > 1) {
        *a = xm_probe_rank_on(host_of, ranks, 0, 0);
        *b = xm_probe_rank_on(host_of, ranks, 1, 0);
        return true;
    }
    for (int host = 0; link == XM_LINK_INTRA_HOST && host < hosts; ++host) {
        if (xm_probe_ranks_on(host_of, ranks, host) > 1) {
            *a = xm_probe_rank_on(host_of, ranks, host, 0);
            *b = xm_probe_rank_on(host_of, ranks, host, 1);
            return true;
        }
    }
    return false;
}

typedef struct {
    char text[PROVENANCE_SIZE];
    size_t length;
} provenance_t;

static void say(provenance_t *provenance, const char *format, ...) XM_PRINTF(2, 3);

static void say(provenance_t *provenance, const char *format, ...)
{
    size_t room = sizeof(provenance->text) - provenance->length;
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(provenance->text + provenance->length, room, format, args);
    va_end(args);
    if (length > 0) {
        provenance->length += (size_t)length < room ? (size_t)length : room - 1;
    }
}

static double median_of(const xm_probe_summary_t *summary, double *values, size_t offset)
{
    for (int rank = 0; rank < summary->ranks; ++rank) {
        memcpy(&values[rank], (const char *)&summary->reports[rank] + offset, sizeof(double));
    }
    return xm_probe_median(values, summary->ranks);
}

static xm_status_t set_devices(const xm_probe_summary_t *summary,
                               xm_cluster_profile_params_t *params, provenance_t *provenance)
{
    double *values = calloc((size_t)summary->ranks, sizeof(double));
    int most = 0;
    bool shared = false;

    if (values == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "probe: out of memory");
    }
    params->device_flops = median_of(summary, values, offsetof(xm_probe_report_t, flops));
    params->device_memory_bandwidth =
        median_of(summary, values, offsetof(xm_probe_report_t, copy_bandwidth));
    free(values);
    params->hosts = summary->hosts;
    params->devices_per_host = summary->ranks;
    for (int host = 0; host < summary->hosts; ++host) {
        int count = xm_probe_ranks_on(summary->host_of, summary->ranks, host);

        most = count > most ? count : most;
        params->devices_per_host =
            count < params->devices_per_host ? count : params->devices_per_host;
    }
    for (int rank = 0; rank < summary->ranks; ++rank) {
        const xm_probe_report_t *report = &summary->reports[rank];
        int host = summary->host_of[rank];
        double bytes = usable_memory * report->host_memory /
                       xm_probe_ranks_on(summary->host_of, summary->ranks, host);

        if (rank == 0 || bytes < params->device_memory_bytes) {
            params->device_memory_bytes = bytes;
        }
        shared = shared ||
                 (host != summary->host_of[0] && report->machine == summary->reports[0].machine);
    }
    if (most > params->devices_per_host) {
        say(provenance, "; hosts have %d to %d ranks, the smallest counts",
            params->devices_per_host, most);
    }
    if (shared) {
        say(provenance, "; hosts are emulated on one machine whose cores they share and whose "
                        "memory each counts as its own");
    }
    return XM_OK;
}

typedef struct {
    xm_curve_point_t points[XM_PROBE_MAX_POINTS];
    int count;
} curve_t;

/* The curve of a class from the rank that measured it. */
static void find_curve(const xm_probe_summary_t *summary, xm_link_class_t link, curve_t *curve)
{
    curve->count = 0;
    for (int rank = 0; rank < summary->ranks && curve->count == 0; ++rank) {
        const xm_probe_report_t *report = &summary->reports[rank];

        curve->count = report->points[link];
        memcpy(curve->points, report->curve[link], sizeof(curve->points));
    }
    if (curve->count > 0) {
        curve->count = xm_probe_smooth(curve->points, curve->count);
    }
}

static void substitute(curve_t curves[XM_LINK_CLASS_COUNT], provenance_t *provenance)
{
    static const xm_link_class_t stand_ins[XM_LINK_CLASS_COUNT][2] = {
        [XM_LINK_INTRA_HOST] = {XM_LINK_INTER_HOST, XM_LINK_SELF},
        [XM_LINK_INTER_HOST] = {XM_LINK_INTRA_HOST, XM_LINK_SELF}};
    bool measured[XM_LINK_CLASS_COUNT];

    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        measured[link] = curves[link].count > 0;
    }
    for (int link = XM_LINK_INTRA_HOST; link < XM_LINK_CLASS_COUNT; ++link) {
        for (int i = 0; i < 2 && curves[link].count == 0; ++i) {
            xm_link_class_t stand_in = stand_ins[link][i];

            if (measured[stand_in]) {
                curves[link] = curves[stand_in];
                say(provenance, "; %s is not in this job, the curve of %s stands in",
                    xm_link_class_name((xm_link_class_t)link), xm_link_class_name(stand_in));
            }
        }
    }
}

/* What a link keeps up: a limited NIC lets the first bytes after a pause through at any speed
 * (token buckets of clouds and of traffic shapers), so only the longest message counts. */
static double sustained(const curve_t *curve)
{
    const xm_curve_point_t *longest = curve->points + curve->count;

    return curve->count > 0 ? (double)longest[-1].bytes / longest[-1].seconds : 0.0;
}

xm_status_t xm_probe_profile(const xm_probe_summary_t *summary, xm_cluster_profile_t **profile)
{
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;
    curve_t curves[XM_LINK_CLASS_COUNT];
    provenance_t provenance = {.length = 0};
    xm_status_t status;

    say(&provenance, "measured %s", summary->conditions);
    status = set_devices(summary, &params, &provenance);
    if (status < 0) {
        return status;
    }
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        find_curve(summary, (xm_link_class_t)link, &curves[link]);
    }
    substitute(curves, &provenance);
    params.nic_bandwidth = sustained(&curves[XM_LINK_INTER_HOST]);
    if (summary->nic_bandwidth > params.nic_bandwidth) {
        params.nic_bandwidth = summary->nic_bandwidth;
        say(&provenance, "; NIC capacity from %d concurrent flows", summary->nic_flows);
    } else {
        say(&provenance, "; NIC capacity from the longest message");
    }
    params.name = summary->name;
    params.provenance = provenance.text;
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        params.curve[link] = curves[link].points;
        params.curve_points[link] = (size_t)curves[link].count;
    }
    status = xm_cluster_profile_create(&params, profile);
    return status < 0 ? xm_error_prefix(status, "probe") : XM_OK;
}
