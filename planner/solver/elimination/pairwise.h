/**
 * @file planner/solver/elimination/pairwise.h
 * Choosing one strategy per node so that node costs plus edge costs are smallest.
 *
 * The general form of the intra-operator problem (Alpa, OSDI'22, section 4.2): node v has k_v
 * strategies with costs and memory, edge (a, b) has a table of k_a x k_b costs; costs of
 * AP_INTRA_OP_INFINITE and more forbid. Optionally the chosen strategies' memory must not exceed a
 * limit.
 *
 * Exact without a limit as long as the graph allows: strategies that another dominates are dropped,
 * nodes whose strategy follows from a neighbour's are merged into it, and the rest is solved by
 * elimination in min-size order (elimination.h) with exact back-substitution. When a table would
 * grow beyond max_cells, a dual bound and a locally optimal plan are returned instead, with their
 * gap. A memory limit is priced: bisection on the price, repair of what does not fit, and the best
 * Lagrangian bound.
 *
 * Deterministic. Threads: no shared state.
 *
 * @code
 *     status = ap_intra_op_solve(&problem, &options, choice, &result);
 *     printf("%g, at least %g\n", result.objective, result.bound);
 * @endcode
 */
#ifndef AP_PLANNER_SOLVER_ELIMINATION_PAIRWISE_H
#define AP_PLANNER_SOLVER_ELIMINATION_PAIRWISE_H

#include <stdbool.h>
#include <stddef.h>

#include "comm/base.h"

#define AP_INTRA_OP_INFINITE 1e12

typedef struct ap_intra_op_edge {
    int a, b;            /**< two different nodes; parallel edges add up */
    const double *costs; /**< row-major, node a slowest */
} ap_intra_op_edge_t;

typedef struct ap_intra_op_problem {
    size_t struct_size;
    int nodes;
    const int *strategies;       /**< per node, at least 1 */
    const double *const *costs;  /**< per node and strategy */
    const double *const *memory; /**< the same in bytes, not negative; NULL = no memory */
    int edges;
    const ap_intra_op_edge_t *edge;
    double memory_limit; /**< 0 = none */
} ap_intra_op_problem_t;

#define AP_INTRA_OP_PROBLEM_INIT                                                                   \
    {                                                                                              \
        .struct_size = sizeof(ap_intra_op_problem_t)                                               \
    }

typedef struct ap_intra_op_options {
    size_t struct_size;
    size_t max_cells; /**< of one table; 0 = 4 Mi */
} ap_intra_op_options_t;

#define AP_INTRA_OP_OPTIONS_INIT                                                                   \
    {                                                                                              \
        .struct_size = sizeof(ap_intra_op_options_t)                                               \
    }

typedef struct ap_intra_op_result {
    double objective;
    double bound;    /**< no choice within the limit is below; equal to the objective when exact */
    double memory;   /**< of the choice */
    double price;    /**< cost per byte that the choice was found at; 0 when the limit is slack */
    bool eliminated; /**< every priced problem was solved exactly */
    int nodes_left;  /**< after dominance and merging, at price 0 */
    size_t cells;    /**< of the largest table */
} ap_intra_op_result_t;

/**
 * Writes one strategy per node into @p choice. XM_ERR_NO_SOLUTION when every choice is forbidden or
 * none fits the limit (the sentence gives the smallest memory found).
 */
xm_status_t ap_intra_op_solve(const ap_intra_op_problem_t *problem,
                              const ap_intra_op_options_t *options, int *choice,
                              ap_intra_op_result_t *result);

/** Cost of a choice. */
double ap_intra_op_cost(const ap_intra_op_problem_t *problem, const int *choice);
/** Memory of a choice. */
double ap_intra_op_memory(const ap_intra_op_problem_t *problem, const int *choice);

#endif
