/* SPDX-License-Identifier: Apache-2.0 */
/* The network of a plan as a simulated fabric: the executors' messages then take the time that the
 * simulation of the plan says. */
#include <stdlib.h>

#include "resharding/order.h"

/* What a fabric's parameters refer to. */
typedef struct {
    int *host_of_rank, *rail_of_rank; /* by rank */
    int *rack_of_host;
    double *egress, *ingress; /* by rail */
} lists_t;

static void fill(const xm_network_t *network, const lists_t *lists)
{
    for (int r = 0; r < xm_network_ranks(network); ++r) {
        lists->host_of_rank[r] = xm_network_host_of(network, r);
        lists->rail_of_rank[r] = xm_network_rail_of(network, r);
    }
    for (int h = 0; h < xm_network_hosts(network); ++h) {
        lists->rack_of_host[h] = xm_network_rack_of(network, h);
    }
    for (int r = 0; r < xm_network_rails(network); ++r) {
        lists->egress[r] = xm_network_rail_egress(network, r);
        lists->ingress[r] = xm_network_rail_ingress(network, r);
    }
}

xm_status_t xm_network_fabric(const xm_network_t *network, bool no_copy, xm_sim_fabric_t **fabric)
{
    size_t ranks = (size_t)xm_network_ranks(network);
    xm_sim_fabric_params_t params = {0};
    xm_arena_t arena = {0};
    /* There are no more hosts or rails than ranks. */
    lists_t lists = {.host_of_rank = xm_arena_take(&arena, ranks * sizeof(int)),
                     .rail_of_rank = xm_arena_take(&arena, ranks * sizeof(int)),
                     .rack_of_host = xm_arena_take(&arena, ranks * sizeof(int)),
                     .egress = xm_arena_take(&arena, ranks * sizeof(double)),
                     .ingress = xm_arena_take(&arena, ranks * sizeof(double))};
    xm_status_t status;

    if (arena.failed) {
        status = XM_NO_MEMORY("%zu simulated ranks", ranks);
        goto free_lists;
    }
    fill(network, &lists);
    params.ranks = (int)ranks;
    params.host_of_rank = lists.host_of_rank;
    params.rail_of_rank = lists.rail_of_rank;
    params.egress = lists.egress;
    params.ingress = lists.ingress;
    params.rack_of_host = lists.rack_of_host;
    params.uplink_bandwidth = xm_network_uplink_bandwidth(network);
    params.nic_latency = xm_network_nic_latency(network);
    params.host_bandwidth = xm_network_host_bandwidth(network);
    params.host_latency = xm_network_host_latency(network);
    params.no_copy = no_copy;
    status = xm_sim_fabric_create(&params, fabric);

free_lists:
    xm_arena_clear(&arena);
    return status;
}
