/* SPDX-License-Identifier: Apache-2.0 */
/* What a probe has measured becomes a profile. Rank 0 makes it of the state that all share, so it
 * does not matter which numbers were measured now and which by an earlier probe. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <crossmesh/version.h>

#include "comm/base.h"
#include "comm/probe/compute.h"
#include "comm/probe/probe_private.h"

char *xm_probe_nic_step(int host, bool out, char *buffer, size_t size)
{
    (void)snprintf(buffer, size, "nic/%d/%s", host, out ? "out" : "in");
    return buffer;
}

/* Says when, where and on what the numbers were measured. */
static void describe(const xm_probe_t *probe, char *name, char *conditions, size_t size)
{
    char date[32];
    time_t now = time(NULL);
    struct tm utc;

    (void)gmtime_r(&now, &utc);
    (void)strftime(date, sizeof(date), "%Y-%m-%d %H:%M UTC", &utc);
    (void)snprintf(name, size, probe->hosts > 1 ? "%s and %d more" : "%s",
                   xm_worker_host_name(probe->worker, 0), probe->hosts - 1);
    (void)snprintf(conditions, size,
                   "%s by crossmesh %s: %d ranks on %d host%s, transport %s; a device is a rank on "
                   "CPU cores, all ranks at once (%s, copy of %d MiB)",
                   date, XM_VERSION_STRING, probe->ranks, probe->hosts, probe->hosts > 1 ? "s" : "",
                   xm_transport_name(xm_worker_transport(probe->worker)), xm_probe_flops_kind(),
                   (int)(xm_probe_cold_bytes(2 * probe->ranks, XM_PROBE_COPY_BYTES) >> 20));
}

/* Rank 0 makes the profile and sends its text, or the sentence that says why there is none. All
 * ranks read the same text, so their profiles are equal to the last digit. */
static xm_status_t agree(xm_probe_t *probe, xm_probe_summary_t *summary,
                         xm_cluster_profile_t **profile)
{
    char name[512], conditions[512], *text = NULL;
    void *all = NULL;
    size_t *offsets = NULL;
    xm_status_t status = XM_OK, made = XM_OK;

    if (probe->rank == 0) {
        xm_cluster_profile_t *first = NULL;

        describe(probe, name, conditions, sizeof(name));
        summary->name = name;
        summary->conditions = conditions;
        made = xm_probe_profile(summary, &first);
        if (made == XM_OK) {
            made = xm_cluster_profile_to_text(first, &text);
        }
        if (made < 0) {
            text = strdup(xm_last_error());
        }
        xm_cluster_profile_destroy(first);
    }
    status = xm_bootstrap_allgatherv(xm_worker_bootstrap(probe->worker), text,
                                     text != NULL ? strlen(text) : 0, &all, &offsets,
                                     xm_worker_timeout(probe->worker));
    free(text);
    XM_TRY(status);
    /* JSON begins with a brace, a sentence does not. */
    if (offsets[1] > 0 && *(const char *)all == '{') {
        status = xm_cluster_profile_from_text(all, offsets[1], "profile of rank 0", profile);
    } else {
        status = xm_error_set(made < 0 ? made : XM_ERR_CORRUPT, "%.*s",
                              (int)(offsets[1] < 900 ? offsets[1] : 900), (const char *)all);
    }
    free(offsets);
    free(all);
    return status;
}

static void take_curve(const xm_probe_t *probe, int link, xm_probe_curve_t *curve)
{
    size_t count = 0;
    const double *numbers =
        xm_probe_state_find(probe->state, xm_link_class_name((xm_link_class_t)link), &count);

    curve->count = numbers != NULL ? (int)(count / 2) : 0;
    for (int i = 0; i < curve->count; ++i) {
        curve->points[i] = (xm_curve_point_t){probe->sizes[i], numbers[2 * i]};
        curve->spread[i] = numbers[2 * i + 1];
    }
}

/* Takes a rate, its spread and what a byte cost from the state; 0 when the step was not done. */
static double take_rate(const xm_probe_t *probe, const char *step, double *spread, double *cpu)
{
    size_t count = 0;
    const double *numbers = xm_probe_state_find(probe->state, step, &count);

    if (numbers == NULL || count != XM_PROBE_RATE_NUMBERS) {
        return 0;
    }
    *spread = fmax(*spread, numbers[1]);
    /* What disturbs a run only ever adds to it. */
    *cpu = *cpu > 0 ? fmin(*cpu, numbers[2]) : numbers[2];
    return numbers[0];
}

static bool is_rail_before(const xm_worker_rails_t *rails, int rank)
{
    for (int other = 0; other < rank; ++other) {
        if (rails->of[other] == rails->of[rank]) {
            return true;
        }
    }
    return false;
}

/* The NICs of a host where they are dealt to its ranks in turn, as many on each host: rank i of a
 * host then has the rail of rank i − NICs, and the first ones have one each. 0: it is otherwise. */
static int dealt_nics(const xm_probe_t *probe)
{
    const xm_worker_rails_t *rails = xm_worker_rails(probe->worker);
    int nics = rails->count / probe->hosts;

    for (int rank = 0; rank < probe->ranks; ++rank) {
        int place = 0, before = -1;

        for (int other = rank - 1; other >= 0; --other) {
            if (probe->host_of[other] == probe->host_of[rank]) {
                before = ++place == nics ? rails->of[other] : before;
            }
        }
        if ((place >= nics && before != rails->of[rank]) ||
            (place < nics && is_rail_before(rails, rank))) {
            return 0;
        }
    }
    return nics > 1 && rails->count == nics * probe->hosts ? nics : 0;
}

/* Everything comes from the shared state, whether measured now or by an earlier probe. */
xm_status_t xm_probe_make_profile(xm_probe_t *probe, xm_cluster_profile_t **profile)
{
    xm_probe_summary_t summary = {
        .host_of = probe->host_of, .ranks = probe->ranks, .hosts = probe->hosts};
    size_t count = 0;
    const double *numbers = xm_probe_state_find(probe->state, "device", &count);
    xm_probe_device_t *devices = calloc((size_t)probe->ranks, sizeof(*devices));
    double *egress = calloc(2 * (size_t)probe->hosts, sizeof(*egress)), both = 0;
    double *ingress = egress + probe->hosts;
    xm_status_t status;

    if (devices == NULL || egress == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "probe: out of memory");
        goto free_all;
    }
    for (int rank = 0; rank < probe->ranks; ++rank) {
        memcpy(&devices[rank], numbers + (size_t)rank * XM_PROBE_DEVICE_NUMBERS, sizeof(*devices));
    }
    for (int h = 0; h < probe->hosts; ++h) {
        char step[32];

        egress[h] = take_rate(probe, xm_probe_nic_step(h, true, step, sizeof(step)),
                              &summary.nic_spread, &summary.nic_cpu);
        ingress[h] = take_rate(probe, xm_probe_nic_step(h, false, step, sizeof(step)),
                               &summary.nic_spread, &summary.nic_cpu);
    }
    for (int link = 0; link < XM_LINK_CURVES; ++link) {
        take_curve(probe, link, &summary.curve[link]);
    }
    summary.devices = devices;
    summary.egress = egress;
    summary.ingress = ingress;
    summary.nic_both_ways = take_rate(probe, "nic/both", &summary.nic_both_ways_spread, &both);
    summary.host_fabric =
        take_rate(probe, "fabric", &summary.host_fabric_spread, &summary.host_cpu);
    summary.nics_per_host = dealt_nics(probe);
    status = agree(probe, &summary, profile);

free_all:
    free(egress);
    free(devices);
    return status;
}
