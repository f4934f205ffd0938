/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bench/model/sharding.h
 * How a parameter is sharded, from its name: a table of patterns.
 *
 * Equal names and shapes can hide a different sharding (a packed QKV, an interleaved gate/up), so a
 * name that no pattern matches is an error and never a guess. Entries of a file (--shard-table)
 * come before the built-in ones; the first match counts. docs/model-suite.md lists the built-in
 * entries and the file's format. In patterns `*` stands for any characters, `?` for one.
 */
#pragma once

#include <stdbool.h>

#include "bench/model/tensor_list.h"

enum {
    RB_SHARD_NONE = -1,           /**< no dimension: replicated along that axis */
    RB_SHARD_EXPERT_IN_NAME = -2, /**< of ep: the tensor is one expert, which one ep rank holds */
    RB_PACK_NAME = 32
};

typedef struct rb_shard_rule {
    char pattern[RB_TENSOR_NAME];
    int tp;           /**< dimension that tp splits, or RB_SHARD_NONE */
    int ep;           /**< dimension that ep splits, RB_SHARD_NONE or RB_SHARD_EXPERT_IN_NAME */
    bool heads;       /**< dimension 0 is cut between heads; fewer heads than tp: replicated */
    bool first_stage; /**< outside the layers: on the first pipeline stage, not the last */
    char pack[RB_PACK_NAME]; /**< module that serving packs it into ("qkv_proj"), or "" */
    int part;                /**< its place there, from 0 */
} rb_shard_rule_t;

typedef struct rb_shard_table {
    rb_shard_rule_t *rules; /**< of the file, before the built-in ones */
    int count;
    int64_t head_size; /**< given by the file; 0: not given */
} rb_shard_table_t;

/** Makes the table; @p path NULL: only the built-in entries. The caller clears it. */
xm_status_t rb_shard_table_read(const char *path, rb_shard_table_t *table);

void rb_shard_table_clear(rb_shard_table_t *table);

/** The entry for a tensor. Fails when there is none, or when it names a dimension that the tensor
 * lacks. */
xm_status_t rb_shard_table_find(const rb_shard_table_t *table, const rb_tensor_t *tensor,
                                const rb_shard_rule_t **rule);

/** Most parts of a packed parameter. */
enum { RB_MAX_PARTS = 8 };
