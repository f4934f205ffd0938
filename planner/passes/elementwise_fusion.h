/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file elementwise_fusion.h
 * Fuses element-wise operators of a forward graph as compilers do: so that what is kept for the
 * backward pass is what a fused kernel reads, and a plan decides once for what runs as one.
 *
 * An element-wise operator that only one other of the same size and layer uses becomes part of it,
 * and what spreads a smaller tensor over more dimensions becomes part of every element-wise
 * operator that uses it, as long as the whole reads at most four tensors. The new operator is
 * called as the last of its parts, has the FLOPs of all, and is linear where all are. Results that
 * pass to other layers, the loss and what it is the gradient of stay as they are. Equal layers stay
 * equal.
 *
 * Threads: no shared state. Not installed.
 */
#pragma once

#include "planner/graph.h"

/** Makes a finished graph of a finished forward graph that names its loss; layers are kept. */
xm_status_t ap_elementwise_fuse(const ap_graph_t *forward, ap_graph_t **fused);
