/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/frontend/hlo/attribute.h
 * What the attributes of an instruction say, read when a rule asks.
 */
#pragma once

#include "planner/frontend/hlo/module.h"

enum { OPERATOR_MAX_LIST = 16 };

typedef struct hlo_list {
    int count;
    int64_t values[OPERATOR_MAX_LIST];
} hlo_list_t;

/** One dimension of a window: its size and whether it looks at nothing but its own place. */
typedef struct hlo_window {
    int rank;
    int64_t size[AP_MAX_RANK];
    int64_t spread[AP_MAX_RANK]; /**< lhs_dilate: one place of so many holds data */
    bool trivial[AP_MAX_RANK];   /**< size 1, stride 1, no padding, no dilation */
} hlo_window_t;

/** Where a convolution keeps what: dimension numbers of batch, feature and the spatial ones. */
typedef struct hlo_conv_dims {
    int spatial;
    int lhs[2], rhs[2], out[2]; /**< batch and feature; of rhs: input and output feature */
    int lhs_spatial[AP_MAX_RANK], rhs_spatial[AP_MAX_RANK], out_spatial[AP_MAX_RANK];
} hlo_conv_dims_t;

/** Value of an attribute, without the quotes of a string; length 0 when it is not there. */
hlo_slice_t hlo_attribute(const hlo_instruction_t *of, const char *key);
/** A value inside `metadata={…}`, such as op_name. */
hlo_slice_t hlo_metadata(const hlo_module_t *module, const hlo_instruction_t *of, const char *key);

/**
 * A list such as {0,2}; empty when the attribute is missing. Each entry must be in 0 … @p limit - 1
 * and come once; with a limit below 0 they are any numbers not below 0.
 */
xm_status_t hlo_attribute_dims(const hlo_module_t *module, const hlo_instruction_t *of,
                               const char *key, int limit, hlo_list_t *list);
/** A number; @p otherwise when the attribute is missing. */
xm_status_t hlo_attribute_number(const hlo_module_t *module, const hlo_instruction_t *of,
                                 const char *key, int64_t otherwise, int64_t *value);
bool hlo_list_has(const hlo_list_t *list, int64_t value);

/** `window={size=3x3 stride=2x2 pad=1_1x1_1 …}` */
xm_status_t hlo_attribute_window(const hlo_module_t *module, const hlo_instruction_t *of,
                                 hlo_window_t *window);

/** `dim_labels=b01f_01io->b01f` */
xm_status_t hlo_attribute_conv_dims(const hlo_module_t *module, const hlo_instruction_t *of,
                                    hlo_conv_dims_t *dims);

/** The computation that an attribute names. Refused when there is none. */
xm_status_t hlo_attribute_computation(const hlo_module_t *module, const hlo_instruction_t *of,
                                      const char *key, int *computation);
