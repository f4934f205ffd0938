/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/intra_op/solution.h
 * A solved sharding: the spec every tensor is made in and the strategy of every operator.
 *
 * What the report (planner/intra_op/report.h) and the exports (planner/export/jax.h,
 * planner/export/hlo.h, planner/export/torch.h) start from, whoever solved it. Where an operator
 * uses a tensor in another spec than it is made in, it is resharded on the way.
 *
 * Ownership: graph and mesh are borrowed and must outlive the solution. Threads: immutable once
 * filled in.
 */
#pragma once

#include "planner/graph.h"
#include "planner/intra_op/problem.h"
#include "planner/cost.h"

typedef struct ap_shard_solution {
    const ap_graph_t *graph;
    const ap_cost_mesh_t *mesh;
    ap_spec_t *made;    /**< per tensor */
    ap_strategy_t *ops; /**< per operator: `spec` has its operands as used and its results */
    int micro_batches;  /**< of one step; 0 = 1 */
    double state_bytes; /**< of the optimizer per parameter element, where the graph has none */
} ap_shard_solution_t;

/** The solution that a choice of strategies stands for. */
xm_status_t ap_shard_solution_create(const ap_shard_problem_t *problem, const int *choice,
                                     ap_shard_solution_t **solution);

/** Spec in which an operator uses its operand. */
static inline ap_spec_t ap_shard_solution_used(const ap_shard_solution_t *solution, int op,
                                               int operand)
{
    return solution->ops[op].spec[operand];
}

/** Spec in which a tensor ends: that of the one whose storage it takes over, or as it is made. */
ap_spec_t ap_shard_solution_kept(const ap_shard_solution_t *solution, int tensor);

/** Times in one step that an operator runs, were it in no loop: once per micro-batch, an update
 * once. */
double ap_shard_solution_times(const ap_shard_solution_t *solution, int op);

/** How often in one step a tensor is resharded for an operator: in a loop in each run, unless it
 * comes from outside of the loop. */
double ap_shard_solution_runs(const ap_shard_solution_t *solution, int tensor, int op);

void ap_shard_solution_destroy(ap_shard_solution_t *solution);
