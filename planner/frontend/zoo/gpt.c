/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPT (Alpa, OSDI'22, table 4, and its code) and GShard's mixture of experts on the same blocks.
 * Operators are those of Alpa's benchmark, biases and dropout-free residuals included, so that
 * plans can be compared with the paper's: attention is taken apart into scores, softmax and
 * context, as its XLA version saw it.
 */

#include <stdio.h>

#include "planner/frontend/zoo/builder.h"

enum {
    SEQUENCE = 1024,
    GPT_WORDS = 51200,
    MOE_WORDS = 32000,
    MOE_HEADS = 16,
    MOE_WIDTH = 8,      /* of the feed-forward layers, in hidden sizes */
    EXPERT_GROUP = 2048 /* tokens that share the experts' places */
};

static void build_gpt(zoo_builder_t *b, const zoo_model_t *model, const ap_zoo_params_t *params);

#define GPT(label, width, depth, number)                                                           \
    {                                                                                              \
        .name = (label), .build = build_gpt, .hidden = (width), .layers = (depth),                 \
        .heads = (number), .feed_forward = 4 * (width), .vocabulary = GPT_WORDS,                   \
        .sequence = SEQUENCE                                                                       \
    }
#define MOE(label, width, depth, number)                                                           \
    {                                                                                              \
        .name = (label), .build = build_gpt, .hidden = (width), .layers = (depth),                 \
        .heads = MOE_HEADS, .feed_forward = MOE_WIDTH * (width), .experts = (number),              \
        .used_experts = 2, .vocabulary = MOE_WORDS, .sequence = SEQUENCE                           \
    }
/* Models published with their shapes alone; the head has the words of the embedding. ERNIE is its
 * universal module: those of its tasks have a thousandth of the parameters. */
#define LARGE(label, width, depth, number, wide, words, length, ...)                               \
    {                                                                                              \
        .name = (label), .build = build_gpt, .hidden = (width), .layers = (depth),                 \
        .heads = (number), .feed_forward = (wide), .vocabulary = (words), .sequence = (length),    \
        .tied = true, __VA_ARGS__                                                                  \
    }

static const zoo_model_t gpts[] = {
    GPT("gpt-125m", 768, 12, 12),
    GPT("gpt-350m", 1024, 24, 16),
    GPT("gpt-760m", 1536, 24, 16),
    GPT("gpt-1.3b", 2048, 24, 32),
    GPT("gpt-2.6b", 2560, 32, 32),
    GPT("gpt-6.7b", 4096, 32, 32),
    GPT("gpt-15b", 5120, 48, 40),
    GPT("gpt-39b", 8192, 48, 64),
    GPT("gpt-76b", 10240, 60, 80),
    LARGE("gopher-280b", 16384, 80, 128, 4 * 16384, 32000, 2048, .relative = true),
    LARGE("ernie-3.0-titan-260b", 12288, 48, 192, 196608, 40000, 512, .relative = false),
    LARGE("yuan-245.7b", 16384, 76, 128, 4 * 16384, 53228, 2048, .relative = false)};

static const zoo_model_t moes[] = {
    MOE("moe-380m", 768, 8, 8),    MOE("moe-690m", 768, 8, 16),   MOE("moe-1.3b", 768, 16, 16),
    MOE("moe-2.4b", 1024, 16, 16), MOE("moe-7.1b", 1280, 16, 32), MOE("moe-10b", 1536, 16, 32),
    MOE("moe-27b", 2048, 16, 48),  MOE("moe-70b", 2048, 32, 64),  MOE("moe-140b", 2048, 32, 128)};

const zoo_family_t zoo_gpts = {gpts, sizeof(gpts) / sizeof(gpts[0])};

const zoo_family_t zoo_moes = {moes, sizeof(moes) / sizeof(moes[0])};

/* Opens the heads: n heads of query, key and value of width d each. The split runs along a
 * dimension that stays whole, so heads can be cut without moving anything. */
static void split_heads(zoo_builder_t *b, int64_t width, int qkv, int *parts)
{
    const int operands[] = {qkv, -1};
    char sizes[32];
    const zoo_op_t split = {.kind = AP_OP_SPLIT,
                            .name = "split",
                            .rule = "bsne->bsnd,bsnd,bsnd",
                            .whole = "ed",
                            .sizes = sizes};

    (void)snprintf(sizes, sizeof(sizes), "d=%lld", (long long)width);
    (void)zoo_any(b, &split, operands, parts);
}

/* @p distances: of tokens, that scores see (Transformer-XL); -1: none. */
static int attention(zoo_builder_t *b, const zoo_model_t *model, int distances, int x)
{
    const int64_t hidden = model->hidden, heads = model->heads, width = hidden / heads;
    const int64_t qkv_dims[] = {hidden, heads, 3 * width}, qkv_bias[] = {heads, 3 * width};
    const int64_t out_dims[] = {heads, width, hidden};
    int parts[ZOO_RESULTS], y;

    y = zoo_linear(b, "qkv", "bsh,hne->bsne", 3, qkv_dims, x);
    y = zoo_bias(b, "qkv", "bsne,ne->bsne", 2, qkv_bias, y);
    split_heads(b, width, y, parts);
    y = zoo_op2(b, AP_OP_EINSUM, "scores", "bsnd,btnd->bnst", 2, parts[0], parts[1]);
    if (distances >= 0) {
        const int64_t key_dims[] = {hidden, heads, width};
        int r = zoo_linear(b, "distance", "th,hnd->tnd", 3, key_dims, distances);

        r = zoo_op2(b, AP_OP_EINSUM, "distance.scores", "bsnd,tnd->bnst", 2, parts[0], r);
        y = zoo_op2(b, AP_OP_ELEMENTWISE, "scores.add", "bnst,bnst->bnst", 1, y, r);
    }
    y = zoo_op1(b, AP_OP_SOFTMAX, "softmax", "bnst->bnst", 6, y);
    y = zoo_op2(b, AP_OP_EINSUM, "context", "bnst,btnd->bsnd", 2, y, parts[2]);
    y = zoo_linear(b, "out", "bsnd,ndh->bsh", 3, out_dims, y);
    return zoo_bias(b, "out", "bsh,h->bsh", 1, &hidden, y);
}

static int feed_forward(zoo_builder_t *b, const zoo_model_t *model, int x)
{
    const int64_t hidden = model->hidden, wide = model->feed_forward;
    const int64_t up[] = {hidden, wide}, down[] = {wide, hidden};
    int y;

    y = zoo_linear(b, "up", "bsh,hf->bsf", 2, up, x);
    y = zoo_bias(b, "up", "bsf,f->bsf", 1, &wide, y);
    y = zoo_op1(b, AP_OP_ELEMENTWISE, "gelu", "bsf->bsf", 8, y);
    y = zoo_linear(b, "down", "bsf,fh->bsh", 2, down, y);
    return zoo_bias(b, "down", "bsh,h->bsh", 1, &hidden, y);
}

static int begin(zoo_builder_t *b, const zoo_model_t *model, const ap_zoo_params_t *params,
                 int *words)
{
    const int64_t tokens[] = {params->batch > 0 ? params->batch : 1, model->sequence};
    const int64_t table[] = {model->vocabulary, model->hidden};
    const int64_t positions[] = {model->sequence, model->hidden};
    int x, ids;

    b->dtype = AP_DTYPE_F16;
    ids = zoo_input(b, "tokens", AP_DTYPE_I32, 2, tokens);
    *words = zoo_parameter(b, "embedding.w", 2, table);
    x = zoo_op2(b, AP_OP_EMBEDDING, "embedding", "bs,vh->bsh", 0, ids, *words);
    /* Transformer-XL has no table of positions: each block sees the distance of its tokens. */
    if (model->relative) {
        return x;
    }
    return zoo_op2(b, AP_OP_ELEMENTWISE, "position.add", "bsh,sh->bsh", 1, x,
                   zoo_parameter(b, "position.w", 2, positions));
}

/* Losses are computed in 32 bits, as mixed precision training does. */
void zoo_language_head(zoo_builder_t *b, const zoo_model_t *model, const ap_zoo_params_t *params,
                       bool shift, int words, int x)
{
    const int64_t tokens[] = {params->batch > 0 ? params->batch : 1, model->sequence};
    const int64_t table[] = {model->vocabulary, model->hidden};
    int labels, losses;

    x = zoo_norm(b, "norm", shift ? "bsh,h,h->bsh" : "bsh,h->bsh", model->hidden, shift, x);
    if (words < 0) {
        words = zoo_parameter(b, "head.w", 2, table);
    }
    x = zoo_op2(b, AP_OP_EINSUM, "head", "bsh,vh->bsv", 2, x, words);
    labels = zoo_input(b, "labels", AP_DTYPE_I32, 2, tokens);
    b->dtype = AP_DTYPE_F32;
    losses = zoo_op2(b, AP_OP_CROSS_ENTROPY, "cross_entropy", "bsv,bs->bs", 4, x, labels);
    zoo_loss(b, zoo_op1(b, AP_OP_REDUCE, "loss", "bs->", 1, losses), false);
}

/* GShard's layer: each group of tokens is sent to the places that its two best experts have for it,
 * by products with 0-1 tensors, as Alpa's model does. The products cost FLOPs that a look-up would
 * not; that is the model's, not ours to improve. */
static int experts(zoo_builder_t *b, const zoo_model_t *model, int64_t batch, int x)
{
    const int64_t hidden = model->hidden, wide = model->feed_forward, number = model->experts;
    const int64_t samples = EXPERT_GROUP / model->sequence; /* that make a group */
    /* Groups span whole samples, so that cutting the batch cuts groups; a batch that does not
     * divide into them gets a group per sample. */
    const bool several = samples > 1 && EXPERT_GROUP % model->sequence == 0 && batch % samples == 0;
    const int64_t group = several ? EXPERT_GROUP : model->sequence;
    const int64_t groups = batch * model->sequence / group;
    const int64_t share = model->used_experts * group / number, places = share > 0 ? share : 1;
    const int64_t gate[] = {hidden, number}, up[] = {number, hidden, wide};
    const int64_t down[] = {number, wide, hidden};
    char places_text[32], samples_text[32];
    const zoo_op_t regroup = {
        .kind = AP_OP_RESHAPE, .name = "group", .rule = "(gt)sh->g(ts)h", .sizes = samples_text};
    const zoo_op_t ungroup = {
        .kind = AP_OP_RESHAPE, .name = "ungroup", .rule = "g(ts)h->(gt)sh", .sizes = samples_text};
    const zoo_op_t route = {.kind = AP_OP_CUSTOM,
                            .name = "route",
                            .rule = "gse->gsec",
                            .whole = "sec",
                            .sizes = places_text,
                            .flops = 8.0 * (double)(groups * group * number)};
    const zoo_op_t mask = {.kind = AP_OP_ELEMENTWISE, .name = "mask", .rule = "gsec->gsec"};
    int y, weights, places_of;

    (void)snprintf(places_text, sizeof(places_text), "c=%lld", (long long)places);
    (void)snprintf(samples_text, sizeof(samples_text), "t=%lld", (long long)samples);
    x = several ? zoo_any1(b, &regroup, x) : x;
    b->dtype = AP_DTYPE_F32;
    y = zoo_linear(b, "gate", "gsh,he->gse", 2, gate, x);
    y = zoo_any1(b,
                 &(zoo_op_t){.kind = AP_OP_SOFTMAX,
                             .name = "gate.softmax",
                             .rule = "gse->gse",
                             .whole = "e",
                             .flops = 6.0 * (double)(groups * group * number)},
                 y);
    b->dtype = AP_DTYPE_F16;
    weights = zoo_any1(b, &route, y);
    b->dtype = AP_DTYPE_I8;
    places_of = zoo_any1(b, &mask, weights);
    b->dtype = AP_DTYPE_F16;
    y = zoo_op2(b, AP_OP_EINSUM, "dispatch", "gsec,gsh->egch", 2, places_of, x);
    y = zoo_linear(b, "expert.up", "egch,ehf->egcf", 3, up, y);
    y = zoo_op1(b, AP_OP_ELEMENTWISE, "expert.gelu", "egcf->egcf", 8, y);
    y = zoo_linear(b, "expert.down", "egcf,efh->egch", 3, down, y);
    y = zoo_op2(b, AP_OP_EINSUM, "combine", "gsec,egch->gsh", 2, weights, y);
    return several ? zoo_any1(b, &ungroup, y) : y;
}

/* In a mixture, every second block has experts in place of its feed-forward layer, and the head has
 * the words of the embedding. */
static void build_gpt(zoo_builder_t *b, const zoo_model_t *model, const ap_zoo_params_t *params)
{
    const int layers = params->layers > 0 ? params->layers : model->layers;
    const int64_t batch = params->batch > 0 ? params->batch : 1;
    const int64_t distance_dims[] = {model->sequence, model->hidden};
    const bool mixture = model->experts > 0;
    int words, x = begin(b, model, params, &words);
    int distances = model->relative ? zoo_input(b, "distances", b->dtype, 2, distance_dims) : -1;

    b->prefix = "block";
    for (b->block = 1; b->block <= layers; ++b->block) {
        int y;

        zoo_layer(b, b->block);
        y = zoo_norm(b, "norm1", "bsh,h,h->bsh", model->hidden, true, x);
        x = zoo_residual(b, "residual1", x, attention(b, model, distances, y));
        y = zoo_norm(b, "norm2", "bsh,h,h->bsh", model->hidden, true, x);
        y = mixture && b->block % 2 == 0 ? experts(b, model, batch, y) : feed_forward(b, model, y);
        x = zoo_residual(b, "residual2", x, y);
    }
    b->prefix = NULL;
    zoo_layer(b, layers + 1);
    zoo_language_head(b, model, params, true,
                      mixture || model->tied || params->tied_embeddings ? words : -1, x);
}
