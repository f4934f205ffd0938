/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file layout_pool.h
 * Layouts made once and shared: the tensors of a model have few different ones.
 */
#pragma once

#include "resharding/layout.h"

/**
 * A layout to be: a mesh of ranks first + Σ coordinate × stride, a spec and a shape. Zero what is
 * not set, so that equal ones compare equal.
 */
typedef struct rb_layout_key {
    int64_t shape[XM_MAX_DIMS];
    int64_t block; /**< dimension 0 is cut between blocks of so many rows; 0: anywhere */
    int first;
    int axes;
    int size[XM_MAX_AXES], stride[XM_MAX_AXES];
    xm_spec_t spec;
} rb_layout_key_t;

typedef struct rb_layout_pool rb_layout_pool_t;

xm_status_t rb_layout_pool_create(rb_layout_pool_t **pool);

/**
 * The layout of a key, made when it is new. Cut evenly where that divides, else in torch's chunks;
 * with a block, the first axis of dimension 0 deals whole blocks, the first ranks one more, and
 * further axes cut what it gave them in chunks. The pool owns the layout.
 */
xm_status_t rb_layout_pool_get(rb_layout_pool_t *pool, const rb_layout_key_t *key,
                               const xm_layout_t **layout);

/** Destroys the layouts too. NULL is accepted. */
void rb_layout_pool_destroy(rb_layout_pool_t *pool);
