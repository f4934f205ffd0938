/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/like/template.h
 * Tensor parallelism as it is called by the number of its dimensions: which axis of a mesh cuts
 * what in the product of activations (rows x inner) and weights (inner x columns), in the same way
 * when it runs forward and for both of its gradients. Everything else is the solver's choice.
 *
 *  - 1d, Megatron's: the axis cuts inner or columns;
 *  - 2d, Optimus' SUMMA: rows, then columns, and everything is kept cut by both axes;
 *  - 2.5d, Tesseract's: a depth that cuts rows and repeats weights, then as 2d;
 *  - 3d, of Bian and others: inner and columns, which change places from one product to the next,
 *    then rows, and everything is kept cut by all axes. Sums are scattered into a dimension that
 *    no later axis cuts: activations need one besides the batch, such as the sequence.
 *
 * SUMMA's broadcasts, one after the other, move what an all-gather moves, so operands are gathered.
 */
#pragma once

#include "planner/intra_op.h"

typedef enum ap_like_template {
    AP_TEMPLATE_1D,
    AP_TEMPLATE_2D,
    AP_TEMPLATE_25D,
    AP_TEMPLATE_3D
} ap_like_template_t;

/** What of a problem the template leaves to choose from. */
typedef struct ap_like_template_filter {
    ap_shard_filter_t filter;
    ap_like_template_t template;
    unsigned axes; /**< those of more than one device */
} ap_like_template_filter_t;

/** Refuses a mesh of another number of axes. The result is not moved: the filter points to it. */
xm_status_t ap_like_template_open(ap_like_template_t template, const ap_cost_mesh_t *mesh,
                                  ap_like_template_filter_t *opened);
