#include "resharding/network.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct xm_network {
    int ranks;
    int hosts;
    int *host_of_rank;
    double nic_bandwidth, nic_latency;
    double host_bandwidth, host_latency;
};

static xm_status_t check_hosts(const xm_network_params_t *params, int *hosts)
{
    int highest = -1;
    char *seen;

    for (int r = 0; r < params->ranks; ++r) {
        int host = params->host_of_rank[r];

        if (host < 0 || host >= params->ranks) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "rank %d is on host %d; %d ranks have hosts 0 … %d", r, host,
                                params->ranks, params->ranks - 1);
        }
        highest = host > highest ? host : highest;
    }
    seen = calloc((size_t)highest + 1, 1);
    if (seen == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d hosts", highest + 1);
    }
    for (int r = 0; r < params->ranks; ++r) {
        seen[params->host_of_rank[r]] = 1;
    }
    for (int h = 0; h <= highest; ++h) {
        if (!seen[h]) {
            free(seen);
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "host %d of %d has no rank", h,
                                highest + 1);
        }
    }
    free(seen);
    *hosts = highest + 1;
    return XM_OK;
}

xm_status_t xm_network_create(const xm_network_params_t *params, xm_network_t **network)
{
    xm_network_t *created;
    xm_status_t status;
    int hosts = 0;

    if (params->ranks < 1) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "a network has at least one rank, not %d",
                            params->ranks);
    }
    if (!(params->nic_bandwidth > 0) || !(params->host_bandwidth > 0) ||
        !(params->nic_latency >= 0) || !(params->host_latency >= 0)) {
        return xm_error_set(
            XM_ERR_INVALID_ARGUMENT,
            "bandwidths must be positive (NIC %g, host %g bytes/s) and latencies not "
            "negative (%g, %g s)",
            params->nic_bandwidth, params->host_bandwidth, params->nic_latency,
            params->host_latency);
    }
    status = check_hosts(params, &hosts);
    if (status < 0) {
        return status;
    }
    created = calloc(1, sizeof(*created));
    if (created == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a network");
    }
    created->host_of_rank = malloc((size_t)params->ranks * sizeof(int));
    if (created->host_of_rank == NULL) {
        free(created);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d ranks", params->ranks);
    }
    memcpy(created->host_of_rank, params->host_of_rank, (size_t)params->ranks * sizeof(int));
    created->ranks = params->ranks;
    created->hosts = hosts;
    created->nic_bandwidth = params->nic_bandwidth;
    created->nic_latency = params->nic_latency;
    created->host_bandwidth = params->host_bandwidth;
    created->host_latency = params->host_latency;
    *network = created;
    return XM_OK;
}

xm_status_t xm_network_from_profile(const xm_cluster_profile_t *profile, int ranks,
                                    const int *host_of_rank, xm_network_t **network)
{
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;

    params.ranks = ranks;
    params.host_of_rank = host_of_rank;
    params.nic_bandwidth = xm_cluster_profile_nic_bandwidth(profile);
    params.nic_latency = xm_cluster_profile_latency(profile, XM_LINK_INTER_HOST);
    params.host_bandwidth = xm_cluster_profile_bandwidth(profile, XM_LINK_INTRA_HOST);
    params.host_latency = xm_cluster_profile_latency(profile, XM_LINK_INTRA_HOST);
    return xm_network_create(&params, network);
}

void xm_network_destroy(xm_network_t *network)
{
    if (network != NULL) {
        free(network->host_of_rank);
        free(network);
    }
}

int xm_network_ranks(const xm_network_t *network)
{
    return network->ranks;
}

int xm_network_hosts(const xm_network_t *network)
{
    return network->hosts;
}

int xm_network_host_of(const xm_network_t *network, int rank)
{
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

int64_t xm_network_nic_ns(const xm_network_t *network, uint64_t bytes)
{
    return (int64_t)ceil((double)bytes * 1e9 / network->nic_bandwidth);
}
