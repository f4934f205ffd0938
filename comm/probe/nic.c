/* SPDX-License-Identifier: Apache-2.0 */
/* What the NICs of a host carry, and its own fabric, by streams between well-chosen ranks. For
 * a host all its ranks stream to several others at once, so that its own NICs are the limit and
 * not its partners'. Rounds repeat until the rate is known; the fastest one counts, since
 * disturbances only ever slow streams down. All ranks take part in every run, for they share
 * one clock and one budget. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "comm/base.h"
#include "comm/probe/flows.h"
#include "comm/probe/probe_private.h"
#include "comm/probe/profile.h"

enum {
    PARTNERS = 4,       /* hosts that one host exchanges with, so that it is the limit */
    ROUNDS = 4,         /* of XM_PROBE_WINDOWS each, until the rate is known */
    LARGE = 256 << 10,  /* messages: long enough to be striped over several NICs */
    WINDOW_MESSAGES = 2 /* a window holds so many of a stream */
};

/* Seconds. Windows are as long as the budget allows, and as messages need. */
static const double shortest_window = 0.005, usual_window = 0.05, longest_window = 1;
/* The number of windows that settling takes. */
static const double settling = 2;
/* Part of the budget that all NICs together may take. */
static const double nic_share = 0.6;

/* The seconds of one message of a stream, from the ping-pong between hosts or inside one. It
 * only serves to plan windows. */
static double message_seconds(const xm_probe_t *probe, const char *curve)
{
    size_t count = 0;
    const double *numbers = xm_probe_state_find(probe->state, curve, &count);
    double seconds = 0;

    /* The numbers are seconds and spread of each size in turn. */
    for (size_t i = 0; numbers != NULL && 2 * i + 1 < count; ++i) {
        seconds = numbers[2 * i] * LARGE / (double)probe->sizes[i];
        if (probe->sizes[i] >= LARGE) {
            break;
        }
    }
    return seconds;
}

/* From rank 0's clock, so all ranks decide alike. */
static double time_left(const xm_probe_t *probe)
{
    return probe->params.budget - probe->elapsed;
}

typedef struct {
    double rate, spread;
    double cpu; /* seconds of processors for a byte */
} rate_t;

/* Judges a round by the median of the slower group's windows, and the widest spread. Nothing is
 * known of a window in which nothing ended: its bytes are those of a message that was held up. */
static rate_t evaluate(xm_probe_windows_t *windows, int groups)
{
    rate_t rate = {.rate = INFINITY, .cpu = windows->cpu};

    for (int g = 0; g < groups; ++g) {
        for (int w = 0; w < XM_PROBE_WINDOWS; ++w) {
            rate.spread = windows->messages[g][w] < 1 ? 1 : rate.spread;
        }
        rate.rate = fmin(rate.rate, xm_array_median(windows->rate[g], XM_PROBE_WINDOWS));
        rate.spread = fmax(rate.spread, xm_curve_spread(windows->rate[g], XM_PROBE_WINDOWS));
    }
    return rate;
}

/* The faster round, or the calmer one of two that are about as fast. */
static rate_t better(rate_t best, rate_t next)
{
    bool faster = next.rate > best.rate * (1 + XM_PROBE_TIGHT);
    bool slower = next.rate < best.rate * (1 - XM_PROBE_TIGHT);

    return faster || (!slower && next.spread < best.spread) ? next : best;
}

/* A rank that polls keeps a processor busy whatever comes, so its time says nothing of bytes. */
static bool polls(void)
{
    return strcmp(xm_config_string(XM_CONFIG_PROGRESS), "spin") == 0;
}

/* Runs streams until the rate of a round is known or the time is up. Rounds are not mixed, and
 * the fastest counts: what disturbs streams on a busy machine only ever slows them down.
 * *result is the rate with its spread, and what a byte costs. */
static xm_status_t settle_rate(xm_probe_t *probe, const xm_probe_flow_t *flows, int count,
                               double message, int streams_a_nic,
                               double result[XM_PROBE_RATE_NUMBERS])
{
    double share = nic_share * probe->params.budget / (2 * probe->hosts + 2);
    double usual = fmin(fmax(share / (XM_PROBE_WINDOWS + settling), shortest_window), usual_window);
    double window = fmin(fmax(WINDOW_MESSAGES * message * streams_a_nic, usual), longest_window);
    double started = probe->elapsed, elapsed;
    xm_probe_flows_t run = {.flows = flows,
                            .count = count,
                            .bytes = LARGE,
                            .settle = settling * window,
                            .window = window,
                            .elapsed = &elapsed};
    int groups = flows[count - 1].group + 1;
    rate_t best = {.rate = 0, .spread = 1};

    for (int round = 0; round < ROUNDS; ++round) {
        xm_probe_windows_t windows;

        elapsed = xm_clock_seconds() - probe->started;
        XM_TRY(xm_probe_flows_run(probe->worker, &run, &windows));
        probe->elapsed = elapsed;
        best = better(best, evaluate(&windows, groups));
        if (best.spread <= XM_PROBE_TIGHT || time_left(probe) < 0 ||
            probe->elapsed - started > share) {
            break;
        }
    }
    result[0] = best.rate;
    result[1] = best.spread;
    result[2] = polls() ? 0 : best.cpu;
    return XM_OK;
}

static int rank_on(const xm_probe_t *probe, int host, int index)
{
    return xm_probe_rank_on(probe->host_of, probe->ranks, host, index);
}

static int ranks_on(const xm_probe_t *probe, int host)
{
    return xm_probe_ranks_on(probe->host_of, probe->ranks, host);
}

/* Adds streams from all ranks of a host to ranks of several others, or the other way round:
 * together the others are faster than the host, so that its NICs are the limit. */
static int add_host(const xm_probe_t *probe, int host, bool out, int group, xm_probe_flow_t *flows)
{
    int partners = probe->hosts - 1 < PARTNERS ? probe->hosts - 1 : PARTNERS;
    int own = ranks_on(probe, host);
    int count = own > partners ? own : partners;

    count = count < XM_PROBE_MAX_FLOWS / 2 ? count : XM_PROBE_MAX_FLOWS / 2;
    for (int f = 0; f < count; ++f) {
        int partner = (host + 1 + f % partners) % probe->hosts;
        int near = rank_on(probe, host, f % own);
        int far = rank_on(probe, partner, f / partners % ranks_on(probe, partner));

        flows[f] = (xm_probe_flow_t){out ? near : far, out ? far : near, group};
    }
    return count;
}

/* Enters a phase and measures what it is about; a step that was done is left out. So is one between
 * hosts for which there is no time, unsaved, for a probe that goes on may still have it. A NIC
 * carries @p streams at a time. */
static xm_status_t measure_rate(xm_probe_t *probe, const char *step, const char *phase,
                                double start, double end, xm_link_class_t link,
                                const xm_probe_flow_t *flows, int count, int streams)
{
    double result[XM_PROBE_RATE_NUMBERS] = {0};
    xm_status_t status;

    if (xm_probe_is_done(probe, step)) {
        return XM_OK;
    }
    status = xm_probe_enter(probe, phase, start, end);
    if (status < 0 || (link == XM_LINK_INTER_HOST && time_left(probe) < 0)) {
        return status;
    }
    status = settle_rate(probe, flows, count, message_seconds(probe, xm_link_class_name(link)),
                         streams, result);
    return status < 0 ? status
                      : xm_probe_finish_step(probe, step, result,
                                             probe->rank == 0 ? XM_PROBE_RATE_NUMBERS : 0);
}

/* Hosts are measured one after the other, or they would limit each other; then both directions of
 * the first at once, for many NICs carry less each way then. What there is no time for is left out
 * and not saved: a probe that goes on may still have it. */
xm_status_t xm_probe_measure_nics(xm_probe_t *probe)
{
    xm_probe_flow_t flows[XM_PROBE_MAX_FLOWS];
    double part = 0.35 / (2 * probe->hosts);
    int count;

    for (int i = 0; probe->hosts > 1 && i < 2 * probe->hosts; ++i) {
        bool out = i % 2 == 0;
        char step[32];
        xm_status_t status;

        count = add_host(probe, i / 2, out, 0, flows);
        status =
            measure_rate(probe, xm_probe_nic_step(i / 2, out, step, sizeof(step)), "NIC capacity",
                         0.6 + part * i, 0.95, XM_LINK_INTER_HOST, flows, count, count);
        XM_TRY(status);
    }
    if (probe->hosts < 2) {
        return XM_OK;
    }
    count = add_host(probe, 0, true, 0, flows);
    count += add_host(probe, 0, false, 1, flows + count);
    return measure_rate(probe, "nic/both", "NIC capacity, both directions", 0.95, 1,
                        XM_LINK_INTER_HOST, flows, count, count / 2);
}

/* Measures the fabric of the first host with several ranks: each streams to its neighbour. */
xm_status_t xm_probe_measure_fabric(xm_probe_t *probe)
{
    xm_probe_flow_t flows[XM_PROBE_MAX_FLOWS];
    int host = 0, count;

    while (host < probe->hosts && ranks_on(probe, host) < 2) {
        ++host;
    }
    if (host == probe->hosts) {
        return XM_OK;
    }
    count = ranks_on(probe, host) < XM_PROBE_MAX_FLOWS ? ranks_on(probe, host) : XM_PROBE_MAX_FLOWS;
    for (int i = 0; i < count; ++i) {
        flows[i] =
            (xm_probe_flow_t){rank_on(probe, host, i), rank_on(probe, host, (i + 1) % count), 0};
    }
    return measure_rate(probe, "fabric", "all messages inside a host", 0.55, 0.6,
                        XM_LINK_INTRA_HOST, flows, count, 1);
}
