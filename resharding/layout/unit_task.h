/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file unit_task.h
 * Unit communication tasks: the slices of the common refinement of two layouts, each with its
 * holders and its receivers.
 *
 * Along every dimension the cut points of source and destination are merged; a slice is a box
 * between merged cuts. So each slice lies in exactly one source tile and one destination tile, is
 * the common part of the two, slices are disjoint, and together they are the tensor. The work is
 * proportional to the number of slices (only non-empty intersections are visited, there is no loop
 * over source × destination tiles).
 *
 * The holders of a slice are the replicas of its source tile, its receivers the replicas of its
 * destination tile. Tasks come in the paper's order: by destination tile, then by source slice
 * within it. Plain values. Source: MLSys'23 section 3.1 (decomposition into unit tasks).
 */
#pragma once

#include "resharding/layout/layout.h"

typedef struct xm_unit_task {
    int tensor;       /**< index in the batch */
    int src_tile;     /**< of the source layout: xm_layout_replicas() gives the holders */
    int dst_tile;     /**< of the destination layout: xm_layout_replicas() gives the receivers */
    int64_t elements; /**< at least 1 */
} xm_unit_task_t;

/** The box of a task of these two layouts: global indices. */
void xm_unit_task_box(const xm_layout_t *src, const xm_layout_t *dst, const xm_unit_task_t *task,
                      xm_box_t *box);

/**
 * Lists the unit tasks of one tensor's resharding, with index @p tensor, into a malloc'ed array the
 * caller frees (NULL when the tensor is empty). Fails when the two layouts' tensors differ in
 * shape, naming the dimension and both extents.
 */
xm_status_t xm_unit_tasks_create(const xm_layout_t *src, const xm_layout_t *dst, int tensor,
                                 xm_unit_task_t **tasks, int64_t *count);
