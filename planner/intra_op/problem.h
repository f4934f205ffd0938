/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/intra_op/problem.h
 * A whole operator graph on one logical mesh as an intra-operator problem: every operator, input
 * and parameter is a node of its own, forward, backward and update alike (Alpa, OSDI'22, section
 * 4).
 *
 * Nodes: an input or parameter has one strategy per spec that divides; an operator those of its
 * rule (strategy.h). Node costs: the compute and collectives of the strategy, and the replication
 * penalty of the cost model; a gradient's collectives count once per iteration. Edges: resharding
 * from the spec a tensor is made in to the spec it is used in; a tensor that takes over another's
 * storage (new_w of w) is resharded to the spec of that. Under the alpa model it must have that
 * spec, every axis must cut an einsum (no repeated work), partial results are all-reduced, and
 * forced data parallelism keeps parameters replicated.
 *
 * Ownership: graph and mesh are borrowed and must outlive the problem. Threads: immutable.
 */
#pragma once

#include "planner/cost.h"
#include "planner/graph.h"

typedef struct ap_shard_problem ap_shard_problem_t;

/**
 * Narrows what is chosen from. Of each operator's strategies and each input's or parameter's specs
 * those are kept that have the highest rank; 0 refuses.
 */
typedef struct ap_shard_filter {
    const void *arg;
    /** Operators of one kind and rule are ranked alike. */
    int (*kind)(const void *arg, const ap_graph_t *graph, const ap_op_t *op);
    int (*op)(const void *arg, const ap_graph_t *graph, const ap_op_t *op,
              const ap_strategy_t *strategy);
    int (*tensor)(const void *arg, const ap_tensor_t *tensor, ap_spec_t spec);
} ap_shard_filter_t;

typedef struct ap_shard_params {
    const ap_graph_t *graph; /**< finished; usually the training step */
    const ap_cost_mesh_t *mesh;
    const ap_shard_filter_t *filter; /**< or NULL; under the alpa model it lets partial results be
                                        scattered and axes repeat work */
    int micro_batches;               /**< per-iteration costs are divided by it; 0 = 1 */
    double state_bytes; /**< per parameter element besides weight and gradient, see training.h */
} ap_shard_params_t;

#define AP_SHARD_PARAMS_INIT                                                                       \
    {                                                                                              \
        0                                                                                          \
    }

xm_status_t ap_shard_problem_create(const ap_shard_params_t *params, ap_shard_problem_t **problem);

/** Operators, inputs and parameters; the strategies of each are numbered from 0. */
int ap_shard_problem_nodes(const ap_shard_problem_t *problem);

/** Operator of a node, -1 for an input or parameter. */
int ap_shard_problem_node_op(const ap_shard_problem_t *problem, int node);

/** What a node is, e.g. "h1", and a strategy of it, e.g. "S0R,RR->S0R {b:0}". */
const char *ap_shard_problem_node_name(const ap_shard_problem_t *problem, int node);
char *ap_shard_problem_strategy(const ap_shard_problem_t *problem, int node, int strategy,
                                char *buffer, size_t size);

/** The mesh axes that some strategy of some operator cuts; the others are of no use to it. */
unsigned ap_shard_problem_axes(const ap_shard_problem_t *problem);

/** What the problem was made of. */
const ap_shard_params_t *ap_shard_problem_params(const ap_shard_problem_t *problem);

/** The strategy of an operator under a choice. */
const ap_strategy_t *ap_shard_problem_op_strategy(const ap_shard_problem_t *problem,
                                                  const int *choice, int op);

/** Spec that a tensor is made in by a choice of strategies. */
ap_spec_t ap_shard_problem_spec(const ap_shard_problem_t *problem, const int *choice, int tensor);

/**
 * How a parameter of the model is kept: 0 all of it wherever it is used; 1 its optimizer state is
 * sharded further than the parameter; 2 its gradient too; 3 the parameter itself is gathered before
 * it is used. (The stages of ZeRO.) -1: not a parameter, or not updated.
 */
int ap_shard_problem_zero_stage(const ap_shard_problem_t *p, const int *choice, int tensor);

void ap_shard_problem_destroy(ap_shard_problem_t *problem);
