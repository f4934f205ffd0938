/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network model that planning and simulation share: hosts with egress and ingress
 * rates, device ports, racks with uplinks, latencies. It is a table of rates and nothing
 * more; what a message occupies is written in crossmesh/network.h. All durations are
 * rounded up to whole nanoseconds here, in one place, so that the bounds, the schedulers
 * and the simulations agree to the nanosecond.
 */
#include "resharding/network.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

struct xm_network {
    int ranks;
    int hosts;
    int racks;
    int *host_of_rank;
    int *rack_of_host;
    double *egress, *ingress; /* by host */
    double nic_bandwidth, nic_latency;
    double host_bandwidth, host_latency;
    double uplink_bandwidth;
    bool uniform;
};

/* Groups must be numbered 0 … count − 1 without gaps, so that arrays by group have no
 * holes; *groups is how many there are. */
static xm_status_t check_groups(const char *member, const char *group, const int *group_of,
                                int count, int *groups)
{
    int highest = -1;
    char *seen;

    for (int i = 0; i < count; ++i) {
        if (group_of[i] < 0 || group_of[i] >= count) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "%s %d is on %s %d; %d %ss have %ss 0 … %d", member, i, group,
                                group_of[i], count, member, group, count - 1);
        }
        highest = group_of[i] > highest ? group_of[i] : highest;
    }
    seen = calloc((size_t)highest + 1, 1);
    if (seen == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d %ss", highest + 1, group);
    }
    for (int i = 0; i < count; ++i) {
        seen[group_of[i]] = 1;
    }
    for (int g = 0; g <= highest; ++g) {
        if (!seen[g]) {
            free(seen);
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "%s %d of %d has no %s", group, g,
                                highest + 1, member);
        }
    }
    free(seen);
    *groups = highest + 1;
    return XM_OK;
}

/* A rate is positive and finite: shares of an infinite one would not be numbers. */
static bool is_rate(double rate)
{
    return isfinite(rate) && rate > 0;
}

static bool is_not_negative(double value)
{
    return isfinite(value) && value >= 0;
}

/* The general NIC rate may be missing where both directions are given by host. */
static xm_status_t check_rates(const xm_network_params_t *params, int hosts)
{
    if (!is_rate(params->host_bandwidth) || !is_not_negative(params->nic_latency) ||
        !is_not_negative(params->host_latency) || !is_not_negative(params->uplink_bandwidth) ||
        (!is_rate(params->nic_bandwidth) && (params->egress == NULL || params->ingress == NULL))) {
        return xm_error_set(
            XM_ERR_INVALID_ARGUMENT,
            "bandwidths must be positive (NIC %g, host %g bytes/s) and latencies not "
            "negative (%g, %g s), nor may the uplinks' bandwidth be (%g), and all finite",
            params->nic_bandwidth, params->host_bandwidth, params->nic_latency,
            params->host_latency, params->uplink_bandwidth);
    }
    for (int h = 0; h < hosts; ++h) {
        if ((params->egress != NULL && !is_rate(params->egress[h])) ||
            (params->ingress != NULL && !is_rate(params->ingress[h]))) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "the NICs of host %d have no bandwidth or an infinite one", h);
        }
    }
    return XM_OK;
}

/* Keeps every direction's own rate; `nic_bandwidth` becomes the slowest of all, which is
 * what estimates of chunks and strategies use. */
static void fill_rates(xm_network_t *network, const xm_network_params_t *params)
{
    network->uniform = true;
    network->nic_bandwidth = INFINITY;
    for (int h = 0; h < network->hosts; ++h) {
        network->egress[h] = params->egress != NULL ? params->egress[h] : params->nic_bandwidth;
        network->ingress[h] = params->ingress != NULL ? params->ingress[h] : params->nic_bandwidth;
        network->nic_bandwidth =
            fmin(network->nic_bandwidth, fmin(network->egress[h], network->ingress[h]));
        network->rack_of_host[h] = params->rack_of_host != NULL ? params->rack_of_host[h] : 0;
    }
    /* Uniform means that no direction is faster than the slowest; openshop then has
     * stronger methods. */
    for (int h = 0; h < network->hosts; ++h) {
        network->uniform = network->uniform && network->egress[h] <= network->nic_bandwidth &&
                           network->ingress[h] <= network->nic_bandwidth;
    }
    network->nic_latency = params->nic_latency;
    network->host_bandwidth = params->host_bandwidth;
    network->host_latency = params->host_latency;
    network->uplink_bandwidth = params->uplink_bandwidth;
}

/* Copies everything it is given, so the parameters may go away. */
xm_status_t xm_network_create(const xm_network_params_t *given, xm_network_t **network)
{
    xm_network_params_t own = XM_NETWORK_PARAMS_INIT;
    const xm_network_params_t *params = &own;
    xm_network_t *created;
    int hosts = 0, racks = 1;
    xm_status_t status = XM_PARAMS_COPY(xm_network_params_t, &own, given);

    if (status < 0) {
        return status;
    }
    if (XM_IS_NULL(network) || xm_is_null(__func__, "params.host_of_rank", params->host_of_rank)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    if (params->ranks < 1) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "a network has at least one rank, not %d",
                            params->ranks);
    }
    status = check_groups("rank", "host", params->host_of_rank, params->ranks, &hosts);
    if (status == XM_OK && params->rack_of_host != NULL) {
        status = check_groups("host", "rack", params->rack_of_host, hosts, &racks);
    }
    if (status == XM_OK) {
        status = check_rates(params, hosts);
    }
    if (status < 0) {
        return status;
    }
    created = calloc(1, sizeof(*created));
    if (created == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a network");
    }
    created->ranks = params->ranks;
    created->hosts = hosts;
    created->racks = racks;
    created->host_of_rank = malloc((size_t)params->ranks * sizeof(int));
    created->rack_of_host = malloc((size_t)hosts * sizeof(int));
    created->egress = malloc((size_t)hosts * sizeof(double));
    created->ingress = malloc((size_t)hosts * sizeof(double));
    if (created->host_of_rank == NULL || created->rack_of_host == NULL || created->egress == NULL ||
        created->ingress == NULL) {
        xm_network_destroy(created);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d ranks", params->ranks);
    }
    memcpy(created->host_of_rank, params->host_of_rank, (size_t)params->ranks * sizeof(int));
    fill_rates(created, params);
    *network = created;
    return XM_OK;
}

/* A network has few numbers, so a clone is a copy and not a counted reference. */
xm_status_t xm_network_clone(const xm_network_t *network, xm_network_t **clone)
{
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;

    params.ranks = network->ranks;
    params.host_of_rank = network->host_of_rank;
    params.nic_bandwidth = network->nic_bandwidth;
    params.nic_latency = network->nic_latency;
    params.host_bandwidth = network->host_bandwidth;
    params.host_latency = network->host_latency;
    params.egress = network->egress;
    params.ingress = network->ingress;
    params.rack_of_host = network->rack_of_host;
    params.uplink_bandwidth = network->uplink_bandwidth;
    return xm_network_create(&params, clone);
}

/* All that is kept by rank is where the rank is. */
xm_status_t xm_network_renumber(const xm_network_t *network, const int *number,
                                xm_network_t **renumbered)
{
    xm_status_t status = xm_network_clone(network, renumbered);

    for (int r = 0; status == XM_OK && r < network->ranks; ++r) {
        (*renumbered)->host_of_rank[number[r]] = network->host_of_rank[r];
    }
    return status;
}

/* Builds the network of a measured profile. Rates by host are passed only where hosts
 * differ, so that a uniform cluster stays uniform to the bit. */
xm_status_t xm_network_from_profile(const xm_cluster_profile_t *profile, int ranks,
                                    const int *host_of_rank, xm_network_t **network)
{
    if (XM_IS_NULL(profile) || XM_IS_NULL(host_of_rank) || XM_IS_NULL(network)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    int per_rack = xm_cluster_profile_hosts_per_rack(profile);
    /* By host; there are at most as many hosts as ranks. */
    size_t hosts = ranks > 0 ? (size_t)ranks : 1;
    double *rates = malloc(hosts * sizeof(*rates));
    int *racks = malloc(hosts * sizeof(*racks));
    xm_status_t status;

    if (rates == NULL || racks == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "no memory for a network of %d ranks", ranks);
        goto free_arrays;
    }
    for (int h = 0; h < ranks; ++h) {
        rates[h] = xm_cluster_profile_host_nic_bandwidth(profile, h);
        racks[h] = per_rack > 0 ? h / per_rack : 0;
    }
    /* The profile's hosts are numbered like the job's. */
    params.ranks = ranks;
    params.host_of_rank = host_of_rank;
    params.nic_bandwidth = xm_cluster_profile_nic_bandwidth(profile);
    params.nic_latency = xm_cluster_profile_latency(profile, XM_LINK_INTER_HOST);
    params.host_bandwidth = xm_cluster_profile_bandwidth(profile, XM_LINK_INTRA_HOST);
    params.host_latency = xm_cluster_profile_latency(profile, XM_LINK_INTRA_HOST);
    if (xm_cluster_profile_hosts_differ(profile)) {
        params.egress = params.ingress = rates;
    }
    if (per_rack > 0) {
        params.rack_of_host = racks;
        params.uplink_bandwidth = xm_cluster_profile_uplink_bandwidth(profile);
    }
    status = xm_network_create(&params, network);

free_arrays:
    free(racks);
    free(rates);
    return status;
}

void xm_network_destroy(xm_network_t *network)
{
    if (network != NULL) {
        free(network->ingress);
        free(network->egress);
        free(network->rack_of_host);
        free(network->host_of_rank);
        free(network);
    }
}

int xm_network_ranks(const xm_network_t *network)
{
    if (XM_IS_NULL(network)) {
        return 0;
    }
    return network->ranks;
}

int xm_network_hosts(const xm_network_t *network)
{
    if (XM_IS_NULL(network)) {
        return 0;
    }
    return network->hosts;
}

int xm_network_host_of(const xm_network_t *network, int rank)
{
    if (XM_IS_NULL(network) || rank < 0 || rank >= network->ranks) {
        return -1;
    }
    return network->host_of_rank[rank];
}

double xm_network_nic_bandwidth(const xm_network_t *network)
{
    return network->nic_bandwidth;
}

double xm_network_host_bandwidth(const xm_network_t *network)
{
    return network->host_bandwidth;
}

double xm_network_nic_latency(const xm_network_t *network)
{
    return network->nic_latency;
}

double xm_network_host_latency(const xm_network_t *network)
{
    return network->host_latency;
}

double xm_network_egress(const xm_network_t *network, int host)
{
    return network->egress[host];
}

double xm_network_ingress(const xm_network_t *network, int host)
{
    return network->ingress[host];
}

/* Computed once at creation, since openshop asks for it on every problem. */
bool xm_network_uniform(const xm_network_t *network)
{
    return network->uniform;
}

int xm_network_racks(const xm_network_t *network)
{
    return network->racks;
}

int xm_network_rack_of(const xm_network_t *network, int host)
{
    return network->rack_of_host[host];
}

double xm_network_uplink_bandwidth(const xm_network_t *network)
{
    return network->uplink_bandwidth;
}

/* Rounded up: a message is never faster than its rate allows. */
static int64_t nanoseconds(uint64_t bytes, double rate)
{
    return (int64_t)ceil((double)bytes * 1e9 / rate);
}

int64_t xm_network_egress_ns(const xm_network_t *network, int host, uint64_t bytes)
{
    return nanoseconds(bytes, network->egress[host]);
}

int64_t xm_network_ingress_ns(const xm_network_t *network, int host, uint64_t bytes)
{
    return nanoseconds(bytes, network->ingress[host]);
}
