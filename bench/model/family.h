/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bench/model/family.h
 * Tensor lists of model families, from the sizes that their public configurations give
 * (docs/model-suite.md lists the sizes and where they are from). Names are those of the published
 * checkpoints.
 */
#pragma once

#include "bench/model/tensor_list.h"

typedef enum rb_family {
    RB_FAMILY_7B,   /**< Llama-2-7B */
    RB_FAMILY_32B,  /**< Qwen3-32B */
    RB_FAMILY_70B,  /**< Llama-3-70B */
    RB_FAMILY_256E, /**< DeepSeek-V3, without its multi-token prediction module */
    RB_FAMILY_4B,   /**< Qwen3-4B */
    RB_FAMILY_30B,  /**< Qwen3-30B-A3B */
    RB_FAMILY_235B, /**< Qwen3-235B-A22B */
    RB_FAMILY_COUNT
} rb_family_t;

/** Fills the zero-initialised @p list, which the caller clears. */
xm_status_t rb_model_family(rb_family_t family, rb_tensor_list_t *list);
