/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file strategy.h
 * The ways to shard one operator, derived from its rule alone.
 *
 * A strategy assigns every mesh axis to one factor of the rule, or to none (then the axis repeats
 * the work). From the assignment follow the spec of every operand and result, which results are
 * partial sums over which axes (an axis on a factor that the result lacks), and the communication:
 *
 *  - a partial result is all-reduced over all its axes at once, or reduce-scattered into one of its
 * dimensions;
 *  - a cut permutation factor exchanges whole shards with a neighbour;
 *  - pass-through factors cost nothing, need-replication factors are never cut.
 *
 * A factor is cut only if its size divides, or if the mesh allows uneven cuts (cost.h) and the
 * factor is alone in its dimensions and no permutation. The order of axes within a dimension is
 * ascending. Works for a mesh of any rank up to AP_MAX_MESH_RANK. Source: Alpa (OSDI'22) table 3
 * lists the strategies of a batched matrix product; this is the general rule behind it.
 *
 * Threads: lists are immutable.
 */
#pragma once

#include <stdbool.h>

#include "planner/cost/cost.h"
#include "planner/graph.h"

/** One collective of a strategy. */
typedef struct ap_collective {
    ap_collective_kind_t kind;
    int axis;      /**< the first of `axes` */
    unsigned axes; /**< that it is over: one, or several for an all-reduce */
    int term;      /**< of the rule, whose bytes move */
    double bytes;  /**< as cost.h defines them for the kind */
} ap_collective_t;

/** What it points at is one block, which ap_strategy_open() makes; in a list, the list's. */
typedef struct ap_strategy {
    ap_collective_t *collective;
    ap_spec_t *spec;   /**< per term, after the collectives */
    unsigned *axes;    /**< per factor: set of mesh axes that cut it */
    unsigned *partial; /**< per result: axes it is a partial sum over before the collectives */
    double devices;    /**< that share the work: 1 / devices of the FLOPs each, padding included */
    int collective_count;
} ap_strategy_t;

/** An operator as strategies see it. */
typedef struct ap_strategy_context {
    const ap_sharding_rule_t *rule;
    const ap_cost_mesh_t *mesh;
    const ap_graph_t *graph; /**< of the operator, for its types; NULL: it is a rule by itself */
    const ap_op_t *op;
    double element_bytes; /**< of a rule by itself: of all its terms */
    const int *touched;   /**< per term, as ap_op_t has it; NULL: all of each */
} ap_strategy_context_t;

/** Room for a strategy of a rule, whole everywhere; ap_strategy_release() frees it. */
xm_status_t ap_strategy_open(const ap_sharding_rule_t *rule, ap_strategy_t *strategy);
xm_status_t ap_strategy_copy(const ap_sharding_rule_t *rule, const ap_strategy_t *from,
                             ap_strategy_t *strategy);
void ap_strategy_release(ap_strategy_t *strategy);

/** Bytes of an element of a term. */
double ap_strategy_element_bytes(const ap_strategy_context_t *site, int term);

/** The axes that cut some factor; every other one repeats the work. */
unsigned ap_strategy_axes(const ap_sharding_rule_t *rule, const ap_strategy_t *strategy);

/** What to enumerate. */
typedef struct ap_strategy_options {
    bool scatter;  /**< also reduce-scatter partial results into each of their dimensions */
    bool all_axes; /**< an axis repeats work only where it cannot be cut with the others */
} ap_strategy_options_t;

typedef struct ap_strategy_list {
    int count;
    ap_strategy_t *items;
    void *room; /**< what the items point at */
} ap_strategy_list_t;

/**
 * The strategy of one assignment (a set of axes per factor), with partial results all-reduced, into
 * one that has room.
 * False when it does not divide, cuts a need-replication factor or a minor factor of a compound
 * dimension, or uses an axis twice in a term.
 */
bool ap_strategy_assign(const ap_strategy_context_t *site, const unsigned *axes,
                        ap_strategy_t *strategy);

/**
 * Every strategy of an operator, in a fixed order: by assignment of the last axis slowest, factors
 * in rule order, "none" last. Free with ap_strategy_list_free().
 */
xm_status_t ap_strategy_enumerate(const ap_strategy_context_t *site,
                                  const ap_strategy_options_t *options, ap_strategy_list_t *list);

/** Whether a spec cuts a tensor into the parts that are demanded of it, if the axes @p more cut
 * some of its dimensions as well. */
bool ap_strategy_meets(const ap_cost_mesh_t *mesh, const ap_tensor_t *tensor, ap_spec_t spec,
                       unsigned more);

/** Removes from the list of an operator's strategies those whose results are not cut as is
 * demanded. False when none would be left; the list is then as it was. */
bool ap_strategy_list_demand(const ap_graph_t *graph, const ap_op_t *op, const ap_cost_mesh_t *mesh,
                             ap_strategy_list_t *list);

/** Local bytes of a term under a spec. */
double ap_strategy_local_bytes(const ap_strategy_context_t *site, int term, ap_spec_t spec);

/**
 * Bytes that one device reads and writes under a spec per term: all of its share of each, of a
 * table that is looked up only the rows (see ap_op_params_t).
 */
double ap_strategy_moved_bytes(const ap_strategy_context_t *site, const ap_spec_t *spec);

/** "S0RR,RS1->S0RS1 {b:0,f:1}": the specs and the assignment. Returns @p buffer. */
char *ap_strategy_format(const ap_sharding_rule_t *rule, const ap_strategy_t *strategy,
                         char *buffer, size_t size);

void ap_strategy_list_free(ap_strategy_list_t *list);
