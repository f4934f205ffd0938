/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tests/planner/solver/elimination/pairwise.h
 * Choosing one strategy per node so that node costs plus edge costs are smallest.
 *
 * The general form of the intra-operator problem without memory (Alpa, OSDI'22, section 4.2): node
 * v has k_v strategies with costs, edge (a, b) has a table of k_a x k_b costs; costs of
 * AP_INTRA_OP_INFINITE and more forbid.
 *
 * Exact as long as the graph allows: strategies that another dominates are dropped,
 * nodes whose strategy follows from a neighbour's are merged into it, and the rest is solved by
 * elimination in min-size order (elimination.h) with exact back-substitution. When a table would
 * grow beyond max_cells, a dual bound and a locally optimal plan are returned instead, with their
 * gap.
 *
 * Deterministic. Threads: no shared state.
 *
 * @code
 *     status = ap_intra_op_solve(&problem, 0, choice, &result);
 *     printf("%g, at least %g\n", result.objective, result.bound);
 * @endcode
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "comm/base.h"

#define AP_INTRA_OP_INFINITE 1e12

typedef struct ap_intra_op_edge {
    int a, b;            /**< two different nodes; parallel edges add up */
    const double *costs; /**< row-major, node a slowest */
} ap_intra_op_edge_t;

typedef struct ap_intra_op_problem {
    int nodes;
    const int *strategies;      /**< per node, at least 1 */
    const double *const *costs; /**< per node and strategy */
    int edges;
    const ap_intra_op_edge_t *edge;
} ap_intra_op_problem_t;

typedef struct ap_intra_op_result {
    double objective;
    double bound;    /**< no choice is below; equal to the objective when exact */
    bool eliminated; /**< solved exactly */
    int nodes_left;  /**< after dominance and merging */
} ap_intra_op_result_t;

/**
 * Writes one strategy per node into @p choice. No table gets more than @p max_cells (0: 4 Mi).
 * XM_ERR_NO_SOLUTION when every choice is forbidden.
 */
xm_status_t ap_intra_op_solve(const ap_intra_op_problem_t *problem, size_t max_cells, int *choice,
                              ap_intra_op_result_t *result);

/** Cost of a choice. */
double ap_intra_op_cost(const ap_intra_op_problem_t *problem, const int *choice);
