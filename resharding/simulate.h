/**
 * @file simulate.h
 * Makespan of a plan in the paper's exclusive-host model, and when each transfer runs in it.
 *
 * The model: tasks run in plan order; a host sends one box at a time and receives one at a time
 * (its NIC is exclusive in each direction, full duplex); a box crosses a NIC in bytes / bandwidth,
 * and all hops of a pipelined chain run together, so a task occupies its sender's egress and every
 * receiving host's ingress (and the relays' egress) for that time. Transfers inside a host take no
 * NIC time; they are shown as long as their chain runs. Latency is not counted, so that makespan
 * and bound are of the same kind. Source: MLSys'23 section 3.2 (the constraint that tasks sharing a
 * host do not overlap).
 */
#ifndef XM_RESHARDING_SIMULATE_H
#define XM_RESHARDING_SIMULATE_H

#include "resharding/plan.h"

/** Planned or measured time of one transfer, ns from the start of the reshard. */
typedef struct xm_span {
    int64_t start_ns;
    int64_t end_ns;
} xm_span_t;

/**
 * Simulates @p plan on @p network. @p spans (may be NULL) has room for every transfer. @p
 * makespan_ns is when the last one ends.
 */
XM_API xm_status_t xm_simulate(const xm_plan_t *plan, const xm_network_t *network, xm_span_t *spans,
                               int64_t *makespan_ns);

#endif
