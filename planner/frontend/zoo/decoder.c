/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoders of today: RMS norm, rotary positions, grouped queries, SwiGLU; dense, or with experts.
 * Attention is one operator, because its kernels are: taken apart, the scores would be charged as
 * memory traffic and as kept activations that never exist.
 */

#include <stdio.h>

#include "planner/frontend/zoo/builder.h"

enum { SEQUENCE = 4096, HEAD_WIDTH = 128 };

static void build_decoder(zoo_builder_t *b, const zoo_model_t *model,
                          const ap_zoo_params_t *params);

#define DECODER(label, width, depth, number, kv, wide, all, used, words, norms)                    \
    {                                                                                              \
        .name = (label), .build = build_decoder, .sequence = SEQUENCE, .hidden = (width),          \
        .layers = (depth), .heads = (number), .kv_heads = (kv), .head_width = HEAD_WIDTH,          \
        .feed_forward = (wide), .experts = (all), .used_experts = (used), .vocabulary = (words),   \
        .head_norms = (norms)                                                                      \
    }

/* The sizes that the models' own config.json files give. DeepSeek-V3 is without its module for
 * multi-token prediction. */
static const zoo_model_t decoders[] = {
    DECODER("llama2-7b", 4096, 32, 32, 32, 11008, 0, 0, 32000, false),
    DECODER("llama3-8b", 4096, 32, 32, 8, 14336, 0, 0, 128256, false),
    DECODER("llama3-70b", 8192, 80, 64, 8, 28672, 0, 0, 128256, false),
    DECODER("qwen3-32b", 5120, 64, 64, 8, 25600, 0, 0, 151936, true),
    DECODER("mixtral-8x7b", 4096, 32, 32, 8, 14336, 8, 2, 32000, false),
    DECODER("mixtral-8x22b", 6144, 56, 48, 8, 16384, 8, 2, 32000, false),
    DECODER("qwen3-30b-a3b", 2048, 48, 32, 4, 768, 128, 8, 151936, true),
    DECODER("qwen3-235b-a22b", 4096, 94, 64, 4, 1536, 128, 8, 151936, true),
    {.name = "deepseek-v3",
     .build = build_decoder,
     .sequence = SEQUENCE,
     .hidden = 7168,
     .layers = 61,
     .heads = 128,
     .kv_heads = 128,
     .head_width = HEAD_WIDTH,
     .feed_forward = 2048,
     .experts = 256,
     .used_experts = 8,
     .vocabulary = 129280,
     .q_latent = 1536,
     .kv_latent = 512,
     .rotary_width = 64,
     .dense_layers = 3,
     .dense_width = 18432,
     .shared_expert = true},
};

const zoo_family_t zoo_decoders = {decoders, sizeof(decoders) / sizeof(decoders[0])};

/* g groups of q query heads, each group with one head of keys and values, of width d. Cutting
 * groups cuts queries, keys and values alike, so no data are exchanged. Scores never leave the
 * device's caches, so only operands and result count as bytes. */
static int attention(zoo_builder_t *b, const zoo_model_t *model, int x)
{
    const int64_t hidden = model->hidden, groups = model->kv_heads, width = model->head_width;
    const int64_t queries = model->heads / model->kv_heads;
    const int64_t q_dims[] = {hidden, groups, queries, width}, kv_dims[] = {hidden, groups, width};
    const int64_t out_dims[] = {groups, queries, width, hidden};
    zoo_op_t kernel = {
        .kind = AP_OP_CUSTOM, .name = "attention", .rule = "bsgqd,btgd,btgd->bsgqd", .whole = "td"};
    const zoo_op_t rotate_q = {.kind = AP_OP_CUSTOM,
                               .name = "rotary.q",
                               .rule = "bsgqd->bsgqd",
                               .whole = "d",
                               .linear = true};
    const zoo_op_t rotate_k = {.kind = AP_OP_CUSTOM,
                               .name = "rotary.k",
                               .rule = "bsgd->bsgd",
                               .whole = "d",
                               .linear = true};
    int q = zoo_linear(b, "q", "bsh,hgqd->bsgqd", 4, q_dims, x);
    int k = zoo_linear(b, "k", "bsh,hgd->bsgd", 3, kv_dims, x);
    int v = zoo_linear(b, "v", "bsh,hgd->bsgd", 3, kv_dims, x);
    int operands[4] = {-1, -1, -1, -1};
    const ap_shape_t *shape;

    if (model->head_norms) {
        q = zoo_norm(b, "q.norm", "bsgqd,d->bsgqd", width, false, q);
        k = zoo_norm(b, "k.norm", "bsgd,d->bsgd", width, false, k);
    }
    operands[0] = zoo_any1(b, &rotate_q, q);
    operands[1] = zoo_any1(b, &rotate_k, k);
    operands[2] = v;
    if (b->status != XM_OK) {
        return -1;
    }
    /* Scores and context: 2 FLOPs each for every pair of positions, head and element. Pairs that a
     * causal mask leaves out are counted, as in the papers' model FLOPs. */
    shape = &ap_graph_tensor(b->graph, x)->shape;
    kernel.flops = 4.0 * (double)shape->dims[0] * (double)shape->dims[1] * (double)shape->dims[1] *
                   (double)(model->heads * width);
    x = zoo_any(b, &kernel, operands, NULL);
    return zoo_linear(b, "out", "bsgqd,gqdh->bsh", 4, out_dims, x);
}

/* A narrow product, its norm, and what is read of it. */
static int latent(zoo_builder_t *b, const zoo_model_t *model, const char *name, int width, int x)
{
    const int64_t dims[] = {model->hidden, width};
    char norm[32];

    (void)snprintf(norm, sizeof(norm), "%s.norm", name);
    return zoo_norm(b, norm, "bsr,r->bsr", width, false,
                    zoo_linear(b, name, "bsh,hr->bsr", 2, dims, x));
}

/* Queries, keys and values of n heads come from latents that all heads share; a part of the keys
 * with their positions comes past them, one for all heads. */
static int latent_attention(zoo_builder_t *b, const zoo_model_t *model, int x)
{
    const int64_t heads = model->heads, width = model->head_width, rotary = model->rotary_width;
    const int64_t q_dims[] = {model->q_latent, heads, width + rotary};
    const int64_t kv_dims[] = {model->kv_latent, heads, width}, p_dims[] = {model->hidden, rotary};
    const int64_t out_dims[] = {heads, width, model->hidden};
    zoo_op_t kernel = {.kind = AP_OP_CUSTOM,
                       .name = "attention",
                       .rule = "bsnq,btnk,btnv,btp->bsnv",
                       .whole = "tqkpv"};
    const zoo_op_t rotate_q = {.kind = AP_OP_CUSTOM,
                               .name = "rotary.q",
                               .rule = "bsnq->bsnq",
                               .whole = "q",
                               .linear = true};
    const zoo_op_t rotate_k = {
        .kind = AP_OP_CUSTOM, .name = "rotary.k", .rule = "bsp->bsp", .whole = "p", .linear = true};
    int q = latent(b, model, "q.latent", model->q_latent, x);
    int kv = latent(b, model, "kv.latent", model->kv_latent, x);
    int operands[] = {-1, -1, -1, -1, -1};
    const ap_shape_t *shape;

    operands[3] = zoo_any1(b, &rotate_k, zoo_linear(b, "k.rotary", "bsh,hp->bsp", 2, p_dims, x));
    operands[0] = zoo_any1(b, &rotate_q, zoo_linear(b, "q", "bsr,rnq->bsnq", 3, q_dims, q));
    operands[1] = zoo_linear(b, "k", "bsr,rnk->bsnk", 3, kv_dims, kv);
    operands[2] = zoo_linear(b, "v", "bsr,rnv->bsnv", 3, kv_dims, kv);
    if (b->status != XM_OK) {
        return -1;
    }
    shape = &ap_graph_tensor(b->graph, x)->shape;
    kernel.flops = 2.0 * (double)shape->dims[0] * (double)shape->dims[1] * (double)shape->dims[1] *
                   (double)(heads * (2 * width + rotary));
    x = zoo_any(b, &kernel, operands, NULL);
    return zoo_linear(b, "out", "bsnv,nvh->bsh", 3, out_dims, x);
}

static int feed_forward(zoo_builder_t *b, const zoo_model_t *model, int width, int x)
{
    const int64_t up[] = {model->hidden, width};
    const int64_t down[] = {width, model->hidden};
    const zoo_op_t gated = {.kind = AP_OP_ELEMENTWISE, .name = "swiglu", .rule = "bsf,bsf->bsf"};
    int gate = zoo_linear(b, "gate", "bsh,hf->bsf", 2, up, x);
    int y = zoo_any2(b, &gated, gate, zoo_linear(b, "up", "bsh,hf->bsf", 2, up, x));

    return zoo_linear(b, "down", "bsf,fh->bsh", 2, down, y);
}

/* Tokens are looked up by the experts that chose them, and their results summed where they came
 * from. The load is taken as even: each expert gets its share of every sample's tokens, for a plan
 * is made before anyone knows the router's choices. */
static int experts(zoo_builder_t *b, const zoo_model_t *model, int x)
{
    const int64_t number = model->experts, hidden = model->hidden, wide = model->feed_forward;
    const int64_t router[] = {hidden, number}, up[] = {number, hidden, wide};
    const int64_t down[] = {number, wide, hidden};
    const int64_t sequence = b->status == XM_OK ? ap_graph_tensor(b->graph, x)->shape.dims[1] : 1;
    const double batch =
        b->status == XM_OK ? (double)ap_graph_tensor(b->graph, x)->shape.dims[0] : 1;
    const int64_t share = sequence * model->used_experts / number;
    /* Very small models would otherwise have experts without a place. */
    const int64_t places = share > 0 ? share : 1;
    char places_text[32], sequence_text[32];
    const zoo_op_t probabilities = {.kind = AP_OP_SOFTMAX,
                                    .name = "router.softmax",
                                    .rule = "bse->bse",
                                    .whole = "e",
                                    .flops = 6 * batch * (double)(sequence * number)};
    const zoo_op_t choose = {.kind = AP_OP_CUSTOM,
                             .name = "choose",
                             .rule = "bse->bec",
                             .whole = "sec",
                             .sizes = places_text,
                             .flops = 8 * batch * (double)(sequence * number)};
    const zoo_op_t weigh = {.kind = AP_OP_EMBEDDING, .name = "weights", .rule = "bec,bse->bec"};
    const zoo_op_t dispatch = {
        .kind = AP_OP_EMBEDDING, .name = "dispatch", .rule = "bec,bsh->ebch"};
    const zoo_op_t gated = {
        .kind = AP_OP_ELEMENTWISE, .name = "expert.swiglu", .rule = "ebcf,ebcf->ebcf"};
    const zoo_op_t combine = {.kind = AP_OP_CUSTOM,
                              .name = "combine",
                              .rule = "ebch,bec,bec->bsh",
                              .sizes = sequence_text,
                              .flops = 2 * batch * (double)(number * places * hidden)};
    int chosen, y, operands[4] = {-1, -1, -1, -1};

    (void)snprintf(places_text, sizeof(places_text), "c=%lld", (long long)places);
    (void)snprintf(sequence_text, sizeof(sequence_text), "s=%lld", (long long)sequence);
    y = zoo_any1(b, &probabilities, zoo_linear(b, "router", "bsh,he->bse", 2, router, x));
    b->dtype = AP_DTYPE_I32;
    chosen = zoo_any1(b, &choose, y);
    b->dtype = AP_DTYPE_BF16;
    operands[1] = zoo_any2(b, &weigh, chosen, y);
    operands[2] = chosen;
    y = zoo_any2(b, &dispatch, chosen, x);
    y = zoo_any2(b, &gated, zoo_linear(b, "expert.gate", "ebch,ehf->ebcf", 3, up, y),
                 zoo_linear(b, "expert.up", "ebch,ehf->ebcf", 3, up, y));
    operands[0] = zoo_linear(b, "expert.down", "ebcf,efh->ebch", 3, down, y);
    return zoo_any(b, &combine, operands, NULL);
}

/* Layer 0 is the embedding, each block a layer, the last the head. */
static void build_decoder(zoo_builder_t *b, const zoo_model_t *model, const ap_zoo_params_t *params)
{
    const int layers = params->layers > 0 ? params->layers : model->layers;
    const int64_t table[] = {model->vocabulary, model->hidden};
    const int64_t tokens[] = {params->batch > 0 ? params->batch : 1, model->sequence};
    int ids, words, x;

    b->dtype = AP_DTYPE_BF16;
    ids = zoo_input(b, "tokens", AP_DTYPE_I32, 2, tokens);
    words = zoo_parameter(b, "embedding.w", 2, table);
    x = zoo_op2(b, AP_OP_EMBEDDING, "embedding", "bs,vh->bsh", 0, ids, words);
    b->prefix = "block";
    for (b->block = 1; b->block <= layers; ++b->block) {
        bool dense = model->experts == 0 || b->block <= model->dense_layers;
        int y;

        zoo_layer(b, b->block);
        y = zoo_norm(b, "norm1", "bsh,h->bsh", model->hidden, false, x);
        y = model->kv_latent > 0 ? latent_attention(b, model, y) : attention(b, model, y);
        x = zoo_residual(b, "residual1", x, y);
        y = zoo_norm(b, "norm2", "bsh,h->bsh", model->hidden, false, x);
        if (!dense && model->shared_expert) {
            x = zoo_residual(b, "residual.shared", x,
                             feed_forward(b, model, model->feed_forward, y));
        }
        x = zoo_residual(
            b, "residual2", x,
            dense
                ? feed_forward(b, model,
                               model->dense_width > 0 ? model->dense_width : model->feed_forward, y)
                : experts(b, model, y));
    }
    b->prefix = NULL;
    zoo_layer(b, layers + 1);
    zoo_language_head(b, model, params, false, params->tied_embeddings ? words : -1, x);
}
