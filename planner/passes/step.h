/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file step.h
 * What a whole training step updates, told from its flow of data: weights and their gradients.
 *
 * A *new value* is what takes over the storage of a parameter. A *weight* has a part in most new
 * values by ways that are more than pointwise, for all gradients follow from the loss; an
 * optimizer's state or a running mean has not. Single numbers (a step count, a common norm that
 * gradients are clipped by, a flag for overflow) tie everything to everything, so these ways do not
 * lead through them, unless the caller says so: the derivative of some losses is a single number.
 *
 * The *gradient* of a weight is what its new value is a pointwise function of, followed back to
 * where it is made otherwise (a product, a sum over the batch, a scatter), or from what other
 * weights' new values need as well. No sizes are compared. Threads: no shared state.
 */
#pragma once

#include "planner/graph.h"

typedef struct ap_step {
    const ap_graph_t *graph;
    int ops, tensors;
    bool *weight;   /**< per tensor: a weight that the step updates */
    bool *retaught; /**< per tensor: a parameter that is no weight, but has more than a pointwise
                       part in its own new value */
    int weights;
    int *target; /**< per tensor: number of the gradient it is, -1: none */
    int targets;
    xm_arena_t arena;
} ap_step_t;

/** @p numbers: ways lead through single numbers. Without any weight `weights` is 0. */
xm_status_t ap_step_find(const ap_graph_t *graph, bool numbers, ap_step_t *step);

/** An all-zero step is accepted. */
void ap_step_clear(ap_step_t *step);

/** FLOPs of a step's products. */
typedef struct ap_step_flops {
    double all;
    double forward;
    double expected; /**< of a backward pass: a product for each operand that needs a gradient */
    double backward; /**< between the end of the forward pass and the gradients */
    double again;    /**< for the gradients, but not from the end: the forward pass once more */
    double update;   /**< behind the gradients */
    double beside;   /**< all others */
} ap_step_flops_t;

/** Says where a step's FLOPs are; @p forward per operator. What is computed from @p output up to
 * @p end is not differentiated again; -1: all is. */
xm_status_t ap_step_account(const ap_step_t *step, const bool *forward, int end, int output,
                            ap_step_flops_t *flops);
