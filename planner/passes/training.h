/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file training.h
 * From a forward graph to the training step: backward and update phases derived from the rules.
 *
 * Every backward operator uses the factors of its forward operator under the same letters, and
 * names it in `forward`: the backward of the einsum "bk,kn->bn" is "bn,kn->bk" and "bn,bk->kn". So
 * one assignment of mesh axes to factors shards an operator's whole part of the training step.
 *
 *  - einsum: one einsum per operand that needs a gradient;
 *  - elementwise: the result's gradient itself when linear, else one operator on it and the saved
 *    operands; a broadcast operand sums over what it lacks;
 *  - layer norm: one operator for the gradients of input, scale and shift; softmax, cross entropy
 * and embedding: one operator; split: a concatenation; reduce and reshape: the reverse movement,
 * for each operand, which touches nothing where forward nothing is touched;
 *  - custom: per operand one operator on the gradient of the first result that has one and, unless
 * linear, on the operands, with as many FLOPs as forward.
 *
 * Tensors of whole numbers have no gradient.
 *
 * A loss that is declared the gradient of another tensor (ap_graph_set_gradient()) starts the
 * backward pass there: what lies between the two is not differentiated again.
 *
 * Gradients of a tensor with several users are summed by elementwise operators without `forward`;
 * updates have none either. The scalar loss stands for its own gradient 1.
 */
#pragma once

#include <autopar/frontend.h>

#include "planner/graph.h"

/**
 * Makes the training step of a finished forward graph that names a loss. Tensor and operator ids of
 * the forward graph stay what they are. Refused: no loss, a gradient that cannot be derived.
 */
xm_status_t ap_training_expand(const ap_graph_t *forward, ap_optimizer_t optimizer,
                               ap_graph_t **training);

/**
 * Bytes per parameter element that live as long as the model besides the weight and its gradient:
 * none for SGD; two moments in 32 bits for Adam, and a 32-bit master copy when the weight has 16.
 */
double ap_training_state_bytes(ap_optimizer_t optimizer, ap_dtype_t dtype);

/** The share that one more version of the parameters has of a stage's state, weights, gradients and
 * Adam's: the largest over the types of the graph's parameters. */
double ap_training_version_share(const ap_graph_t *graph);

/** Why no training step is derived from a graph, in words that follow its name; NULL: one is. */
const char *ap_frontend_untrainable(const ap_graph_t *graph);
