/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file forward_pass.h
 * The forward pass of a model, whatever its graph holds: what stages are planned from.
 *
 * A graph with a loss (built-in models, ONNX, JSON) has its forward pass in what the loss is
 * computed from. A whole training step, as JAX lowers one, names no loss, and need not even have it
 * among its results. Its structure tells: the new value of every weight is made, operator by
 * operator of the weight's size, from the old one and a gradient; everything of the forward pass
 * has a part in all gradients, for they all follow from the loss, and nothing of the backward pass
 * behind the first weight does. So the last operator that all gradients depend on is where the
 * backward pass starts. Where the operators from the last one with weights to this one keep the
 * shape (logits and their gradient, an output and its error), the latter is declared the gradient
 * of the former, and the derived training step (training.h) starts there.
 *
 * Marks of differentiation in operator names are not needed. Not told apart: a model with several
 * losses for separate weights. Threads: no shared state.
 */
#pragma once

#include "planner/graph.h"

/**
 * Makes the forward pass as a finished graph that names its loss. Where the graph has layers,
 * operators keep theirs and their order; otherwise each comes right before what needs it. What does
 * not lead to the loss is left out. XM_ERR_UNSUPPORTED, in a sentence: a graph that trains nothing,
 * or whose forward pass cannot be told.
 */
xm_status_t ap_forward_pass(const ap_graph_t *graph, ap_graph_t **forward);
