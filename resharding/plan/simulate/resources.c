/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The resources of both simulations, numbered: rail directions, uplink directions
 * by rack, port directions by rank. A message inside a host occupies two ports and no
 * NIC, one between hosts two NIC directions, and two uplinks where it changes racks. One
 * numbering for all kinds keeps the simulations free of cases.
 */
#include <math.h>
#include <stdlib.h>

#include "resharding/plan/simulate/private.h"

xm_status_t xm_resources_init(xm_resources_t *resources, const xm_network_t *network)
{
    double *rate;

    *resources = (xm_resources_t){.network = network,
                                  .rails = xm_network_rails(network),
                                  .racks = xm_network_racks(network),
                                  .ranks = xm_network_ranks(network)};
    resources->nic_latency_ns = llround(xm_network_nic_latency(network) * 1e9);
    resources->host_latency_ns = llround(xm_network_host_latency(network) * 1e9);
    resources->count = 2 * (resources->rails + resources->racks + resources->ranks);
    resources->rate = rate = malloc((size_t)resources->count * sizeof(*rate));
    resources->moved = calloc((size_t)resources->count, sizeof(*resources->moved));
    if (rate == NULL || resources->moved == NULL) {
        xm_resources_clear(resources);
        return XM_NO_MEMORY("simulating %d ranks", resources->ranks);
    }
    /* The order here is what xm_resources_use() computes with: egress before ingress, for
     * each kind. */
    for (int r = 0; r < resources->rails; ++r) {
        *rate++ = xm_network_rail_egress(network, r);
        *rate++ = xm_network_rail_ingress(network, r);
    }
    for (int u = 0; u < 2 * resources->racks; ++u) {
        *rate++ = xm_network_uplink_bandwidth(network);
    }
    for (int p = 0; p < 2 * resources->ranks; ++p) {
        *rate++ = xm_network_host_bandwidth(network);
    }
    return XM_OK;
}

void xm_resources_clear(xm_resources_t *resources)
{
    free(resources->moved);
    free(resources->rate);
    resources->moved = NULL;
    resources->rate = NULL;
}

/* Even numbers send and odd ones receive. */
void xm_resources_use(const xm_resources_t *resources, int sender, int receiver, xm_use_t *use)
{
    const xm_network_t *network = resources->network;
    int from = xm_network_host_of(network, sender), to = xm_network_host_of(network, receiver);

    if (from == to) {
        int ports = 2 * (resources->rails + resources->racks);

        *use = (xm_use_t){
            2, {ports + 2 * sender, ports + 2 * receiver + 1}, resources->host_latency_ns};
        return;
    }
    *use = (xm_use_t){
        2,
        {2 * xm_network_rail_of(network, sender), 2 * xm_network_rail_of(network, receiver) + 1},
        resources->nic_latency_ns};
    if (xm_network_uplink_bandwidth(network) > 0 &&
        xm_network_rack_of(network, from) != xm_network_rack_of(network, to)) {
        use->resource[use->count++] = 2 * (resources->rails + xm_network_rack_of(network, from));
        use->resource[use->count++] = 2 * (resources->rails + xm_network_rack_of(network, to)) + 1;
    }
}

/* Most messages in a row have the same size and use resources of the same rate, so each kind of
 * resource remembers its last answer. */
int64_t xm_resource_ns(xm_resources_t *resources, int resource, uint64_t bytes)
{
    int ports = 2 * (resources->rails + resources->racks);
    xm_time_memo_t *memo = &resources->memo[resource < 2 * resources->rails ? 0
                                            : resource < ports              ? 1
                                                                            : 2];
    double rate = resources->rate[resource];

    if (memo->bytes != bytes || memo->rate < rate || memo->rate > rate) {
        *memo = (xm_time_memo_t){rate, bytes, (int64_t)ceil((double)bytes * 1e9 / rate)};
    }
    return memo->ns;
}
