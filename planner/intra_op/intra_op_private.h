/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a sharding problem: shared by planner/intra_op/problem.c (nodes and wires),
 * planner/intra_op/set.c (strategies and their prices) and what makes a cost function network of it
 * (planner/intra_op/network.c).
 */
#pragma once

#include "planner/cost.h"
#include "planner/intra_op/problem.h"

/* What nodes that look the same have in common: their strategies, and what those cost. */
typedef struct ap_strategy_table {
    uint64_t hash;
    int op, tensor; /* the first node of it: an operator, or an input or parameter; the other: -1 */
    int count;      /* of strategies */
    ap_strategy_list_t strategies; /* of an operator */
    ap_spec_t *specs;              /* of an input or parameter */
    double *costs;
} ap_strategy_table_t;

typedef struct ap_shard_node {
    int op, tensor; /* one of them is -1 */
    int set;
} ap_shard_node_t;

/* A tensor on its way from the node that makes it to a term of one that uses it. */
typedef struct ap_shard_wire {
    int tensor;
    int from, from_term;
    int to, to_term;
    bool alias;    /* `to` makes the tensor that takes over the storage of this one */
    double weight; /* times per micro-batch */
} ap_shard_wire_t;

struct ap_shard_problem {
    xm_arena_t arena; /* all arrays but the list of tables */
    ap_shard_params_t params;
    ap_reshard_memo_t *memo;
    int nodes, sets, wires;
    size_t set_capacity;
    ap_shard_node_t *node;
    ap_strategy_table_t *set;
    ap_shard_wire_t *wire;
    int *op_node, *tensor_node; /* -1 = none */
};

static inline const ap_strategy_table_t *ap_strategy_table_of(const ap_shard_problem_t *p, int node)
{
    return &p->set[p->node[node].set];
}

static inline ap_spec_t ap_shard_spec_at(const ap_strategy_table_t *set, int strategy, int term)
{
    return set->op < 0 ? set->specs[strategy] : set->strategies.items[strategy].spec[term];
}

/* The axes that a strategy of a node cuts, and by which factor or dimension, from 1 on. */
void ap_shard_problem_parts(const ap_shard_problem_t *p, int node, int strategy,
                            uint8_t part[AP_MAX_MESH_RANK]);

/* Finds or makes the set of an operator (op >= 0), or of an input or parameter. */
xm_status_t ap_strategy_table_find(ap_shard_problem_t *p, int op, int tensor, int *set);

/* Share of once-per-iteration work that one micro-batch bears. */
double ap_shard_per_iteration(const ap_shard_problem_t *p);

/* Bytes of a tensor on one device under a spec. */
double ap_shard_local_bytes(const ap_shard_problem_t *p, int tensor, ap_spec_t spec);

/* Cost of resharding along a wire; AP_COST_INFINITE or more when that must not be. */
double ap_shard_wire_cost(const ap_shard_problem_t *p, const ap_shard_wire_t *wire, ap_spec_t made,
                          ap_spec_t used);

/* The same for every pair of strategies; [from][to]. */
xm_status_t ap_shard_wire_costs(const ap_shard_problem_t *p, const ap_shard_wire_t *wire,
                                double *costs);
