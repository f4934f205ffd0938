/* SPDX-License-Identifier: Apache-2.0 */
/* Making a profile of measured numbers. Everything that had to be assumed (classes of links
 * without a pair, hosts that were not measured, shared cores of emulated hosts) is said in the
 * provenance, because a plan is only as good as these numbers and nobody remembers later how
 * they came about. It is pure computation, so tests run it on invented measurements. */
#include "comm/probe/profile.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* LONG_BYTES: a message of which the burst that limited NICs let through is a small part. */
enum { PROVENANCE_SIZE = 1000, LONG_BYTES = 16 << 20 };

static const double usable_memory = 0.8; /* the rest is the operating system's and the program's */

int xm_probe_ranks_on(const int *host_of, int ranks, int host)
{
    int count = 0;

    for (int rank = 0; rank < ranks; ++rank) {
        count += host_of[rank] == host;
    }
    return count;
}

/* The rank with a given place on a host, counted from 0, or -1. */
int xm_probe_rank_on(const int *host_of, int ranks, int host, int index)
{
    for (int rank = 0; rank < ranks; ++rank) {
        if (host_of[rank] == host && index-- == 0) {
            return rank;
        }
    }
    return -1;
}

/* The pair of ranks that stands for a class of links: the lowest that there is. */
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

/* A provenance that is too long is cut; it is for people. */
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

/* The medians of rates and of their spreads, so that one disturbed rank does not change what a
 * device is worth. @p offset is that of the figure. */
static xm_probe_figure_t median_of(const xm_probe_summary_t *summary, double *values, size_t offset)
{
    double medians[3];

    for (size_t part = 0; part < 3; ++part) {
        for (int rank = 0; rank < summary->ranks; ++rank) {
            memcpy(&values[rank],
                   (const char *)&summary->devices[rank] + offset + part * sizeof(double),
                   sizeof(double));
        }
        medians[part] = xm_array_median(values, summary->ranks);
    }
    return (xm_probe_figure_t){medians[0], medians[1], medians[2]};
}

/* Devices are the medians of all ranks, and memory is that of the tightest host, so that a plan
 * fits everywhere. */
static xm_status_t set_devices(const xm_probe_summary_t *summary,
                               xm_cluster_profile_params_t *params, provenance_t *provenance)
{
    double *values = calloc((size_t)summary->ranks, sizeof(double));
    xm_probe_figure_t figure;
    int most = 0;
    bool shared = false;

    if (values == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "probe: out of memory");
    }
    for (int n = 0; n < XM_NUMBER_COUNT; ++n) {
        figure = median_of(summary, values,
                           offsetof(xm_probe_device_t, flops) + (size_t)n * sizeof(figure));
        params->device.number_flops[n] = figure.value;
        params->device.number_spread[n] = figure.spread;
        params->runtime.jitter = n == XM_NUMBER_FLOAT32 ? figure.jitter : params->runtime.jitter;
    }
    /* What is of no known type counts as 32 bits. */
    params->device.flops = params->device.number_flops[XM_NUMBER_FLOAT32];
    params->device.number_spread[XM_NUMBER_ANY] = params->device.number_spread[XM_NUMBER_FLOAT32];
    figure = median_of(summary, values, offsetof(xm_probe_device_t, copy_bandwidth));
    params->device.memory_bandwidth = figure.value;
    params->device.memory_spread = figure.spread;
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
        const xm_probe_device_t *device = &summary->devices[rank];
        /* Ranks of a host share its memory evenly. */
        int host = summary->host_of[rank];
        double bytes = usable_memory * device->host_memory /
                       xm_probe_ranks_on(summary->host_of, summary->ranks, host);

        if (rank == 0 || bytes < params->device.memory_bytes) {
            params->device.memory_bytes = bytes;
        }
        shared = shared ||
                 (host != summary->host_of[0] && device->machine == summary->devices[0].machine);
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

/* Processors of the host that has fewest: launchers bind ranks to some of their own, and hosts that
 * are emulated have a part of their machine's. What a byte costs is halved between its ends. */
static void set_cores(const xm_probe_summary_t *summary, xm_cluster_profile_params_t *params)
{
    for (int rank = 0; rank < summary->ranks; ++rank) {
        const xm_probe_device_t *own = &summary->devices[rank];
        double cores = 0;
        int ranks = 0, local = 0;

        for (int other = 0; other < summary->ranks; ++other) {
            if (summary->devices[other].machine == own->machine) {
                cores += summary->devices[other].cores;
                local += summary->host_of[other] == summary->host_of[rank];
                ++ranks;
            }
        }
        cores = fmin(cores, own->machine_cores) * local / ranks;
        params->cores_per_host = rank == 0 ? cores : fmin(params->cores_per_host, cores);
    }
    params->nic_cpu = summary->nic_cpu / 2;
    params->host_cpu = summary->host_cpu / 2;
}

/* A class that this job does not have gets the curve of the nearest class that was measured. */
static void substitute(xm_probe_curve_t curves[XM_LINK_CURVES], provenance_t *provenance)
{
    static const xm_link_class_t stand_ins[XM_LINK_CLASS_COUNT][2] = {
        [XM_LINK_INTRA_HOST] = {XM_LINK_INTER_HOST, XM_LINK_SELF},
        [XM_LINK_INTER_HOST] = {XM_LINK_INTRA_HOST, XM_LINK_SELF}};
    /* Noted before the first substitution: a curve that stands in must not be passed on. */
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

/* The rate that a link keeps up: a limited NIC lets the first bytes after a pause through at
 * any speed (token buckets of clouds and of traffic shapers), so only the longest message
 * counts. */
static double sustained(const xm_probe_curve_t *curve)
{
    const xm_curve_point_t *longest = curve->points + curve->count;

    return curve->count > 0 ? (double)longest[-1].bytes / longest[-1].seconds : 0.0;
}

/* The factor beyond which rates differ by more than noise, however badly one of them is known. */
static double noise(const xm_probe_summary_t *summary)
{
    return 1.05 + 2 * fmin(summary->nic_spread, 0.1);
}

/* Names the hosts whose two directions differ, by one sentence part for the first of them. */
static void say_uneven(const xm_probe_summary_t *summary, provenance_t *provenance)
{
    int count = 0, first = -1;

    for (int h = 0; h < summary->hosts; ++h) {
        double out = summary->egress[h], in = summary->ingress[h];

        if (out > 0 && in > 0 && fmax(out, in) > noise(summary) * fmin(out, in)) {
            first = count++ == 0 ? h : first;
        }
    }
    if (count > 0) {
        say(provenance,
            "; the NICs of %d host%s are faster in one direction (host %d: %.4g out, %.4g in, "
            "GB/s) "
            "and count with the slower one",
            count, count > 1 ? "s" : "", first, 1e-9 * summary->egress[first],
            1e-9 * summary->ingress[first]);
    }
}

/* Writes the rate of each host, the slower of its two directions, into @p rates; false when
 * none has been measured. *typical is their median, *differ whether hosts are not alike. */
static bool host_rates(const xm_probe_summary_t *summary, double *rates, double *typical,
                       bool *differ, provenance_t *provenance)
{
    int measured = 0;

    for (int h = 0; summary->egress != NULL && h < summary->hosts; ++h) {
        double rate = fmin(summary->egress[h], summary->ingress[h]);

        if (rate > 0) {
            rates[measured++] = rate;
        }
    }
    if (measured == 0) {
        if (summary->egress != NULL && summary->hosts > 1) {
            say(provenance, "; no time was left to measure NICs");
        }
        return false;
    }
    /* The median sorts the rates, so the ends of the array are the extremes. */
    *typical = xm_array_median(rates, measured);
    *differ = rates[measured - 1] > noise(summary) * rates[0];
    if (measured < summary->hosts) {
        say(provenance,
            "; no time was left to measure the NICs of %d of %d hosts, which count as typical",
            summary->hosts - measured, summary->hosts);
    }
    for (int h = 0; h < summary->hosts; ++h) {
        double rate = fmin(summary->egress[h], summary->ingress[h]);

        rates[h] = rate > 0 ? rate : *typical;
    }
    say_uneven(summary, provenance);
    return true;
}

/* The rate of concurrent streams counts, or that of one long message if it was faster: streams
 * on few cores may be limited by the processors. */
static void set_nics(const xm_probe_summary_t *summary, const xm_probe_curve_t *inter_host,
                     xm_cluster_profile_params_t *params, double *rates, provenance_t *provenance)
{
    double longest = sustained(inter_host), typical = 0;
    bool differ = false, measured = host_rates(summary, rates, &typical, &differ, provenance);

    if (differ) {
        params->host_nic_bandwidth = rates;
    }
    /* A short message may have passed in a burst, and one link says nothing about hosts that
     * differ. */
    if (measured && (differ || inter_host->points[inter_host->count - 1].bytes < LONG_BYTES)) {
        longest = 0;
    }
    params->nic_bandwidth = fmax(typical, longest);
    say(provenance, params->nic_bandwidth > typical ? "; NIC capacity from the longest message"
                    : differ ? "; NIC capacity of each host from concurrent flows"
                             : "; NIC capacity from concurrent flows");
    if (measured && params->nic_bandwidth <= typical) {
        params->nic_spread = summary->nic_spread;
    }
    if (measured && summary->nic_both_ways <= 0) {
        say(provenance, "; no time was left to measure both directions at once");
    }
    params->nic_both_ways = summary->nic_both_ways;
    params->nic_both_ways_spread = summary->nic_both_ways_spread;
    params->host_fabric = summary->host_fabric;
    params->host_fabric_spread = summary->host_fabric_spread;
    params->nics_per_host = summary->nics_per_host;
}

/* Says how many points are not as well known as they should be, and names every rate that is not
 * known well enough to plan with. */
static void say_loose(const xm_probe_summary_t *summary, const xm_cluster_profile_params_t *params,
                      provenance_t *provenance)
{
    int points = 0, loose = 0;
    xm_profile_figure_t figure;

    for (int link = 0; link < XM_LINK_CURVES; ++link) {
        for (int i = 0; i < summary->curve[link].count; ++i) {
            ++points;
            loose += summary->curve[link].spread[i] > XM_PROBE_TIGHT;
        }
    }
    if (loose > 0) {
        say(provenance, "; %d of %d points are not known to +-%g %%", loose, points,
            100 * XM_PROBE_TIGHT);
    }
    for (int i = 1; xm_profile_figure(params, i, &figure); ++i) {
        if (figure.value > 0 && figure.spread > XM_PROBE_LOOSE) {
            say(provenance, "; %s is known to +-%.0f %%", figure.name, 100 * figure.spread);
        }
    }
}

/* Curves are smoothed before they stand in for others, and checked when the profile is created. */
xm_status_t xm_probe_profile(const xm_probe_summary_t *summary, xm_cluster_profile_t **profile)
{
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;
    xm_probe_curve_t curves[XM_LINK_CURVES];
    provenance_t provenance = {.length = 0};
    double *rates = calloc((size_t)summary->hosts, sizeof(*rates));
    xm_status_t status;

    if (rates == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "probe: out of memory");
    }
    say(&provenance, "measured %s", summary->conditions);
    status = set_devices(summary, &params, &provenance);
    if (status < 0) {
        goto free_rates;
    }
    memcpy(curves, summary->curve, sizeof(curves));
    for (int link = 0; link < XM_LINK_CURVES; ++link) {
        if (curves[link].count > 0) {
            curves[link].count =
                xm_curve_smooth(curves[link].points, curves[link].spread, curves[link].count);
        }
    }
    substitute(curves, &provenance);
    set_nics(summary, &curves[XM_LINK_INTER_HOST], &params, rates, &provenance);
    say_loose(summary, &params, &provenance);
    set_cores(summary, &params);
    params.name = summary->name;
    params.provenance = provenance.text;
    for (int link = 0; link < XM_LINK_CURVES; ++link) {
        params.curve[link] = curves[link].points;
        params.curve_spread[link] = curves[link].spread;
        params.curve_points[link] = (size_t)curves[link].count;
    }
    status = xm_cluster_profile_create(&params, profile);
    if (status < 0) {
        status = xm_error_prefix(status, "probe");
    }

free_rates:
    free(rates);
    return status;
}
