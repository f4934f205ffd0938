/* SPDX-License-Identifier: Apache-2.0 */
/*
 * T5 (Raffel, JMLR'20): an encoder, and a decoder whose every block attends to the encoder's last
 * output. Sizes are those of its published configurations, without relative position biases and
 * dropout.
 */

#include "planner/frontend/zoo/builder.h"

enum { SEQUENCE = 512, WORDS = 32128 };

static void build_t5(zoo_builder_t *b, const zoo_model_t *model, const ap_zoo_params_t *params);

#define T5(label, width, depth, number, head, wide)                                                \
    {                                                                                              \
        .name = (label), .build = build_t5, .hidden = (width), .layers = (depth),                  \
        .heads = (number), .head_width = (head), .feed_forward = (wide), .vocabulary = WORDS,      \
        .sequence = SEQUENCE                                                                       \
    }

static const zoo_model_t t5s[] = {
    T5("t5-60m", 512, 6, 8, 64, 2048), T5("t5-220m", 768, 12, 12, 64, 3072),
    T5("t5-770m", 1024, 24, 16, 64, 4096), T5("t5-3b", 1024, 24, 32, 128, 16384)};

const zoo_family_t zoo_t5s = {t5s, sizeof(t5s) / sizeof(t5s[0])};

/* The names of the operators of an attention. */
typedef struct attention_names {
    const char *norm, *q, *k, *v, *scores, *softmax, *context, *out, *residual;
} attention_names_t;

static const attention_names_t self = {"norm1",   "q",       "k",   "v",        "scores",
                                       "softmax", "context", "out", "residual1"};
static const attention_names_t cross = {"cross.norm",    "cross.q",      "cross.k",
                                        "cross.v",       "cross.scores", "cross.softmax",
                                        "cross.context", "cross.out",    "cross.residual"};

/* Attention of x to itself, or to `memory` where that is a tensor, with what is added to x. */
static int attend(zoo_builder_t *b, const zoo_model_t *model, const attention_names_t *names,
                  int memory, int x)
{
    const int64_t in[] = {model->hidden, model->heads, model->head_width};
    const int64_t out[] = {model->heads, model->head_width, model->hidden};
    int y = zoo_norm(b, names->norm, "bsh,h->bsh", model->hidden, false, x), q, k, v;

    q = zoo_linear(b, names->q, "bsh,hnd->bsnd", 3, in, y);
    k = zoo_linear(b, names->k, "bth,hnd->btnd", 3, in, memory >= 0 ? memory : y);
    v = zoo_linear(b, names->v, "bth,hnd->btnd", 3, in, memory >= 0 ? memory : y);
    y = zoo_op2(b, AP_OP_EINSUM, names->scores, "bsnd,btnd->bnst", 2, q, k);
    y = zoo_op1(b, AP_OP_SOFTMAX, names->softmax, "bnst->bnst", 6, y);
    y = zoo_op2(b, AP_OP_EINSUM, names->context, "bnst,btnd->bsnd", 2, y, v);
    y = zoo_linear(b, names->out, "bsnd,ndh->bsh", 3, out, y);
    return zoo_residual(b, names->residual, x, y);
}

static int feed_forward(zoo_builder_t *b, const zoo_model_t *model, int x)
{
    const int64_t up[] = {model->hidden, model->feed_forward};
    const int64_t down[] = {model->feed_forward, model->hidden};
    int y = zoo_norm(b, "norm2", "bsh,h->bsh", model->hidden, false, x);

    y = zoo_linear(b, "up", "bsh,hf->bsf", 2, up, y);
    y = zoo_op1(b, AP_OP_ELEMENTWISE, "relu", "bsf->bsf", 1, y);
    y = zoo_linear(b, "down", "bsf,fh->bsh", 2, down, y);
    return zoo_residual(b, "residual2", x, y);
}

/* The first block of the decoder is one layer with its embedding: what precedes it is the encoder's
 * output, which only its cross-attention reads. */
static void build_t5(zoo_builder_t *b, const zoo_model_t *model, const ap_zoo_params_t *params)
{
    const int blocks = params->layers > 0 ? params->layers : model->layers;
    const int64_t table[] = {model->vocabulary, model->hidden};
    const int64_t tokens[] = {params->batch > 0 ? params->batch : 1, model->sequence};
    int words, memory, x;

    b->dtype = AP_DTYPE_BF16;
    words = zoo_parameter(b, "embedding.w", 2, table);
    x = zoo_op2(b, AP_OP_EMBEDDING, "encoder.embedding", "bs,vh->bsh", 0,
                zoo_input(b, "tokens", AP_DTYPE_I32, 2, tokens), words);
    b->prefix = "encoder";
    for (b->block = 1; b->block <= blocks; ++b->block) {
        zoo_layer(b, b->block);
        x = feed_forward(b, model, attend(b, model, &self, -1, x));
    }
    b->prefix = NULL;
    memory = zoo_norm(b, "encoder.norm", "bsh,h->bsh", model->hidden, false, x);
    zoo_layer(b, blocks + 1);
    x = zoo_op2(b, AP_OP_EMBEDDING, "decoder.embedding", "bs,vh->bsh", 0,
                zoo_input(b, "targets", AP_DTYPE_I32, 2, tokens), words);
    b->prefix = "decoder";
    for (b->block = 1; b->block <= blocks; ++b->block) {
        zoo_layer(b, blocks + b->block);
        x = attend(b, model, &self, -1, x);
        x = feed_forward(b, model, attend(b, model, &cross, memory, x));
    }
    b->prefix = NULL;
    zoo_layer(b, 2 * blocks + 1);
    zoo_language_head(b, model, params, false, params->tied_embeddings ? words : -1, x);
}
