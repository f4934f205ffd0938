/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file passing.h
 * What passes from one stage to a later one: to the next the boundary, and to any the tensors of
 * which it reads the resting copy. The search and whoever builds its plan ask the same question, so
 * that a plan takes what it was chosen for.
 *
 * @code
 *     status = ap_passing_open(graph, &arena, &passing);
 *     if (status == XM_OK) {
 *         ap_passing_between(&passing, &from, &to, true);
 *         status = ap_cross_mesh_cost(cross_mesh, &passing.transfer, &cost);
 *     }
 *     xm_arena_clear(&arena);
 * @endcode
 *
 * Threads: one at a time per object. Not installed.
 */
#pragma once

#include "planner/boundary.h"

/** A stage as others see it. */
typedef struct ap_passing_stage {
    int first_layer, last_layer;
    ap_cross_mesh_side_t side;
    ap_spec_t input, output; /**< of its boundaries */
    unsigned batch_axes;     /**< which its resting copies are cut over */
} ap_passing_stage_t;

typedef struct ap_passing {
    const ap_graph_t *graph;
    ap_cross_mesh_transfer_t transfer; /**< what was asked for last; without tensors: nothing */
    int *ids;                          /**< of its tensors in the graph */
    ap_cross_mesh_tensor_t *tensors;   /**< with room for all that can pass */
    int *resting;                      /**< scratch */
} ap_passing_t;

/** Makes room in the arena. */
xm_status_t ap_passing_open(const ap_graph_t *graph, xm_arena_t *arena, ap_passing_t *passing);

/** Lists what passes; @p neighbours: the boundary is a part of it. */
void ap_passing_between(ap_passing_t *passing, const ap_passing_stage_t *from,
                        const ap_passing_stage_t *to, bool neighbours);
