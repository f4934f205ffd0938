/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bench/model/file.h
 * A tensor list from a JSON file: {"name": {"shape": [rows, columns], "dtype": "BF16"}, …}, the
 * form of nccl_m2n's model configurations and of safetensors headers (docs/model-suite.md).
 */
#pragma once

#include "bench/model/tensor_list.h"

/**
 * Fills the zero-initialised @p list, which the caller clears, in the file's order. The head size
 * is that of the first q_norm when it is smaller than the q_proj that it belongs to, else unknown.
 */
xm_status_t rb_model_file_read(const char *path, rb_tensor_list_t *list);

/** Bits of an element of a type such as "BF16", "F8_E4M3", "I4" or "torch.bfloat16"; unknown names
 * fail with the nearest match. */
xm_status_t rb_model_dtype_bits(const char *name, int *bits);
