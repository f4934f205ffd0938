/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file piper.h
 * Piper's planning problem (Tarnawski et al., "Piper: Multidimensional Planner for DNN
 * Parallelization", NeurIPS'21): cut a graph into contiguous stages, give each a data-parallel
 * degree d and a tensor-parallel degree t, and choose for each layer how it runs (say with or
 * without recomputation), so that the time per sample of the slowest stage is least.
 *
 * A stage takes `(compute + 2 (bytes crossing its border) / bandwidth) / d` and
 * `4 (d - 1) / d * parameters / (micro-batches * bandwidth)` for the gradients. It holds the
 * activations of y = ceil(s / d) micro-batches, where s is the sum of d over it and the stages
 * after: memory `sum(A) y + sum(B)` must fit its devices. d divides the number of micro-batches;
 * the sum of all t * d is at most the devices.
 *
 * Solved exactly. For a limit on the time per sample, the fewest devices for every down-set
 * (ideals.h) and every s are found in one sweep; the least limit that leaves an answer is found by
 * bisection over the times that stages can take. What a stage's layers take within a memory is an
 * exact knapsack, computed once for each stretch of y on which its answer stays.
 *
 * Deterministic. Threads: no shared state.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "planner/published/ideals.h"

/** One way to run a layer at one tensor-parallel degree. */
typedef struct ap_piper_variant {
    const char *id;
    double time;        /**< seconds per sample, backward included */
    double parameters;  /**< bytes that data parallelism must reduce */
    double memory_each; /**< bytes for each micro-batch in flight (A) */
    double memory;      /**< other bytes (B) */
    double *in_bytes;   /**< for each edge into the node: synchronised when the edge is cut */
    double *out_bytes;  /**< for each edge out of it */
} ap_piper_variant_t;

enum { AP_PIPER_VARIANTS = 2 };

/** How a layer can run on so many devices. */
typedef struct ap_piper_degree {
    int tensor; /**< t */
    int variant_count;
    ap_piper_variant_t variants[AP_PIPER_VARIANTS];
} ap_piper_degree_t;

typedef struct ap_piper_node {
    int64_t id;
    int degree_count;
    ap_piper_degree_t *degrees; /**< by rising t */
    int in_count, out_count;
    int *in, *out; /**< edges */
} ap_piper_node_t;

typedef struct ap_piper_problem {
    int node_count, edge_count;
    ap_piper_node_t *nodes;
    ap_precedence_t *edges;
    double *bytes; /**< [edge] */
    int devices;
    int micro_batches;
    double memory;    /**< of a device, bytes */
    double bandwidth; /**< bytes per second */
    xm_arena_t arena; /**< of all that it points to */
} ap_piper_problem_t;

typedef struct ap_piper_stage {
    int data, tensor; /**< d and t */
    int in_flight;    /**< y */
    double seconds;   /**< per sample */
    double memory;    /**< bytes of each device */
    int node_count;
    int *nodes;    /**< indices */
    int *variants; /**< chosen, for each node */
} ap_piper_stage_t;

typedef struct ap_piper_plan {
    double seconds; /**< per sample, of the slowest stage */
    int devices;    /**< used */
    bool exact;     /**< no plan is faster */
    int stage_count;
    ap_piper_stage_t *stages; /**< in the order of the graph */
    int ideals;               /**< down-sets of the graph; 0: too many, one order only */
    int64_t stages_priced;    /**< (stage, t, d) */
    xm_arena_t arena;         /**< of all that it points to */
} ap_piper_plan_t;

/**
 * The fastest plan. A graph with too many down-sets is cut along one order of its layers, and
 * `exact` is false. XM_ERR_NO_SOLUTION: nothing fits the memory.
 */
xm_status_t ap_piper_solve(const ap_piper_problem_t *problem, ap_piper_plan_t *plan);

/** Frees what it owns. All-zero is accepted. */
void ap_piper_plan_clear(ap_piper_plan_t *plan);
void ap_piper_problem_clear(ap_piper_problem_t *problem);
