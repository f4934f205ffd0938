/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Building a model of the zoo: operators by name and rule. The first failure sticks and later calls
 * do nothing, so that a model reads as the list of its operators. Private to the zoo.
 */
#pragma once

#include "planner/frontend/zoo.h"

typedef struct zoo_builder {
    ap_graph_t *graph;
    xm_status_t status;
    ap_dtype_t dtype;   /* of what is made from here on */
    const char *prefix; /* put in front of names with a point; NULL = none */
    int block;          /* number behind the prefix; -1 = none */
} zoo_builder_t;

/* An operator that zoo_op() does not make as it is. */
typedef struct zoo_op {
    ap_op_kind_t kind;
    const char *name, *rule, *whole, *sizes; /* whole: factors that need replication; may be NULL */
    double flops;                            /* of all points together */
    bool linear;
} zoo_op_t;

int zoo_input(zoo_builder_t *b, const char *name, ap_dtype_t dtype, int rank, const int64_t *dims);
int zoo_parameter(zoo_builder_t *b, const char *name, int rank, const int64_t *dims);
int zoo_parameter1(zoo_builder_t *b, const char *name, int64_t size);

/*
 * Operators with one result and `flops` per point of the rule. Of a layer norm the factors h and d
 * are needed whole, of a softmax t; an elementwise operator on two tensors is linear.
 */
int zoo_op1(zoo_builder_t *b, ap_op_kind_t kind, const char *name, const char *rule, double flops,
            int operand);
int zoo_op2(zoo_builder_t *b, ap_op_kind_t kind, const char *name, const char *rule, double flops,
            int first, int second);
/* Most of an operator of these models. */
enum { ZOO_OPERANDS = 28, ZOO_RESULTS = 3 };

/* Any operator; operands end at the first negative id. Returns its first result. */
int zoo_any(zoo_builder_t *b, const zoo_op_t *op, const int *operands, int *results);
int zoo_any1(zoo_builder_t *b, const zoo_op_t *op, int operand);
int zoo_any2(zoo_builder_t *b, const zoo_op_t *op, int first, int second);

/* Scale and shift of `size`, or with `shift` false scale alone (RMS norm). */
int zoo_norm(zoo_builder_t *b, const char *name, const char *rule, int64_t size, bool shift, int x);
/* A product with a new weight of these dimensions; `bias_rule` adds a bias of `bias` dimensions. */
int zoo_linear(zoo_builder_t *b, const char *name, const char *rule, int rank, const int64_t *dims,
               int x);
int zoo_bias(zoo_builder_t *b, const char *name, const char *rule, int rank, const int64_t *dims,
             int x);

/* The sum of two sequences. */
int zoo_residual(zoo_builder_t *b, const char *name, int x, int y);

void zoo_layer(zoo_builder_t *b, int layer);
void zoo_loss(zoo_builder_t *b, int loss, bool is_gradient);

/* The sizes of one family: what is in the table of names. */
typedef struct zoo_model {
    const char *name;
    void (*build)(zoo_builder_t *b, const struct zoo_model *model, const ap_zoo_params_t *params);
    int hidden, layers, heads, kv_heads, head_width, feed_forward, experts, used_experts;
    int vocabulary, sequence;
    bool head_norms; /* queries and keys are normalised (Qwen3) */
    bool relative;   /* scores see distances instead of positions (Transformer-XL, Gopher) */
    bool tied;       /* the head has the words of the embedding, whatever is asked for */
    /* Attention through latents (DeepSeek); 0: none. `head_width` is that of keys and values. */
    int q_latent, kv_latent, rotary_width;
    /* The first layers are dense and of another width; each of the others also has an expert for
     * all tokens. */
    int dense_layers, dense_width;
    bool shared_expert;
} zoo_model_t;

typedef struct zoo_family {
    const zoo_model_t *models;
    size_t count;
} zoo_family_t;

extern const zoo_family_t zoo_gpts, zoo_moes, zoo_wresnets, zoo_unets, zoo_decoders, zoo_t5s,
    zoo_dlrms;

/* Final norm, head and cross entropy; `words` < 0: a head of its own. */
void zoo_language_head(zoo_builder_t *b, const zoo_model_t *model, const ap_zoo_params_t *params,
                       bool shift, int words, int x);
