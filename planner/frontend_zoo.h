/**
 * @file frontend_zoo.h
 * Built-in models by name.
 *
 *  - `gpt-125m` … `gpt-76b`: the GPT table of Alpa (OSDI'22, table 4 and its code): sequence 1024,
 *    vocabulary 51200, 16-bit weights; per block two layer norms, fused QKV projection, attention
 *    (scores, softmax, context, projection), MLP with GELU, two residual additions, biases. Layer 0
 *    is the embedding, 1 … L the blocks, L + 1 final norm, head and cross entropy.
 *  - `mlpN`: N square weights, h = x·w1·…·wN, the error h - y as the loss's gradient; 32-bit; one
 *    layer per weight. The graphs of the golden intra-operator costs.
 *
 * The result is a finished forward graph with its loss named; training.h expands it.
 */
#ifndef AP_PLANNER_FRONTEND_ZOO_H
#define AP_PLANNER_FRONTEND_ZOO_H

#include "planner/graph.h"

typedef struct ap_zoo_params {
    size_t struct_size;
    int64_t batch;        /**< samples of one micro-batch; 0 = 1 (gpt), 1024 (mlp) */
    int64_t hidden;       /**< mlp only; 0 = 128 */
    int layers;           /**< gpt only: blocks, 0 = what the table says */
    bool tied_embeddings; /**< gpt only: the head uses the embedding's weight */
} ap_zoo_params_t;

#define AP_ZOO_PARAMS_INIT                                                                         \
    {                                                                                              \
        .struct_size = sizeof(ap_zoo_params_t)                                                     \
    }

/** Name @p index of the gpt table, NULL past the end. `mlpN` is not listed. */
XM_API const char *ap_zoo_name(size_t index);

/** XM_ERR_NOT_FOUND with the nearest name when there is no such model. */
XM_API xm_status_t ap_zoo_create(const char *name, const ap_zoo_params_t *params,
                                 ap_graph_t **graph);

#endif
