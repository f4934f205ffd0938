/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file zoo.h
 * Built-in models by name.
 *
 *  - `gpt-125m` … `gpt-76b`: the GPT table of Alpa (OSDI'22, table 4 and its code): sequence 1024,
 *    vocabulary 51200, 16-bit weights; per block two layer norms, fused QKV projection, attention
 *    (scores, softmax, context, projection), MLP with GELU, two residual additions, biases. Layer 0
 *    is the embedding, 1 … L the blocks, L + 1 final norm, head and cross entropy.
 *  - `moe-380m` … `moe-140b`: Alpa's mixture of experts: the same blocks, with 8 times wider MLPs
 *    and vocabulary 32000; every second block has experts instead (GShard: two for each token,
 *    groups of 2048 tokens, dense dispatch). The head uses the embedding's weight.
 *  - `wresnet-250m` … `wresnet-13b`: Alpa's Wide-ResNet: 50 layers in 16 bottleneck blocks, 224²
 *    images, 32 bits. Layer 0 is the stem, 1 … 16 the blocks, 17 the head.
 *  - `unet-470m` … `unet-2b`: the U-Transformer of the resharding paper (MLSys'23): a U-Net with
 *    attention to a text, 32² latents, 32 bits. One layer, for skipped tensors cross any cut.
 *  - `llama2-7b`, `llama3-8b`, `llama3-70b`, `qwen3-32b`: decoders with RMS norm, rotary positions,
 *    grouped queries and SwiGLU; attention is one operator. Sequence 4096, bfloat16.
 *  - `mixtral-8x7b`, `mixtral-8x22b`, `qwen3-30b-a3b`, `qwen3-235b-a22b`: the same with experts,
 *    evenly loaded; tokens are looked up by the experts and their results summed.
 *  - `gopher-280b`, `ernie-3.0-titan-260b`, `yuan-245.7b`: the same blocks in the shapes that their
 *    papers give; Gopher's scores see distances, by one more weight in each block.
 *  - `dlrm-540m`: DLRM on Criteo's data, 26 tables of 16 numbers a row, 32 bits. Layer 0 has the
 *    tables and the bottom network, 1 the top.
 *  - `mlpN`: N square weights, h = x·w1·…·wN, the error h - y as the loss's gradient; 32-bit; one
 *    layer per weight. The graphs of the golden intra-operator costs.
 *
 * The result is a finished forward graph with its loss named; training.h expands it.
 */
#pragma once

#include <autopar/frontend.h>

#include "planner/graph.h"

typedef struct ap_zoo_params {
    int64_t batch;        /**< samples of one micro-batch; 0 = 1, mlp 1024 */
    int64_t hidden;       /**< mlp only; 0 = 128 */
    int layers;           /**< language models: blocks, 0 = what the table says */
    bool tied_embeddings; /**< gpt and decoders: the head uses the embedding's weight */
    int sequence;         /**< language models: tokens a sample, 0 = what the table says */
} ap_zoo_params_t;

#define AP_ZOO_PARAMS_INIT                                                                         \
    {                                                                                              \
        0                                                                                          \
    }

/** XM_ERR_NOT_FOUND with the nearest name when there is no such model. */
xm_status_t ap_zoo_create(const char *name, const ap_zoo_params_t *params, ap_graph_t **graph);
