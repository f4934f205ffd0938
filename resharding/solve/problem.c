/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paper's exclusive-host model (MLSys'23, section 3.2): how long one demand takes,
 * and how long a list of them. A list of steps is the whole representation of a schedule
 * in this model: every step starts as early as the steps before it allow, so an order and
 * a choice of senders determine all times, and schedulers need not carry clocks of their
 * own.
 */
#include "resharding/solve/problem.h"

#include <stdlib.h>

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/*
 * The slowest direction involved decides, because the paper's pipelined chain moves the
 * whole demand at the pace of its slowest link and every link of it is taken for that
 * long.
 */
int64_t xm_problem_duration(const xm_problem_t *problem, int64_t demand, int sender)
{
    const xm_demand_t *d = &problem->demands[demand];
    int64_t ns = xm_network_egress_ns(problem->network, sender, (uint64_t)d->bytes);

    for (int i = 0; i < d->receiver_count; ++i) {
        ns =
            later(ns, xm_network_ingress_ns(problem->network, d->receivers[i], (uint64_t)d->bytes));
    }
    return ns;
}

/*
 * Walks the list once and keeps the time at which each NIC direction becomes free. A host
 * that sends and receives is two independent resources, as NICs are full duplex. The cost
 * is the number of receivers of all demands.
 */
xm_status_t xm_steps_makespan(const xm_problem_t *problem, const xm_step_t *steps,
                              int64_t *makespan_ns)
{
    int hosts = xm_network_hosts(problem->network);
    int64_t *egress = calloc(2 * (size_t)hosts, sizeof(*egress)), *ingress;
    int64_t makespan = 0;

    XM_NEED_MEMORY(egress, "the clocks of %d hosts", hosts);
    ingress = egress + hosts;
    for (int64_t i = 0; i < problem->count; ++i) {
        const xm_demand_t *d = &problem->demands[steps[i].demand];
        int64_t end = egress[steps[i].sender];

        /* A demand needs all its receivers at once, so the last one to become free holds
         * it up. */
        for (int r = 0; r < d->receiver_count; ++r) {
            end = later(end, ingress[d->receivers[r]]);
        }
        end += xm_problem_duration(problem, steps[i].demand, steps[i].sender);
        egress[steps[i].sender] = end;
        for (int r = 0; r < d->receiver_count; ++r) {
            ingress[d->receivers[r]] = end;
        }
        makespan = later(makespan, end);
    }
    free(egress);
    *makespan_ns = makespan;
    return XM_OK;
}
