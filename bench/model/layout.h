/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bench/model/layout.h
 * Where a tensor of a model lies on one side's ranks.
 *
 * A tensor of layer l of L lies on pipeline stage l × pp / L, others on the first or last stage as
 * the sharding table says. Within the stage it is split over tp as the table says, and over fsdp
 * along dimension 0 (inside what tp leaves of it, as torch's FSDP does); it is replicated along the
 * other axes. docs/model-suite.md draws the meshes.
 */
#pragma once

#include "bench/model/layout_pool.h"
#include "bench/model/sharding.h"
#include "bench/model/parallel_config.h"

/** What the placement of one tensor depends on besides its entry in the table. */
typedef struct rb_model_frame {
    int layers;        /**< of the whole model */
    int experts;       /**< with numbers in their names */
    int64_t head_size; /**< 0: unknown, heads are not looked at */
} rb_model_frame_t;

/**
 * The layout of @p tensor on the ranks @p first_rank … of a resolved @p side. Fails when heads
 * cannot be dealt to the tp ranks, or experts to the ep ranks, whole.
 */
xm_status_t rb_model_layout(rb_layout_pool_t *pool, const rb_parallel_t *side, int first_rank,
                            const rb_model_frame_t *frame, const rb_tensor_t *tensor,
                            const rb_shard_rule_t *rule, const xm_layout_t **layout);
