/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a network of variables, wires and uses becomes arrays: shared by
 * planner/intra_op/network_emit.c (nodes and edges) and planner/intra_op/network_loads.c (usage
 * over time). Private.
 */
#pragma once

#include <math.h>

#include "planner/intra_op/network.h"

/* Wires between the same terms of the same classes. */
typedef struct ap_shard_edge {
    int wire; /* the first of them */
    int count;
    double *costs; /* per pair of strategies; NULL: no edge any more */
    int copy;      /* variable that the users' copies are, or -1 */
} ap_shard_edge_t;

/* A copy of a tensor for its user: in one of the specs that the user may want, or none because the
 * tensor is kept in that spec already. */
typedef struct ap_shard_copy {
    int edge;
    int specs;
    ap_spec_t *spec;
    int *sample; /* per spec: a strategy of the user that wants it */
    bool twice;  /* the user may run again */
} ap_shard_copy_t;

/* What a variable uses during some of the times that were kept. */
typedef struct ap_shard_load {
    int variable, first, end;
    size_t amount; /* per option, in ap_shard_emission_t */
    bool own;      /* on the variable's node itself; others have a node for it */
    int levels;    /* different amounts */
} ap_shard_load_t;

typedef struct ap_shard_emission {
    ap_shard_network_t *n;
    xm_arena_t arena; /* all arrays but those that grow */
    bool limited;
    int edges;
    ap_shard_edge_t *edge;
    int *next; /* chains of edges with one hash */
    int *head; /* per hash */
    int copies;
    size_t copy_capacity;
    ap_shard_copy_t *copy;
    double *unary;    /* per class and strategy: wires from a class to itself */
    size_t *unary_at; /* per class */
    ap_shard_span_t *span;
    int spans;
    ap_shard_load_t *load;
    int loads;
    int64_t *amount; /* of the loads */
    size_t amounts;
    int64_t *scratch; /* amounts of one load, sorted */
} ap_shard_emission_t;

/* Options of a copy: per spec none or one, each once or twice when the user may run again. */
static inline int ap_shard_copy_options(const ap_shard_copy_t *copy)
{
    return copy->specs * 2 * (copy->twice ? 2 : 1);
}

/* Of a class, a copy or what is shared. */
static inline int ap_shard_options_of(const ap_shard_emission_t *e, int variable)
{
    int copy = variable - e->n->alike.classes;

    return copy < 0           ? e->n->variable[variable].options
           : copy < e->copies ? ap_shard_copy_options(&e->copy[copy])
                              : e->n->sharing.group[copy - e->copies].options;
}

static inline int ap_shard_class_of(const ap_shard_emission_t *e, int node)
{
    return e->n->alike.class_of[node];
}

/* Appends a node; the arrays were counted before, so there is room. */
static inline size_t ap_shard_emit_node(ap_cfn_t *cfn, int options)
{
    size_t at = cfn->node_at[cfn->nodes];

    ++cfn->nodes;
    cfn->node_at[cfn->nodes] = at + (size_t)options;
    return at;
}

/* Appends a table between two nodes; the caller fills the cells in order. */
static inline int64_t *ap_shard_emit_table(ap_cfn_t *cfn, int a, int b)
{
    size_t at = cfn->cell_at[cfn->edges];

    cfn->scope[2 * cfn->edges] = a;
    cfn->scope[2 * cfn->edges + 1] = b;
    ++cfn->edges;
    cfn->scope_at[cfn->edges] = 2 * cfn->edges;
    cfn->cell_at[cfn->edges] =
        at + ap_cfn_strategies(cfn, (size_t)a) * ap_cfn_strategies(cfn, (size_t)b);
    return cfn->cells + at;
}

static inline int64_t ap_shard_emit_cost(const ap_shard_emission_t *e, double cost)
{
    /* Rounded down, so that a bound on the integers is one on the costs. */
    return cost >= AP_COST_INFINITE ? AP_CFN_INFINITE : (int64_t)floor(cost * e->n->scale);
}

/* A shared tensor's node and its tables, and a bound on what it costs
 * (planner/intra_op/network_share.c). */
void ap_shard_emit_shared(ap_shard_emission_t *e, int group);
double ap_shard_shared_largest(const ap_shard_emission_t *e, int group);

/* What variables use at the times that matter, and the nodes that use it. */
xm_status_t ap_shard_gather_loads(ap_shard_emission_t *e);
void ap_shard_emit_loads(ap_shard_emission_t *e);
