/* SPDX-License-Identifier: Apache-2.0 */
/* The network as a worker knows it: the hosts of its ranks, and the rates of their NICs. */
#include <crossmesh/reshard.h>
#include <math.h>
#include <stdlib.h>

#include "comm/base.h"
#include "comm/worker.h"

/* What is assumed where nothing is known, in bytes per second and seconds. */
static const double nic_bandwidth = 1.25e9, nic_latency = 20e-6, host_bandwidth = 10e9,
                    host_latency = 1e-6;

/* The slowest rate that is known, for hosts of which none is. */
static double slowest_of(const double *rates, int hosts)
{
    double slowest = INFINITY;

    for (int h = 0; h < hosts; ++h) {
        slowest = rates[h] > 0 ? fmin(slowest, rates[h]) : slowest;
    }
    return isfinite(slowest) ? slowest : nic_bandwidth;
}

xm_status_t xm_network_from_worker(xm_worker_t *worker, xm_network_t **network)
{
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    const xm_worker_rails_t *rails;
    int size, hosts, *host_of;
    double *rates, *rail_rates, slowest;
    const double *known;
    xm_status_t status;

    XM_NEED_ARGUMENTS(worker, network);
    size = xm_worker_size(worker);
    hosts = xm_worker_host_count(worker);
    host_of = calloc((size_t)size, sizeof(*host_of));
    rates = calloc((size_t)hosts, sizeof(*rates));
    rail_rates = calloc((size_t)size, sizeof(*rail_rates));
    status = xm_worker_nic_rates(worker, &known);
    if (status == XM_OK && (host_of == NULL || rates == NULL || rail_rates == NULL)) {
        status = XM_NO_MEMORY("a network of %d ranks", size);
    }
    if (status < 0) {
        goto free_lists;
    }
    rails = xm_worker_rails(worker);
    for (int h = 0; h < hosts; ++h) {
        rates[h] = rails->host_rate[h] > 0 ? rails->host_rate[h] : known[h];
    }
    slowest = slowest_of(rates, hosts);
    for (int r = 0; r < size; ++r) {
        int h = host_of[r] = xm_worker_host_of(worker, r);

        rail_rates[rails->of[r]] = (rates[h] > 0 ? rates[h] : slowest) * rails->share[rails->of[r]];
    }
    params.ranks = size;
    params.host_of_rank = host_of;
    params.rail_of_rank = rails->of;
    params.rail_egress = params.rail_ingress = rail_rates;
    params.nic_latency = nic_latency;
    params.host_bandwidth = host_bandwidth;
    params.host_latency = host_latency;
    status = xm_network_create(&params, network);

free_lists:
    free(rail_rates);
    free(rates);
    free(host_of);
    return status;
}
