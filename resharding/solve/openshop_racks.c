/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Demands by rack. Amounts know nothing of uplinks, so a relay in one rack may send a part back to
 * the other, whose uplink then carries it again. Where uplinks are what is scarce, a rack rather
 * gets every byte once, and its receivers send it to each other.
 */
#include <stdlib.h>

#include "resharding/solve/openshop.h"

void xm_shop_enter_once(xm_shop_t *shop)
{
    for (int64_t g = 0; g < shop->groups; ++g) {
        const xm_demand_t *hosts = shop->group[g].hosts;

        shop->group[g].relayed = xm_network_rack_of(shop->network, hosts->holders[0]) !=
                                 xm_network_rack_of(shop->network, hosts->receivers[0]);
    }
}

/* Appends those of a list of hosts that are in a rack. */
static int *pick_rack(const xm_network_t *network, int rack, const int *hosts, int count, int *to)
{
    for (int i = 0; i < count; ++i) {
        if (xm_network_rack_of(network, hosts[i]) == rack) {
            *to++ = hosts[i];
        }
    }
    return to;
}

/* The part of a demand that is for one rack; without bytes where nobody there needs it. */
static xm_demand_t part_for(const xm_problem_t *problem, const xm_demand_t *whole, int rack,
                            int **hosts)
{
    xm_demand_t part = *whole;
    int *end;

    part.receivers = *hosts;
    end = pick_rack(problem->network, rack, whole->receivers, whole->receiver_count, *hosts);
    part.receiver_count = (int)(end - *hosts);
    if (part.receiver_count == 0) {
        return (xm_demand_t){0};
    }
    *hosts = end;
    end = pick_rack(problem->network, rack, whole->holders, whole->holder_count, *hosts);
    if (end > *hosts) {
        part.holders = *hosts;
        part.holder_count = (int)(end - *hosts);
        *hosts = end;
    }
    return part;
}

/* The lists of all racks are together as long as the demand's own. */
xm_status_t xm_rack_problem_create(const xm_problem_t *problem, xm_rack_problem_t *racks)
{
    size_t lists = 1, most = 1;
    int *hosts;

    for (int64_t d = 0; d < problem->count; ++d) {
        lists += (size_t)problem->demands[d].holder_count;
        most += (size_t)problem->demands[d].receiver_count;
    }
    *racks = (xm_rack_problem_t){.problem = {problem->network, NULL, 0},
                                 .origin = malloc(most * sizeof(*racks->origin)),
                                 .demands = malloc(most * sizeof(*racks->demands)),
                                 .hosts = malloc((lists + most) * sizeof(*racks->hosts))};
    if (racks->origin == NULL || racks->demands == NULL || racks->hosts == NULL) {
        xm_rack_problem_free(racks);
        return XM_NO_MEMORY("%lld demands", (long long)problem->count);
    }
    racks->problem.demands = racks->demands;
    hosts = racks->hosts;
    for (int64_t d = 0; d < problem->count; ++d) {
        for (int rack = 0; rack < xm_network_racks(problem->network); ++rack) {
            const xm_demand_t part = part_for(problem, &problem->demands[d], rack, &hosts);

            if (part.bytes > 0) {
                racks->origin[racks->problem.count] = d;
                racks->demands[racks->problem.count++] = part;
            }
        }
    }
    return XM_OK;
}

void xm_rack_problem_free(xm_rack_problem_t *racks)
{
    free(racks->hosts);
    free(racks->demands);
    free(racks->origin);
    *racks = (xm_rack_problem_t){0};
}
