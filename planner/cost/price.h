/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file price.h
 * The one price of an operator's strategy on a mesh: computation, collectives, the synchronisation
 * of gradients, and how often all of it runs. Stages and whole graphs are planned by it alike, so
 * that equal plans cost the same wherever they come from.
 *
 * Seconds of all runs in a micro-batch, or, where it says so, once per iteration. A collective over
 * several axes is the cheapest of its hierarchical forms (ap_cost_collective_over()).
 *
 * Threads: immutable.
 */
#pragma once

#include "planner/cost/strategy.h"

/** An operator of a graph on a mesh. */
typedef struct ap_priced_op {
    const ap_graph_t *graph;
    const ap_op_t *op;
    ap_strategy_context_t site;
    double state_bytes; /**< the optimizer's, per element of a parameter that is updated */
} ap_priced_op_t;

ap_priced_op_t ap_price_op(const ap_graph_t *graph, const ap_cost_mesh_t *mesh, int op,
                           double state_bytes);

/** Bytes that one device reads and writes in one run; an update's include the optimizer's state. */
double ap_price_bytes(const ap_priced_op_t *op, const ap_strategy_t *strategy);

double ap_price_compute(const ap_priced_op_t *op, const ap_strategy_t *strategy);

/** One collective of a strategy; of a parameter's gradient, the part that does not hide behind the
 * backward pass, once per iteration; of the loss over one axis nothing: the gradients' sum over
 * that axis takes it along, if there is one, as nearly always. */
double ap_price_collective(const ap_priced_op_t *op, const ap_collective_t *on);

/** All of it: what runs in each micro-batch, and what runs once per iteration. */
void ap_price_strategy(const ap_priced_op_t *op, const ap_strategy_t *strategy, double *micro_batch,
                       double *iteration);

/** Whether a term of an operator is the gradient of a parameter: communicated once per iteration.
 */
bool ap_price_is_parameter_gradient(const ap_graph_t *graph, const ap_op_t *op, int term);

/**
 * Whether what a term's collectives give is needed once an iteration only: the gradient of a
 * parameter; a number that the loss is the sum of, or linear in, and nothing else reads, as no
 * pass waits for the loss. Graphs of training steps whose backward pass was not derived here say
 * nothing of which numbers these are.
 */
bool ap_price_is_once(const ap_graph_t *graph, const ap_op_t *op, int term);

/** Whether an operator updates a parameter, and so reads and writes optimizer state. */
bool ap_price_updates_parameter(const ap_graph_t *graph, const ap_op_t *op);

/** How often a tensor is resharded for an operator that reads it: in a loop in each run, unless it
 * comes from outside. */
double ap_price_reshard_runs(const ap_graph_t *graph, int tensor, const ap_op_t *reader);

/** A parameter on the devices that its reader's strategy gives it to. */
typedef struct ap_price_parameter {
    double reduce, scatter;     /**< of its gradient, once per iteration, as a collective's */
    double gather;              /**< of the weight, once */
    double update, update_part; /**< of the whole, and of what is left after scattering */
} ap_price_parameter_t;

/** @p operand of @p op is the parameter, whose gradient is partial over the axes @p partial. */
ap_price_parameter_t ap_price_parameter(const ap_priced_op_t *op, int operand, ap_spec_t spec,
                                        unsigned partial);

/** The sum of two gradients of a tensor with several readers, under the tensor's spec. */
double ap_price_gradient_sum(const ap_graph_t *graph, const ap_cost_mesh_t *mesh, int tensor,
                             ap_spec_t spec);
