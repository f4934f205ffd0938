/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file problem.h
 * A resharding as the network's hosts see it: what schedulers and bounds work on. Not installed.
 *
 * A demand is an amount of data that some hosts hold and others need. Which ranks, tiles and
 * tensors are behind it is the business of the plan. What a host needs and holds already is not
 * part of it, so receivers and holders of a demand are disjoint, and every byte of a demand must
 * enter each of its receivers' NICs at least once and leave its holders' NICs at least once. A host
 * that has received a part may pass it on (relay).
 *
 * Plain values; the arrays belong to whoever made the problem.
 */
#pragma once

#include <stdint.h>

#include "resharding/network.h"

typedef struct xm_demand {
    int64_t bytes;      /* at least 1 */
    const int *holders; /* hosts that hold all of it: ascending, each once, at least one */
    const int *
        receivers; /* hosts that need all of it and hold none: ascending, each once, at least one */
    int holder_count;
    int receiver_count;
} xm_demand_t;

typedef struct xm_problem {
    const xm_network_t *network;
    const xm_demand_t *demands;
    int64_t count;
} xm_problem_t;

/* ---- whole demands, one after the other: naive, balance, greedy, dfs --------------------------
 */

/*
 * The paper's model ("exclusive hosts", MLSys'23 section 3.2): a demand goes in one piece from one
 * holding host to all its receivers at once, as a pipelined chain. For xm_problem_duration() ns it
 * has its sender's egress and every receiver's ingress for itself. Demands start in list order as
 * soon as what they need is free.
 */
typedef struct xm_step {
    int64_t demand;
    int sender; /* one of the demand's holders */
} xm_step_t;

/* Time of demand d sent by `sender`: its bytes at the slowest NIC direction involved, ns. */
int64_t xm_problem_duration(const xm_problem_t *problem, int64_t demand, int sender);

/* Makespan of a list of steps in that model; false when there is no memory. */
xm_status_t xm_steps_makespan(const xm_problem_t *problem, const xm_step_t *steps,
                              int64_t *makespan_ns);

/* Each writes problem->count steps. All are deterministic. */
xm_status_t xm_schedule_naive(const xm_problem_t *problem, xm_step_t *steps);
xm_status_t xm_schedule_balance(const xm_problem_t *problem, xm_step_t *steps);
xm_status_t xm_schedule_greedy(const xm_problem_t *problem, uint64_t seed, xm_step_t *steps);

/* Depth-first search with pruning, started from `greedy`. `node_budget` 0 means no limit. *optimal:
 * proved. */
xm_status_t xm_schedule_dfs(const xm_problem_t *problem, uint64_t seed, int64_t node_budget,
                            xm_step_t *steps, bool *optimal);

/* ---- demands in parts: openshop ----------------------------------------------------------------
 */

/* Bytes [first, end) of a demand go from one host to one other. */
typedef struct xm_hop {
    int64_t demand;
    int64_t first, end;
    int64_t parent; /* hop (before this one) that brought the range to `sender`, which contains it;
                       −1 when `sender` is a holder */
    int sender, receiver;
    int64_t start_ns; /* planned */
} xm_hop_t;

typedef struct xm_openshop_params {
    uint64_t seed;
    int64_t piece_bytes; /* pieces are not cut smaller than this; 0: 64 KiB */
    int pieces_per_host; /* pieces that the busiest NIC direction carries, roughly; 0: chosen */
    int64_t most_bytes;  /* hops between ends of different rates are cut into messages of so many
                            bytes at most; 0: as long as they come */
    int64_t most_hops;   /* that the schedule has, roughly; 0: two million */
    int turns; /* where it costs nothing, the schedule consists of at least so many equal turns, in
                  each of which every demand moves alike */
} xm_openshop_params_t;

/*
 * Preemptive open shop with relays (docs/resharding.md, "openshop"). The hops come sorted by
 * start_ns, in a malloc'ed array the caller frees. A hop occupies its sender's egress for
 * xm_network_egress_ns() of its bytes and its receiver's ingress for xm_network_ingress_ns(), both
 * from start_ns; a relay's hop starts when its parent's bytes that it sends have arrived.
 * *makespan_ns is the end of the last.
 */
xm_status_t xm_schedule_openshop(const xm_problem_t *problem, const xm_openshop_params_t *params,
                                 xm_hop_t **hops, int64_t *count, int64_t *makespan_ns);
