/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two baselines that the paper compares with. They choose senders only and leave the
 * order as given, so both are linear, and `balance` is what `auto` asks first in large
 * problems.
 */
#include "resharding/solve/problem.h"

#include <stdlib.h>

/* Every demand is sent by its first holder, in the given order (MLSys'23 section 5.3.1, "Naive").
 */
xm_status_t xm_schedule_naive(const xm_problem_t *problem, xm_step_t *steps)
{
    for (int64_t d = 0; d < problem->count; ++d) {
        steps[d] = (xm_step_t){.demand = d, .sender = problem->demands[d].holders[0]};
    }
    return XM_OK;
}

/*
 * Each demand in turn goes to the holding host whose egress is the least busy so far; the order
 * stays (MLSys'23 section 5.3.1, "Load balance only").
 */
xm_status_t xm_schedule_balance(const xm_problem_t *problem, xm_step_t *steps)
{
    int hosts = xm_network_hosts(problem->network);
    int64_t *load = calloc((size_t)hosts, sizeof(*load));

    XM_NEED_MEMORY(load, "the loads of %d hosts", hosts);
    for (int64_t d = 0; d < problem->count; ++d) {
        const xm_demand_t *demand = &problem->demands[d];
        int best = demand->holders[0];

        for (int i = 1; i < demand->holder_count; ++i) {
            best = load[demand->holders[i]] < load[best] ? demand->holders[i] : best;
        }
        steps[d] = (xm_step_t){.demand = d, .sender = best};
        load[best] += xm_network_egress_ns(problem->network, best, (uint64_t)demand->bytes);
    }
    free(load);
    return XM_OK;
}
