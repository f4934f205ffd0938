/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/graph/batch.h
 * A graph with another number of samples: so that a model file, which was written for one batch,
 * can be planned in micro-batches of any size, as models that are made on demand can.
 */
#pragma once

#include "planner/graph/graph.h"

/**
 * The forward pass @p graph, whose inputs have @p from samples as their first dimension, with
 * @p to samples: every dimension that holds the batch, alone or with others, and the FLOPs of what
 * runs over it change in proportion. All else stays, so layers and operators keep their numbers.
 *
 * XM_ERR_UNSUPPORTED with the operator in the sentence where the batch is lost track of: a
 * dimension of it that no factor of the operator's rule carries, one of a weight, or a second one
 * in a tensor. Inputs without that first dimension (positions, masks) do not change.
 */
xm_status_t ap_graph_with_batch(const ap_graph_t *graph, int64_t from, int64_t to,
                                ap_graph_t **made);
