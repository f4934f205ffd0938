/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One layer of a model on one logical mesh, as a problem of choosing a strategy per forward
 * operator. Private to the stage object.
 *
 * A node is a forward operator with its backward operators and the parameters it uses; they share
 * one assignment of mesh axes to factors. Strategies that look the same from outside (specs of
 * activation operands and results, partial axes of operand gradients) form a *class*; only the
 * cheapest of a class matters. Edges carry the resharding of an activation one way and of its
 * gradient the other way.
 *
 * An activation with several readers is a node, too, behind those of the operators: its strategies
 * are the values of planner/cost/share.h.
 */
#pragma once

#include "planner/graph.h"
#include "planner/cost.h"
#include "planner/stage/space.h"
#include "planner/passes.h"

/* What a choice costs: see ap_stage_cost_t. */
typedef struct ap_parts {
    double forward, backward, sync, update;
    double mem_stage, mem_act, mem_work;
    double mem_layer; /* recomputed activations, which live while their layer runs backward */
} ap_parts_t;

/* How the operators of a stage that read the same parameter have it: each its own copy, or all
 * alike, so that it is kept, reduced and updated once, for the first of them. The others then add
 * their gradients to its. */
typedef struct ap_layer_tie {
    bool alike;
    bool held;     /* an earlier layer has the first of them */
    bool paid;     /* later layers have it as they like and pay for it again: for a bound */
    uint64_t view; /* as ap_layer_tied_view() */
} ap_layer_tie_t;

/* Operators of one layer in the training graph, every phase. */
typedef struct ap_layer_ops {
    int count;
    int *ids;
    bool *learns; /* per tensor of the graph: a parameter has a part in it, so it has a gradient */
    bool goes_back;      /* some are of the backward pass, which needs the layer's input */
    int tied;            /* the parameter that ties apply to; -1: none */
    unsigned batch_axes; /* which resting copies are cut over */
} ap_layer_ops_t;

/* The part of the space that strategies are taken from. NULL in its place: all of it. */
typedef struct ap_layer_space {
    const ap_space_t *space;
    const ap_factor_roles_t *roles; /* per operator of the training graph */
} ap_layer_space_t;

enum { AP_IN = -1, AP_OUT = -2 /* the boundary tensors as ends of an edge */ };

typedef struct ap_layer_node {
    int op; /* -1: an activation with several readers */
    ap_strategy_list_t strategies;
    ap_parts_t *base; /* per strategy: without parameters */
    double *compute;  /* per strategy: the part of forward + backward that is compute */
    int parameters;
    int *parameter_operand;
    unsigned *partial;   /* [strategy][parameter]: axes that gradients are summed over */
    ap_parts_t *modes;   /* [strategy][parameter][mode] */
    int tied;            /* which of the parameters a tie applies to; -1: none */
    bool tied_again;     /* an earlier operator of the layer reads it, too */
    ap_parts_t *added;   /* per strategy: its gradient until it is added to another reader's */
    int *class_of;       /* per strategy */
    int terms;           /* of the operator */
    uint64_t *interface; /* [strategy][term]: what a class is made of */
    int classes;
    int *first_of;            /* per class: its first strategy */
    ap_shared_value_t *value; /* of an activation with several readers, per strategy */
} ap_layer_node_t;

typedef struct ap_layer_edge {
    int from, to; /* node, AP_IN or AP_OUT */
    int from_term, to_term;
    int tensor;
    int from_count, to_count;   /* classes (or specs) */
    double *forward, *backward; /* [from class][to class] */
} ap_layer_edge_t;

typedef struct ap_layer_problem {
    xm_arena_t *arena; /* of all arrays but the lists of strategies */
    int layer;
    int op_nodes, nodes, edges; /* nodes of operators come first */
    ap_layer_node_t *node;
    ap_layer_edge_t *edge;
    int in_count, out_count; /* specs of the boundary tensors; 1 when there is none */
    ap_spec_t *in_specs, *out_specs;
    ap_parts_t *in_parts; /* per input spec */
} ap_layer_problem_t;

/* What an objective weighs. */
typedef struct ap_layer_weights {
    double forward;              /* 1, or 2 with recomputation */
    double per_iteration;        /* 1 / micro-batches */
    double stage_byte, act_byte; /* memory prices, seconds per byte */
    ap_layer_tie_t tie;
} ap_layer_weights_t;

double ap_parts_cost(const ap_parts_t *parts, const ap_layer_weights_t *weights);
void ap_parts_add(ap_parts_t *sum, const ap_parts_t *parts); /* mem_work: the larger */

/*
 * `tied` is the parameter that a tie among the weights applies to, or -1. `rematerialize`:
 * activations are not kept, only the layer's input. `memo` must be of `mesh`, and both outlive the
 * problem, as the arena does that it lies in; its lists of strategies are freed by release(), also
 * after a failure.
 */
xm_status_t ap_layer_problem_create(const ap_graph_t *training, int layer, int tied,
                                    const ap_cost_mesh_t *mesh, ap_reshard_memo_t *memo,
                                    ap_optimizer_t optimizer, bool rematerialize,
                                    const ap_layer_space_t *space, xm_arena_t *arena,
                                    ap_layer_problem_t **problem);
void ap_layer_problem_release(ap_layer_problem_t *problem);

/* Fills what one strategy costs (layer_costs.c). */
xm_status_t ap_layer_node_price(const ap_graph_t *training, const ap_layer_ops_t *ops,
                                const ap_cost_mesh_t *mesh, ap_optimizer_t optimizer,
                                bool rematerialize, const ap_layer_space_t *space,
                                xm_arena_t *arena, ap_layer_node_t *node);

/* Makes the edges between the operators' nodes, and the nodes of activations with several readers
 * (layer_edges.c). */
xm_status_t ap_layer_edges_create(const ap_graph_t *training, const ap_layer_ops_t *ops,
                                  const ap_cost_mesh_t *mesh, ap_reshard_memo_t *memo,
                                  ap_layer_problem_t *problem);

/* What neighbours see of a term: its spec, and in bits that specs leave free the axes over which an
 * operand's gradient is partial. */
static inline ap_spec_t ap_layer_seen_spec(uint64_t seen)
{
    return seen & ~UINT64_C(0xf0);
}

static inline unsigned ap_layer_seen_partial(uint64_t seen)
{
    return (unsigned)(seen >> 4 & 15);
}

/* Sums of gradients of a tensor that happen in this layer. */
int ap_layer_gradient_sums(const ap_graph_t *training, const ap_layer_ops_t *ops, int tensor);

/* Best mode of a parameter under a strategy and weights; adds its parts when `parts` is given. */
int ap_layer_parameter_mode(const ap_layer_node_t *node, int strategy, int parameter,
                            const ap_layer_weights_t *weights);

/* How a strategy has the parameter that ties apply to: its spec, and in the bits of
 * ap_layer_seen_partial() the axes over which its gradient is partial. */
uint64_t ap_layer_tied_view(const ap_layer_node_t *node, int strategy);

/* All of a strategy's parts, with the best modes. */
ap_parts_t ap_layer_strategy_parts(const ap_layer_node_t *node, int strategy,
                                   const ap_layer_weights_t *weights);

/* Parts of resharding along an edge. */
ap_parts_t ap_layer_edge_parts(const ap_layer_edge_t *edge, int from_class, int to_class);

/* Parts of a whole layer: boundary specs by index, a strategy for every node. */
ap_parts_t ap_layer_assignment_parts(const ap_layer_problem_t *problem,
                                     const ap_layer_weights_t *weights, int in, int out,
                                     const int *strategies);

/* The exact table of a layer. */
typedef struct ap_layer_table {
    int in_count, out_count;
    double *cost;      /* [in][out], weighted */
    ap_parts_t *parts; /* [in][out] of the plan behind it */
} ap_layer_table_t;

/* It lies in the problem's arena. */
xm_status_t ap_layer_problem_solve(const ap_layer_problem_t *problem,
                                   const ap_layer_weights_t *weights, ap_layer_table_t **table);

/* The strategy of every node behind one cell of the table. */
xm_status_t ap_layer_problem_trace(const ap_layer_problem_t *problem,
                                   const ap_layer_weights_t *weights, int in, int out,
                                   int *strategies);
