/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file placement.h
 * Device placement for pipelined training or inference, as in Tarnawski et al., "Efficient
 * Algorithms for Device Placement of DNN Graph Operators" (NeurIPS'20), sections 3 to 5.
 *
 * Given are operators with their times on an accelerator and on a CPU, sizes, and edges; at most so
 * many accelerators with so much memory, and so many CPUs. In a full pipeline the time of a sample
 * is that of the busiest device, its load: on an accelerator the times of its operators, and once
 * for each operator whose output crosses its border, in either direction, what the transfer costs;
 * on a CPU the times only. The largest load is to be small.
 *
 * Operators of one colour stay together, a backward operator with its forward one. The contiguous
 * optimum gives every device a contiguous part of the forward graph; it is found by a dynamic
 * programme over down-sets (ideals.h), pruned by a first answer from one order of the operators,
 * and is exact. Without contiguity there are searches, seeded and with a budget.
 *
 * Units: those of the input. Deterministic. Threads: no shared state.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "planner/published/ideals.h"

typedef struct ap_placement_node {
    int64_t id;          /**< as in the input, for sentences and answers */
    int64_t colour;      /**< nodes of one colour stay together */
    double accelerator;  /**< time there */
    double cpu;          /**< time there */
    double size;         /**< memory on an accelerator */
    double transfer;     /**< time to send or to receive its output */
    bool on_accelerator; /**< whether it can run there */
    bool backward;
} ap_placement_node_t;

typedef struct ap_placement_problem {
    int node_count, edge_count;
    ap_placement_node_t *nodes;
    ap_precedence_t *edges; /**< between indices of nodes */
    int accelerators, cpus; /**< at most */
    double memory;          /**< of an accelerator */
    bool chain;             /**< nodes are a chain in their order; searches give each device one
                                 part */
    xm_arena_t arena;       /**< of all that it points to */
} ap_placement_problem_t;

typedef struct ap_placement {
    double load;      /**< of the busiest device */
    int devices;      /**< accelerators, then CPUs */
    double *loads;    /**< [devices] */
    int *device_of;   /**< [node] */
    bool exact;       /**< no contiguous placement has a smaller load */
    int groups;       /**< of nodes that stay together */
    int ideals;       /**< down-sets of the groups; 0: too many, one order only */
    int64_t pairs;    /**< contiguous parts whose load was computed */
    xm_arena_t arena; /**< of all that it points to */
} ap_placement_t;

/**
 * The best contiguous placement. A graph with more than a million down-sets, or 300 million
 * parts between them, is cut along one order of its operators, and `exact` is false.
 * XM_ERR_NO_SOLUTION: nothing fits the memory.
 */
xm_status_t ap_placement_solve(const ap_placement_problem_t *problem, ap_placement_t *placement);

/** How a search proposes placements, after those who published it. */
typedef enum ap_placement_kind {
    AP_PLACEMENT_LOCAL,     /**< moves of one group, from many starts */
    AP_PLACEMENT_PART,      /**< multilevel partitioning, Kernighan and Lin */
    AP_PLACEMENT_LPT,       /**< longest processing time first */
    AP_PLACEMENT_KARMARKAR, /**< Karmarkar's and Karp's differencing */
    AP_PLACEMENT_BRANCH,    /**< branch and bound over clusters */
    AP_PLACEMENT_POLICY,    /**< policy gradient over clusters */
    AP_PLACEMENT_STEPWISE,  /**< policy that draws one group's device a step */
    AP_PLACEMENT_BRKGA      /**< genetic algorithm over random keys */
} ap_placement_kind_t;

/** A budget for graphs of a thousand groups: seconds. */
#define AP_PLACEMENT_BUDGET INT64_C(4000000)

typedef struct ap_placement_query {
    ap_placement_kind_t kind;
    uint64_t seed;
    int64_t budget;              /**< moves of a group; what a placement of all costs is so many */
    const ap_placement_t *start; /**< from ap_placement_solve(), or NULL: from partitioning */
} ap_placement_query_t;

/**
 * Searches without asking for contiguity (but on a chain). Never worse than its start, nor, without
 * one, than AP_PLACEMENT_PART. Equal seeds and budgets give equal placements.
 * XM_ERR_NO_SOLUTION: it found none that fits.
 */
xm_status_t ap_placement_search(const ap_placement_problem_t *problem,
                                const ap_placement_query_t *query, ap_placement_t *placement);

/** "local search", "policy gradient", ... */
const char *ap_placement_search_name(ap_placement_kind_t kind);

/**
 * The loads of a placement, from the definition. XM_ERR_CORRUPT: a colour is torn apart, a node is
 * where it cannot run, or an accelerator's memory is exceeded.
 */
xm_status_t ap_placement_loads(const ap_placement_problem_t *problem, const int *device_of,
                               double *loads);

/** Frees what it owns. All-zero is accepted. */
void ap_placement_clear(ap_placement_t *placement);
void ap_placement_problem_clear(ap_placement_problem_t *problem);
