/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file model.h
 * A whole model between its training and its serving mesh: every tensor with the layout it has on
 * the training ranks and the one it is to get on the serving ranks.
 *
 * Training ranks are 0 … src_ranks − 1, serving ranks follow. The model comes from a built-in case
 * (its tensors, its meshes) or from files; docs/model-suite.md describes both.
 *
 * @code
 *     rb_model_request_t request = {.name = "dense-32b", .scale = 64, .packed = true};
 *     rb_model_t *model;
 *     xm_status_t status = rb_model_load(&request, &model);
 *     for (int i = 0; status == XM_OK && i < model->count; ++i) {
 *         use(model->tensors[i].src, model->tensors[i].dst);
 *     }
 * @endcode
 *
 * Packed parameters. A serving engine keeps q_proj, k_proj and v_proj of a layer as one parameter
 * qkv_proj, in which each rank has its rows of q, then its rows of k, then those of v; likewise
 * gate_proj and up_proj. Which global rows these are differs from rank to rank, so the whole has no
 * cut points of its own. It stays several tensors here, each of which says where in the rank's
 * buffer its tile starts.
 */
#pragma once

#include <stdbool.h>

#include "bench/model/file.h"
#include "bench/model/layout_pool.h"
#include "bench/model/sharding.h"
#include "bench/model/parallel_config.h"

typedef struct rb_model_request {
    const char *name;           /**< a built-in case, or NULL with model_config */
    const char *model_config;   /**< JSON file with the tensors */
    const char *system_config;  /**< JSON file with both meshes; NULL: those of the case */
    const char *shard_table;    /**< JSON file with entries before the built-in ones, or NULL */
    int64_t scale;              /**< divides extents and layers (tensor_list.h); 0 means 1 */
    bool packed;                /**< serving keeps packed parameters */
    const rb_parallel_t *train; /**< instead of system_config, both or none; resolved by the call */
    const rb_parallel_t *generation;
} rb_model_request_t;

typedef struct rb_model_tensor {
    char name[RB_TENSOR_NAME];
    const xm_layout_t *src, *dst; /**< the model's; equal ones are one object */
    int element_bits;
    int group; /**< packed parameter that it is part of, or −1 */
} rb_model_tensor_t;

/** A packed parameter. */
typedef struct rb_model_group {
    char name[RB_TENSOR_NAME];
    int parts;
    int tensors[RB_MAX_PARTS]; /**< in their order in the buffer */
} rb_model_group_t;

typedef struct rb_model {
    const char *source; /**< the case's name or the file's path, as in the request */
    rb_model_tensor_t *tensors;
    int count;
    rb_model_group_t *groups;
    int group_count;
    int64_t elements; /**< of all tensors, each once */
    uint64_t bytes;
    rb_parallel_t train, generation;
    int src_ranks, dst_ranks;
    rb_layout_pool_t *layouts;
} rb_model_t;

/**
 * Makes a model. The request's strings must outlive it. Fails with the file, tensor, entry and
 * numbers that are wrong.
 */
xm_status_t rb_model_load(const rb_model_request_t *request, rb_model_t **model);

/** NULL is accepted. */
void rb_model_destroy(rb_model_t *model);

/** Byte at which the tile of tensor @p index starts in serving rank @p rank's buffer of its packed
 * parameter; 0 for a tensor that is not packed. */
uint64_t rb_model_packed_offset(const rb_model_t *model, int index, int rank);

/** Bytes of that buffer for a packed parameter. */
uint64_t rb_model_group_bytes(const rb_model_t *model, int group, int rank);

/** Bytes of a rank's tile of an element size in bits; 0 outside the layout's mesh. */
uint64_t rb_model_tile_bytes(const xm_layout_t *layout, int rank, int element_bits);

/** The built-in cases. */
int rb_model_cases(void);
const char *rb_model_case_name(int index);
