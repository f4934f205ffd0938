/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tensor_list.h
 * The tensors of a model: names, shapes and element sizes, in the order of the model's file.
 *
 * Names follow the usual hierarchy of modules, parts joined by dots. Two numbers in them matter: a
 * layer's, after a part "layers", "layer", "blocks" or "h", and an expert's, after "experts".
 */
#pragma once

#include <stdint.h>

#include "comm/base.h"
#include "resharding/layout.h"

/** Longest name of a tensor, with the terminator. */
enum { RB_TENSOR_NAME = 128 };

typedef struct rb_tensor {
    char name[RB_TENSOR_NAME];
    int dims;
    int64_t shape[XM_MAX_DIMS];
    int bits; /**< of one element */
} rb_tensor_t;

/** Zero-initialise. */
typedef struct rb_tensor_list {
    rb_tensor_t *tensors;
    int count;
    size_t room;
    int64_t head_size; /**< rows of q_proj, k_proj and v_proj that make one head; 0: unknown */
} rb_tensor_list_t;

/** Appends a copy. Fails when the tensor has more than 2^62 elements. */
xm_status_t rb_tensor_list_add(rb_tensor_list_t *list, const rb_tensor_t *tensor);

void rb_tensor_list_clear(rb_tensor_list_t *list);

int64_t rb_tensor_elements(const rb_tensor_t *tensor);

/** Elements and bytes of all tensors; fails when a sum passes 2^62. */
xm_status_t rb_tensor_list_totals(const rb_tensor_list_t *list, int64_t *elements, uint64_t *bytes);

/** Number of the layer, or of the expert, in a name; −1 when there is none. */
int rb_tensor_layer(const char *name);
int rb_tensor_expert(const char *name);

/** Highest layer number plus one, and highest expert number plus one. */
int rb_tensor_list_layers(const rb_tensor_list_t *list);
int rb_tensor_list_experts(const rb_tensor_list_t *list);

/**
 * Makes a small model of the same structure: every extent is divided by @p scale (rounded up), and
 * only the first layers stay, a scale-th of them (rounded up) but at least @p min_layers. Experts
 * and heads stay as many as they were. Fails when the scale does not divide the head size.
 */
xm_status_t rb_tensor_list_scale(rb_tensor_list_t *list, int64_t scale, int min_layers);
