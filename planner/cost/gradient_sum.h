/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Gradients that are added up. A tensor with several readers gets a gradient from each; where those
 * are partial sums over the same axes, they are added first and reduced once.
 */
#pragma once

#include "planner/cost/price.h"

/* How a strategy sums a result: the spec at the end, the axes that it was partial over, those of
 * them that are all-reduced (others are reduce-scattered), and what that takes. */
typedef struct ap_reduction {
    ap_spec_t spec;
    unsigned partial, whole;
    double seconds;
} ap_reduction_t;

ap_reduction_t ap_reduction_of(const ap_priced_op_t *op, const ap_strategy_t *strategy, int term);
bool ap_reduction_equal(const ap_reduction_t *a, const ap_reduction_t *b);

/* The tensor two of whose gradients an operator adds; -1: it is no such sum. */
int ap_gradient_sum_of(const ap_graph_t *graph, int op);

/* Per tensor of a graph: the last of the sums that add it and no one else reads, or -1. The caller
 * frees the array. */
xm_status_t ap_gradient_sums_find(const ap_graph_t *graph, int **sum_of);
