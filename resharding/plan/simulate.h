/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file simulate.h
 * Runs a plan on a model of the network: makespan, and when each hop runs.
 *
 * Two disciplines over the same network (network.h says what a message occupies, and for how long):
 *
 *  - *exclusive*: every rail direction, uplink direction and device port serves its messages (one
 * per chunk and hop) one at a time and strictly in the order of the plan; a relay has a chunk when
 * it has arrived. This is the model of the paper (MLSys'23 section 3.2: tasks that share a host do
 * not overlap; a blocked first one blocks the rest), by the chunk. The executor on a simulated
 * fabric that is given the plan's order takes the same time to the nanosecond.
 *  - *fair*: every (sender, receiver) pair works through its messages in plan order, all pairs at
 * once, and messages in flight share what they use max-min fairly, as flows of a transport with
 * congestion control do.
 *
 * Both leave processors to the end: a plan that they would hold up takes as long as they need.
 *
 * Exclusive costs one step per message at most (chunks that only repeat the one before are
 * skipped), fair one per message, resource and pair of ranks that has one on the way.
 */
#pragma once

#include "resharding/plan/plan.h"

/** Planned or measured time, ns from the start of the reshard. */
typedef struct xm_span {
    int64_t start_ns; /**< the first chunk starts */
    int64_t end_ns;   /**< the last chunk has arrived */
} xm_span_t;

/** Number of hops of the whole plan, and the number of a transfer's first; hop i of it is that plus
 * i. */
int64_t xm_plan_hops(const xm_plan_t *plan);
int64_t xm_plan_first_hop(const xm_plan_t *plan, int64_t transfer);

/**
 * Simulates @p plan on @p network. @p spans (may be NULL) has room for every hop; copies inside a
 * rank take no time but a processor's. @p makespan_ns is when the last chunk has arrived.
 */
xm_status_t xm_simulate(const xm_plan_t *plan, const xm_network_t *network, xm_sharing_t sharing,
                        xm_span_t *spans, int64_t *makespan_ns);

/** The exclusive makespan of @p plan where it is below @p limit_ns; otherwise a time that is not.
 */
xm_status_t xm_simulate_until(const xm_plan_t *plan, const xm_network_t *network, int64_t limit_ns,
                              int64_t *makespan_ns);
