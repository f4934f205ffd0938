/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/like/galvatron.h
 * A plan as Galvatron's `galvatron_config_*.json` has it: equal stages of so many hidden layers,
 * and of each layer its tensor parallel degree, whether its groups are of consecutive devices, and
 * whether it keeps its parameters in parts (ZeRO-3). Embedding and head have a degree of their own,
 * `vtp`, and `embed_sdp`. Lists are texts, "1,1,2".
 *
 * Refused are context and sequence parallelism (`cp_sizes_enc`, `use_sp`), recomputation of some
 * layers only, and GPipe's schedule. Of `default_dp_type` zero2 shards the optimizer state only.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"

typedef struct ap_galvatron_layer {
    int tensor; /**< degree */
    bool consecutive, sharded;
} ap_galvatron_layer_t;

typedef struct ap_galvatron {
    int stages, layers; /**< hidden ones */
    int64_t batch, chunks;
    bool recompute;
    bool state_sharded;          /**< the optimizer state of layers that are not sharded */
    int *division;               /**< hidden layers of every stage */
    ap_galvatron_layer_t *layer; /**< the embedding, the hidden layers, the head */
} ap_galvatron_t;

/** All layers of degree 1. */
xm_status_t ap_galvatron_create(int stages, int layers, ap_galvatron_t **config);

/** @p name stands for the file in sentences. */
xm_status_t ap_galvatron_read(const char *name, const char *text, size_t length,
                              ap_galvatron_t **config);

/** The document; `vtp` and `embed_sdp` are the head's. The caller frees it; NULL without memory. */
char *ap_galvatron_text(const ap_galvatron_t *config);

/** NULL is accepted. */
void ap_galvatron_destroy(ap_galvatron_t *config);
