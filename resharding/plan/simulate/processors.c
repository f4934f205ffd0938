/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What processors make of a simulated plan. They serve whatever is there, in an order that no plan
 * fixes, so only the sum of what a rank or a host has to do is a limit. Where it is the limit of
 * the whole, everything is taken to slow down alike.
 */
#include <math.h>
#include <stdlib.h>

#include "resharding/plan/plan_private.h"
#include "resharding/plan/simulate/private.h"

/* Adds the seconds that the two ends of every hop need to those of their ranks. */
static void add_work(const xm_plan_t *plan, const xm_network_t *network, double *busy)
{
    for (int64_t i = 0; i < xm_plan_transfer_count(plan); ++i) {
        const xm_transfer_t transfer = xm_plan_transfer(plan, i);
        const xm_route_t *route = xm_plan_route(plan, transfer.route);
        double bytes = (double)(transfer.end - transfer.first) *
                       (double)xm_task_element_size(plan, transfer.task);

        for (int h = 0; h < route->count; ++h) {
            int sender = xm_hop_sender(&transfer, route, h);
            double seconds = bytes * xm_network_cpu(network, sender, route->ranks[h]);

            busy[sender] += seconds;
            busy[route->ranks[h]] += seconds;
        }
    }
}

/* The seconds that the busiest rank needs, which has one processor, or the busiest host. */
static double longest(const xm_network_t *network, const double *busy, double *host_busy)
{
    double cores = xm_network_cores_per_host(network), most = 0;

    for (int r = 0; r < xm_network_ranks(network); ++r) {
        double *host = &host_busy[xm_network_host_of(network, r)];

        *host += busy[r];
        most = fmax(most, fmax(busy[r], *host / cores));
    }
    return most;
}

xm_status_t xm_processors_slow(const xm_plan_t *plan, const xm_network_t *network, xm_span_t *spans,
                               int64_t *makespan_ns)
{
    size_t ranks = (size_t)xm_network_ranks(network), hosts = (size_t)xm_network_hosts(network);
    double *busy, factor;
    int64_t least;

    if (xm_network_cores_per_host(network) <= 0) {
        return XM_OK;
    }
    busy = calloc(ranks + hosts, sizeof(*busy));
    XM_NEED_MEMORY(busy, "simulating %zu ranks", ranks);
    add_work(plan, network, busy);
    least = (int64_t)ceil(1e9 * longest(network, busy, busy + ranks));
    free(busy);
    if (least <= *makespan_ns) {
        return XM_OK;
    }
    factor = *makespan_ns > 0 ? (double)least / (double)*makespan_ns : 1;
    for (int64_t h = 0; spans != NULL && h < xm_plan_hops(plan); ++h) {
        spans[h].start_ns = llround((double)spans[h].start_ns * factor);
        spans[h].end_ns = llround((double)spans[h].end_ns * factor);
    }
    *makespan_ns = least;
    return XM_OK;
}
