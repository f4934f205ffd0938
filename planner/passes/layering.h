/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file layering.h
 * Gives a forward graph its layers: what pipeline stages are made of.
 *
 * Layers begin where one tensor passes that has dimensions: in a transformer before and after each
 * residual block. Where that leaves more than half of the work in one part, as in a U-Net, whose
 * skipped tensors pass everywhere, they begin also where several do. Layers are intervals of the
 * operators in the order in which the loss needs them, so any of these cuts is a convex one. Where
 * layers begin is told by the caller, by a pattern that names operators, or found:
 *
 *  - a number of layers: the cheapest cuts of that many (operator_clustering.h). Layers have at
 * most half more FLOPs than the mean, or what cannot be cut, and, but for the ends, three products
 * of matrices; what the model does not allow of this is given up;
 *  - none (automatic): of the numbers that keep to those rules, the one with the fewest different
 *    layers for its number and the evenest FLOPs, so that repeated blocks become layers; of equals
 *    the largest. Without any it is one layer.
 *
 * What is computed from data alone or from weights alone (masks, one-hot labels, a weight in other
 * types) passes no boundary: every layer that needs it computes it. A weight that is used in one
 * other form only (cast, transposed) is taken in that form. Threads: no shared state.
 *
 * @code
 *     ap_layering_t how = AP_LAYERING_INIT;
 *     how.pattern = "layers[./_]([0-9]+)";     // flax, PyTorch, …: one layer per number
 *     status = ap_layering_apply(forward, &how, &layered, &info);
 * @endcode
 */
#pragma once

#include <autopar/graph.h>

#include "planner/graph.h"

/** What came out. */
typedef struct ap_layering_info {
    int layers;
    int distinct;         /**< layers that differ from each other */
    int places;           /**< where one tensor passes */
    double largest_bytes; /**< of the tensors that pass from layer to layer */
    double sum_bytes;
    double imbalance; /**< FLOPs of the largest layer over the mean */
} ap_layering_info_t;

/**
 * Makes a finished graph with layers of a finished forward graph that names its loss; layers that
 * it has are forgotten. @p info may be NULL. XM_ERR_NO_SOLUTION: the model has fewer places to cut,
 * or a mark stands where not one tensor passes; XM_ERR_INVALID_ARGUMENT: a pattern that is none, a
 * mark of no operator.
 */
xm_status_t ap_layering_apply(const ap_graph_t *forward, const ap_layering_t *how,
                              ap_graph_t **layered, ap_layering_info_t *info);

/** Describes a graph that has layers; `places` is not known then, and 0. */
void ap_layering_describe(const ap_graph_t *graph, ap_layering_info_t *info);
