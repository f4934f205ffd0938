/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of built-in models, generated from a handful of sizes. Names and shapes
 * follow the public checkpoints, so sharding tables for those apply as they are.
 */
#include "bench/model/family.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

/* The names of the public configuration files, shortened. */
typedef struct {
    int layers;
    int64_t hidden, vocab, intermediate;
    int64_t heads, kv_heads, head_size;
    bool head_norms, tied; /* tied: the embedding is the head too */
    /* Multi-head latent attention, where q_rank is positive. */
    int64_t q_rank, kv_rank, nope_size, rope_size, value_size;
    /* Experts in the layers from dense_layers on, where there are any. */
    int dense_layers, experts;
    int64_t expert_intermediate;
    bool shared_expert; /* and a bias of the router */
} sizes_t;

enum { BF16 = 16, F32 = 32 };

/* Grouped queries, heads of 128 elements; no experts: 0 of them. */
#define GROUPED(depth, width, words, wide, number, kv, norms, ties, all, expert_wide)              \
    {                                                                                              \
        .layers = (depth), .hidden = (width), .vocab = (words), .intermediate = (wide),            \
        .heads = (number), .kv_heads = (kv), .head_size = 128, .head_norms = (norms),              \
        .tied = (ties), .experts = (all), .expert_intermediate = (expert_wide)                     \
    }

static const sizes_t families[RB_FAMILY_COUNT] = {
    [RB_FAMILY_7B] = GROUPED(32, 4096, 32000, 11008, 32, 32, false, false, 0, 0),
    [RB_FAMILY_32B] = GROUPED(64, 5120, 151936, 25600, 64, 8, true, false, 0, 0),
    [RB_FAMILY_70B] = GROUPED(80, 8192, 128256, 28672, 64, 8, false, false, 0, 0),
    [RB_FAMILY_256E] = {.layers = 61,
                        .hidden = 7168,
                        .vocab = 129280,
                        .intermediate = 18432,
                        .heads = 128,
                        .q_rank = 1536,
                        .kv_rank = 512,
                        .nope_size = 128,
                        .rope_size = 64,
                        .value_size = 128,
                        .dense_layers = 3,
                        .experts = 256,
                        .expert_intermediate = 2048,
                        .shared_expert = true},
    [RB_FAMILY_4B] = GROUPED(36, 2560, 151936, 9728, 32, 8, true, true, 0, 0),
    [RB_FAMILY_30B] = GROUPED(48, 2048, 151936, 0, 32, 4, true, false, 128, 768),
    [RB_FAMILY_235B] = GROUPED(94, 4096, 151936, 0, 64, 4, true, false, 128, 1536),
};

/* Keeps the first failure, so that a list of additions reads without tests in between. */
typedef struct {
    rb_tensor_list_t *list;
    xm_status_t status;
    char prefix[64];
} writer_t;

/* A matrix, or a vector when `columns` is 0. */
static void add(writer_t *writer, const char *name, int64_t rows, int64_t columns)
{
    rb_tensor_t tensor = {.dims = columns > 0 ? 2 : 1, .shape = {rows, columns}, .bits = BF16};

    if (writer->status == XM_OK) {
        (void)snprintf(tensor.name, sizeof(tensor.name), "%s%s", writer->prefix, name);
        writer->status = rb_tensor_list_add(writer->list, &tensor);
    }
}

/* Names of a layer share a prefix. */
static void set_prefix(writer_t *writer, const char *format, ...) XM_PRINTF(2, 3);

static void set_prefix(writer_t *writer, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(writer->prefix, sizeof(writer->prefix), format, arguments);
    va_end(arguments);
}

/* Grouped-query attention; head norms where the family has them. */
static void add_attention(writer_t *writer, const sizes_t *sizes)
{
    int64_t kv = sizes->kv_heads * sizes->head_size, q = sizes->heads * sizes->head_size;

    add(writer, "q_proj.weight", q, sizes->hidden);
    if (sizes->head_norms) {
        add(writer, "q_norm.weight", sizes->head_size, 0);
    }
    add(writer, "k_proj.weight", kv, sizes->hidden);
    if (sizes->head_norms) {
        add(writer, "k_norm.weight", sizes->head_size, 0);
    }
    add(writer, "v_proj.weight", kv, sizes->hidden);
    add(writer, "o_proj.weight", sizes->hidden, q);
}

/* Multi-head latent attention: projections to a low rank and back. */
static void add_latent_attention(writer_t *writer, const sizes_t *sizes)
{
    int64_t query = sizes->heads * (sizes->nope_size + sizes->rope_size);

    add(writer, "q_a_proj.weight", sizes->q_rank, sizes->hidden);
    add(writer, "q_a_layernorm.weight", sizes->q_rank, 0);
    add(writer, "q_b_proj.weight", query, sizes->q_rank);
    add(writer, "kv_a_proj_with_mqa.weight", sizes->kv_rank + sizes->rope_size, sizes->hidden);
    add(writer, "kv_a_layernorm.weight", sizes->kv_rank, 0);
    add(writer, "kv_b_proj.weight", sizes->heads * (sizes->nope_size + sizes->value_size),
        sizes->kv_rank);
    add(writer, "o_proj.weight", sizes->hidden, sizes->heads * sizes->value_size);
}

static void add_feed_forward(writer_t *writer, int64_t hidden, int64_t intermediate)
{
    add(writer, "gate_proj.weight", intermediate, hidden);
    add(writer, "up_proj.weight", intermediate, hidden);
    add(writer, "down_proj.weight", hidden, intermediate);
}

/* The router's bias is in 32 bits, as in the checkpoint; all else is in 16. */
static void add_experts(writer_t *writer, const sizes_t *sizes, int layer)
{
    set_prefix(writer, "model.layers.%d.mlp.", layer);
    add(writer, "gate.weight", sizes->experts, sizes->hidden);
    if (sizes->shared_expert) {
        add(writer, "gate.e_score_correction_bias", sizes->experts, 0);
    }
    if (sizes->shared_expert && writer->status == XM_OK) {
        writer->list->tensors[writer->list->count - 1].bits = F32;
    }
    for (int e = 0; e < sizes->experts; ++e) {
        set_prefix(writer, "model.layers.%d.mlp.experts.%d.", layer, e);
        add_feed_forward(writer, sizes->hidden, sizes->expert_intermediate);
    }
    if (sizes->shared_expert) {
        set_prefix(writer, "model.layers.%d.mlp.shared_experts.", layer);
        add_feed_forward(writer, sizes->hidden, sizes->expert_intermediate);
    }
}

static void add_layer(writer_t *writer, const sizes_t *sizes, int layer)
{
    set_prefix(writer, "model.layers.%d.", layer);
    add(writer, "input_layernorm.weight", sizes->hidden, 0);
    set_prefix(writer, "model.layers.%d.self_attn.", layer);
    if (sizes->q_rank > 0) {
        add_latent_attention(writer, sizes);
    } else {
        add_attention(writer, sizes);
    }
    set_prefix(writer, "model.layers.%d.", layer);
    add(writer, "post_attention_layernorm.weight", sizes->hidden, 0);
    if (sizes->experts > 0 && layer >= sizes->dense_layers) {
        add_experts(writer, sizes, layer);
    } else {
        set_prefix(writer, "model.layers.%d.mlp.", layer);
        add_feed_forward(writer, sizes->hidden, sizes->intermediate);
    }
}

xm_status_t rb_model_family(rb_family_t family, rb_tensor_list_t *list)
{
    const sizes_t *sizes = &families[family];
    writer_t writer = {.list = list, .status = XM_OK, .prefix = "model."};

    list->head_size = sizes->head_size;
    add(&writer, "embed_tokens.weight", sizes->vocab, sizes->hidden);
    for (int layer = 0; layer < sizes->layers; ++layer) {
        add_layer(&writer, sizes, layer);
    }
    set_prefix(&writer, "model.");
    add(&writer, "norm.weight", sizes->hidden, 0);
    set_prefix(&writer, "%s", "");
    if (!sizes->tied) {
        add(&writer, "lm_head.weight", sizes->vocab, sizes->hidden);
    }
    if (writer.status < 0) {
        rb_tensor_list_clear(list);
    }
    return writer.status;
}
