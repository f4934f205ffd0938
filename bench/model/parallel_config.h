/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file parallel_config.h
 * How many ranks train or serve a model, and along which axes they split it.
 *
 * The ranks of one side, numbered from 0, are an array (pp, data, cp, tp), tp innermost: pipeline
 * stages, ranks with different data, parts of one sequence, parts of a layer. The data axis is
 * (dp, fsdp): replicas, and shards of every parameter's first dimension. For routed experts the
 * ranks of a stage are the array (expert data, ep, etp) instead: ep groups hold different experts,
 * etp splits each of them.
 */
#pragma once

#include "comm/base.h"

/** Zero in a size means 1, in dp "what num_gpus leaves", in etp "tp where that fits, else 1". */
typedef struct rb_parallel {
    int num_gpus;
    int tp, cp, ep, pp, fsdp, dp, etp;
    /* Set by rb_parallel_resolve(): */
    int stage_ranks;
    int data;        /**< ranks along the data axis, fsdp included */
    int expert_data; /**< ranks that hold equal experts, their fsdp included */
    int expert_fsdp; /**< shards along it: what ep leaves of fsdp */
} rb_parallel_t;

/**
 * Fills in the defaults and checks that the sizes make num_gpus ranks. num_gpus decides between the
 * readings that are in use: ep may be taken out of the data axis, be an axis of its own, or, with
 * dp counting replicas of experts, cover tp and cp as well; fsdp may be an axis of its own or be
 * taken out of dp.
 */
xm_status_t rb_parallel_resolve(rb_parallel_t *parallel);

/** Reads {"train": {…}, "generation": {…}}, the form of nccl_m2n's system configurations
 * (docs/model-suite.md), and resolves both. */
xm_status_t rb_parallel_read(const char *path, rb_parallel_t *train, rb_parallel_t *generation);
