/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file forward_pass.h
 * The forward pass of a model, whatever its graph holds: what stages are planned from.
 *
 * A graph with a loss (built-in models, ONNX, JSON) has its forward pass in what the loss is
 * computed from. A whole training step, as JAX lowers one, names no loss, and need not even have it
 * among its results. Its structure tells: the new value of every weight is a pointwise function of
 * a gradient (step.h); everything of the forward pass has a part in all gradients, for they all
 * follow from the loss, and nothing of the backward pass behind the first weight does. So the last
 * operator that all gradients depend on is where the backward pass starts. Where the operators from
 * the last one with weights to this one keep the shape (logits and their gradient, an output and
 * its error), the latter is declared the gradient of the former, and the derived training step
 * (training.h) starts there.
 *
 * What is found proves itself: all weights that the step updates are in it, and the FLOPs of the
 * step's products are those of this pass, of a backward pass of it, of products computed again and
 * of the optimizer, but for 5 %. If not, the step is refused with what is missing. Marks of
 * differentiation in operator names are not needed. Refused: a model with several losses for
 * separate weights. Threads: no shared state.
 */
#pragma once

#include "planner/graph.h"

/** What a step is seen to do beside; all 0 where a loss is named. */
typedef struct ap_forward_info {
    double again;  /**< FLOPs of the forward products that are computed again for the backward pass,
                      over those of all forward products */
    double update; /**< FLOPs of the optimizer's own products over those of all products */
    int untrained; /**< weights that the step uses and gives back as they were */
} ap_forward_info_t;

/**
 * Makes the forward pass as a finished graph that names its loss. Where the graph has layers,
 * operators keep theirs and their order; otherwise each comes right before what needs it. What does
 * not lead to the loss is left out. XM_ERR_UNSUPPORTED, in a sentence: a graph that trains nothing,
 * or whose forward pass cannot be told. @p info may be NULL.
 */
xm_status_t ap_forward_pass(const ap_graph_t *graph, ap_graph_t **forward, ap_forward_info_t *info);
