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
#include "resharding/network/deal.h"

struct xm_network {
    int ranks;
    int hosts;
    int racks;
    int *host_of_rank;
    int rails;
    int *rack_of_host;
    int *rail_of_rank;
    int *host_of_rail;
    int *first_rail;                    /* by host: its place in host_rails; one more than hosts */
    int *host_rails;                    /* by host, ascending within one */
    double *egress, *ingress;           /* by host */
    double *rail_egress, *rail_ingress; /* by rail */
    double nic_bandwidth, nic_latency;
    double host_bandwidth, host_latency;
    double uplink_bandwidth;
    double cores_per_host, nic_cpu, host_cpu;
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
            return XM_INVALID("%s %d is on %s %d; %d %ss have %ss 0 … %d", member, i, group,
                              group_of[i], count, member, group, count - 1);
        }
        highest = group_of[i] > highest ? group_of[i] : highest;
    }
    seen = calloc((size_t)highest + 1, 1);
    XM_NEED_MEMORY(seen, "%d %ss", highest + 1, group);
    for (int i = 0; i < count; ++i) {
        seen[group_of[i]] = 1;
    }
    for (int g = 0; g <= highest; ++g) {
        if (!seen[g]) {
            free(seen);
            return XM_INVALID("%s %d of %d has no %s", group, g, highest + 1, member);
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

/* A rail has ranks of one host only: its NICs are there. Notes the host of each rail. */
static xm_status_t check_rails(const xm_network_params_t *params, int rails, int *host_of_rail)
{
    for (int r = 0; r < rails; ++r) {
        host_of_rail[r] = -1;
        if ((params->rail_egress != NULL && !is_rate(params->rail_egress[r])) ||
            (params->rail_ingress != NULL && !is_rate(params->rail_ingress[r]))) {
            return XM_INVALID("rail %d has no bandwidth or an infinite one", r);
        }
    }
    for (int i = 0; i < params->ranks; ++i) {
        int *host = &host_of_rail[params->rail_of_rank[i]];

        if (*host >= 0 && *host != params->host_of_rank[i]) {
            return XM_INVALID("rail %d has ranks of hosts %d and %d", params->rail_of_rank[i],
                              *host, params->host_of_rank[i]);
        }
        *host = params->host_of_rank[i];
    }
    return XM_OK;
}

/* The general NIC rate may be missing where both directions are given by host or by rail. */
static xm_status_t check_rates(const xm_network_params_t *params, int hosts)
{
    bool general = (params->egress == NULL && params->rail_egress == NULL) ||
                   (params->ingress == NULL && params->rail_ingress == NULL);

    if (!is_rate(params->host_bandwidth) || !is_not_negative(params->nic_latency) ||
        !is_not_negative(params->host_latency) || !is_not_negative(params->uplink_bandwidth) ||
        (general && !is_rate(params->nic_bandwidth))) {
        return XM_INVALID(
            "bandwidths must be positive (NIC %g, host %g bytes/s) and latencies not negative (%g, "
            "%g s), nor may the uplinks' bandwidth be (%g), and all finite",
            params->nic_bandwidth, params->host_bandwidth, params->nic_latency,
            params->host_latency, params->uplink_bandwidth);
    }
    if (!is_not_negative(params->cores_per_host) || !is_not_negative(params->nic_cpu) ||
        !is_not_negative(params->host_cpu)) {
        return XM_INVALID("neither cores of a host (%g) nor their seconds for a byte (%g between "
                          "hosts, %g inside) can be negative or infinite",
                          params->cores_per_host, params->nic_cpu, params->host_cpu);
    }
    for (int h = 0; h < hosts; ++h) {
        if ((params->egress != NULL && !is_rate(params->egress[h])) ||
            (params->ingress != NULL && !is_rate(params->ingress[h]))) {
            return XM_INVALID("the NICs of host %d have no bandwidth or an infinite one", h);
        }
    }
    return XM_OK;
}

/* Room for so many ranks, hosts and rails; NULL without memory. */
static xm_network_t *allocate(int ranks, int hosts, int rails)
{
    xm_network_t *network = calloc(1, sizeof(*network));

    if (network == NULL) {
        return NULL;
    }
    network->ranks = ranks;
    network->hosts = hosts;
    network->rails = rails;
    network->host_of_rank = malloc((size_t)ranks * sizeof(int));
    network->rail_of_rank = malloc((size_t)ranks * sizeof(int));
    network->rack_of_host = malloc((size_t)hosts * sizeof(int));
    network->first_rail = malloc(((size_t)hosts + 1) * sizeof(int));
    network->host_of_rail = malloc((size_t)rails * sizeof(int));
    network->host_rails = malloc((size_t)rails * sizeof(int));
    network->egress = malloc((size_t)hosts * sizeof(double));
    network->ingress = malloc((size_t)hosts * sizeof(double));
    network->rail_egress = malloc((size_t)rails * sizeof(double));
    network->rail_ingress = malloc((size_t)rails * sizeof(double));
    if (network->host_of_rank == NULL || network->rail_of_rank == NULL ||
        network->rack_of_host == NULL || network->first_rail == NULL ||
        network->host_of_rail == NULL || network->host_rails == NULL || network->egress == NULL ||
        network->ingress == NULL || network->rail_egress == NULL || network->rail_ingress == NULL) {
        xm_network_destroy(network);
        return NULL;
    }
    return network;
}

/* Lists the rails of each host: counts them, turns the counts into places, fills these. */
static void list_rails(xm_network_t *network)
{
    int *first = network->first_rail;

    memset(first, 0, ((size_t)network->hosts + 1) * sizeof(*first));
    for (int r = 0; r < network->rails; ++r) {
        ++first[network->host_of_rail[r]];
    }
    for (int h = 1; h <= network->hosts; ++h) {
        first[h] += first[h - 1];
    }
    for (int r = network->rails - 1; r >= 0; --r) {
        network->host_rails[--first[network->host_of_rail[r]]] = r;
    }
}

/* One direction's rates of hosts and rails, from those of rails or of hosts. */
static void fill_direction(xm_network_t *network, double general, const double *by_host,
                           const double *by_rail, double *host_rate, double *rail_rate)
{
    for (int h = 0; h < network->hosts; ++h) {
        int count;
        const int *rails = xm_network_host_rails(network, h, &count);
        double sum = 0.0;

        host_rate[h] = by_host != NULL ? by_host[h] : general;
        for (int i = 0; i < count; ++i) {
            rail_rate[rails[i]] = by_rail != NULL ? by_rail[rails[i]] : host_rate[h] / count;
            sum += rail_rate[rails[i]];
        }
        /* A sum of equal shares may differ from the whole in its last digit. */
        host_rate[h] = by_rail != NULL ? sum : host_rate[h];
    }
}

/* Keeps every direction's own rate; `nic_bandwidth` becomes the slowest of all, which is
 * what estimates of chunks and strategies use. */
static void fill_rates(xm_network_t *network, const xm_network_params_t *params)
{
    fill_direction(network, params->nic_bandwidth, params->egress, params->rail_egress,
                   network->egress, network->rail_egress);
    fill_direction(network, params->nic_bandwidth, params->ingress, params->rail_ingress,
                   network->ingress, network->rail_ingress);
    network->uniform = true;
    network->nic_bandwidth = INFINITY;
    for (int h = 0; h < network->hosts; ++h) {
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
    network->cores_per_host = params->cores_per_host;
    network->nic_cpu = params->nic_cpu;
    network->host_cpu = params->host_cpu;
}

/* Checks the rates and the numbering of hosts, racks and rails, and counts these; makes the rails
 * where only the number of NICs is given. */
static xm_status_t count_groups(xm_network_params_t *params, int *hosts, int *racks, int *rails,
                                void **dealt)
{
    xm_status_t status;

    if (params->ranks < 1) {
        return XM_INVALID("a network has at least one rank, not %d", params->ranks);
    }
    status = check_groups("rank", "host", params->host_of_rank, params->ranks, hosts);
    *racks = 1;
    if (status == XM_OK && params->rack_of_host != NULL) {
        status = check_groups("host", "rack", params->rack_of_host, *hosts, racks);
    }
    XM_THEN(status, check_rates(params, *hosts));
    if (status == XM_OK && params->nics_per_host != 0) {
        status = xm_network_deal_nics(params, *hosts, dealt);
    }
    *rails = *hosts;
    if (status == XM_OK && params->rail_of_rank != NULL) {
        status = check_groups("rank", "rail", params->rail_of_rank, params->ranks, rails);
    }
    return status;
}

/* Copies everything it is given, so the parameters may go away. */
xm_status_t xm_network_create(const xm_network_params_t *given, xm_network_t **network)
{
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    xm_network_t *created = NULL;
    void *dealt = NULL;
    int hosts = 0, racks = 1, rails = 0;
    xm_status_t status;

    XM_TRY(XM_PARAMS_COPY(xm_network_params_t, &params, given));
    if (XM_IS_NULL(network) || xm_is_null(__func__, "params.host_of_rank", params.host_of_rank)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    status = count_groups(&params, &hosts, &racks, &rails, &dealt);
    if (status < 0) {
        goto free_dealt;
    }
    created = allocate(params.ranks, hosts, rails);
    if (created == NULL) {
        status = XM_NO_MEMORY("a network of %d ranks", params.ranks);
        goto free_dealt;
    }
    created->racks = racks;
    if (params.rail_of_rank == NULL) {
        params.rail_of_rank = params.host_of_rank;
    }
    status = check_rails(&params, rails, created->host_of_rail);
    if (status < 0) {
        xm_network_destroy(created);
        goto free_dealt;
    }
    memcpy(created->host_of_rank, params.host_of_rank, (size_t)params.ranks * sizeof(int));
    memcpy(created->rail_of_rank, params.rail_of_rank, (size_t)params.ranks * sizeof(int));
    list_rails(created);
    fill_rates(created, &params);
    *network = created;

free_dealt:
    free(dealt);
    return status;
}

/* A network has few numbers, so a clone is a copy and not a counted reference. Rates by rail say
 * everything, but their sums may differ from a host's own rate in the last digit. */
xm_status_t xm_network_clone(const xm_network_t *network, xm_network_t **clone)
{
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;

    params.ranks = network->ranks;
    params.host_of_rank = network->host_of_rank;
    params.nic_latency = network->nic_latency;
    params.host_bandwidth = network->host_bandwidth;
    params.host_latency = network->host_latency;
    params.rack_of_host = network->rack_of_host;
    params.uplink_bandwidth = network->uplink_bandwidth;
    params.rail_of_rank = network->rail_of_rank;
    params.rail_egress = network->rail_egress;
    params.rail_ingress = network->rail_ingress;
    params.cores_per_host = network->cores_per_host;
    params.nic_cpu = network->nic_cpu;
    params.host_cpu = network->host_cpu;
    XM_TRY(xm_network_create(&params, clone));
    memcpy((*clone)->egress, network->egress, (size_t)network->hosts * sizeof(double));
    memcpy((*clone)->ingress, network->ingress, (size_t)network->hosts * sizeof(double));
    (*clone)->nic_bandwidth = network->nic_bandwidth;
    (*clone)->uniform = network->uniform;
    return XM_OK;
}

xm_status_t xm_network_of_rails(const xm_network_t *network, xm_network_t **rails)
{
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    int *racks = malloc((size_t)network->rails * sizeof(*racks));
    xm_status_t status;

    XM_NEED_MEMORY(racks, "%d rails", network->rails);
    for (int r = 0; r < network->rails; ++r) {
        racks[r] = network->rack_of_host[network->host_of_rail[r]];
    }
    params.ranks = network->ranks;
    params.host_of_rank = network->rail_of_rank;
    params.nic_latency = network->nic_latency;
    params.host_bandwidth = network->host_bandwidth;
    params.host_latency = network->host_latency;
    params.egress = network->rail_egress;
    params.ingress = network->rail_ingress;
    params.rack_of_host = racks;
    params.uplink_bandwidth = network->uplink_bandwidth;
    status = xm_network_create(&params, rails);
    free(racks);
    return status;
}

/* All that is kept by rank is its host and its rail. */
xm_status_t xm_network_renumber(const xm_network_t *network, const int *number,
                                xm_network_t **renumbered)
{
    XM_TRY(xm_network_clone(network, renumbered));

    for (int r = 0; r < network->ranks; ++r) {
        (*renumbered)->host_of_rank[number[r]] = network->host_of_rank[r];
        (*renumbered)->rail_of_rank[number[r]] = network->rail_of_rank[r];
    }
    return XM_OK;
}

/* Builds the network of a measured profile. Rates by host are passed only where hosts
 * differ, so that a uniform cluster stays uniform to the bit. */
xm_status_t xm_network_from_profile(const xm_cluster_profile_t *profile, int ranks,
                                    const int *host_of_rank, xm_network_t **network)
{
    XM_NEED_ARGUMENTS(profile, host_of_rank, network);
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    int per_rack = xm_cluster_profile_hosts_per_rack(profile);
    /* By host; there are at most as many hosts as ranks. */
    size_t hosts = ranks > 0 ? (size_t)ranks : 1;
    double *rates = malloc(hosts * sizeof(*rates));
    int *racks = malloc(hosts * sizeof(*racks));
    xm_status_t status;

    if (rates == NULL || racks == NULL) {
        status = XM_NO_MEMORY("a network of %d ranks", ranks);
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
    params.nics_per_host = xm_cluster_profile_nics_per_host(profile);
    params.nic_latency = xm_cluster_profile_latency(profile, XM_LINK_INTER_HOST);
    params.host_bandwidth = xm_cluster_profile_bandwidth(profile, XM_LINK_INTRA_HOST);
    params.host_latency = xm_cluster_profile_latency(profile, XM_LINK_INTRA_HOST);
    xm_cluster_profile_processors(profile, &params.cores_per_host, &params.nic_cpu,
                                  &params.host_cpu);
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
        free(network->rail_ingress);
        free(network->rail_egress);
        free(network->ingress);
        free(network->egress);
        free(network->host_rails);
        free(network->host_of_rail);
        free(network->first_rail);
        free(network->rack_of_host);
        free(network->rail_of_rank);
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

int xm_network_rails(const xm_network_t *network)
{
    return network->rails;
}

int xm_network_rail_of(const xm_network_t *network, int rank)
{
    return network->rail_of_rank[rank];
}

const int *xm_network_host_rails(const xm_network_t *network, int host, int *count)
{
    *count = network->first_rail[host + 1] - network->first_rail[host];
    return network->host_rails + network->first_rail[host];
}

int xm_network_host_of_rail(const xm_network_t *network, int rail)
{
    return network->host_of_rail[rail];
}

double xm_network_rail_egress(const xm_network_t *network, int rail)
{
    return network->rail_egress[rail];
}

double xm_network_rail_ingress(const xm_network_t *network, int rail)
{
    return network->rail_ingress[rail];
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

double xm_network_cores_per_host(const xm_network_t *network)
{
    return network->cores_per_host;
}

double xm_network_cpu(const xm_network_t *network, int sender, int receiver)
{
    return network->host_of_rank[sender] == network->host_of_rank[receiver] ? network->host_cpu
                                                                            : network->nic_cpu;
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
