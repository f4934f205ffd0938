/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a finished graph guarantees about its layers. The planner cuts a model between layers, and a
 * pipeline boundary is priced for one tensor; so exactly one activation may pass from each layer to
 * the next, and this is checked once, here, and relied on everywhere else.
 *
 * The hash of a layer is what makes a model of 96 blocks as cheap to plan as one of three: layers
 * of equal hash share their tables. It must see everything that a cost depends on and must not see
 * names.
 */

#include "planner/graph/graph_private.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "comm/base.h"

/* Forward layers start at 0 and ascend without a gap. */
static xm_status_t check_layers(ap_graph_t *graph)
{
    int layer = 0;

    for (int o = 0; o < graph->op_count; ++o) {
        const ap_op_t *op = &graph->ops[o];

        if (op->phase != AP_PHASE_FORWARD) {
            continue;
        }
        if (op->layer != layer && op->layer != layer + 1) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "graph '%s': operator '%s' is in layer %d after layer %d",
                                graph->name, op->name, op->layer, layer);
        }
        layer = op->layer;
    }
    graph->layers = layer + 1;
    return XM_OK;
}

/* Records the activation that one forward operand carries over cuts; a second one is refused. A
 * tensor that is used several layers later passes all the cuts between, and occupies each of
 * them. */
static xm_status_t cross_cuts(ap_graph_t *graph, const ap_op_t *op, int tensor)
{
    const ap_tensor_t *crossing = &graph->tensors[tensor];

    if (crossing->kind != AP_TENSOR_ACTIVATION) {
        return XM_OK;
    }
    for (int layer = crossing->layer; layer < op->layer; ++layer) {
        if (graph->boundary[layer] >= 0 && graph->boundary[layer] != tensor) {
            return xm_error_set(
                XM_ERR_INVALID_ARGUMENT,
                "graph '%s': both '%s' and '%s' pass from layer %d to layer %d (used by '%s')",
                graph->name, graph->tensors[graph->boundary[layer]].name, crossing->name, layer,
                layer + 1, op->name);
        }
        graph->boundary[layer] = tensor;
    }
    return XM_OK;
}

/* The forward operators alone decide: gradients pass the same cuts the other way, under the same
 * tensors. */
static xm_status_t find_boundaries(ap_graph_t *graph)
{
    graph->boundary = malloc((size_t)graph->layers * sizeof(int));
    if (graph->boundary == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d layers", graph->layers);
    }
    for (int layer = 0; layer < graph->layers; ++layer) {
        graph->boundary[layer] = -1;
    }
    for (int o = 0; o < graph->op_count; ++o) {
        const ap_op_t *op = &graph->ops[o];

        for (int i = 0; i < op->operand_count && op->phase == AP_PHASE_FORWARD; ++i) {
            xm_status_t status = cross_cuts(graph, op, op->operands[i]);

            if (status != XM_OK) {
                return status;
            }
        }
    }
    for (int layer = 0; layer + 1 < graph->layers; ++layer) {
        if (graph->boundary[layer] < 0) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "graph '%s': nothing passes from layer %d to layer %d", graph->name,
                                layer, layer + 1);
        }
    }
    return XM_OK;
}

/* May be called again after a failure, with the graph changed in between. */
xm_status_t ap_graph_finish(ap_graph_t *graph)
{
    if (XM_IS_NULL(graph)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    xm_status_t status;

    if (graph->finished) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "the graph '%s' is finished", graph->name);
    }
    if (graph->op_count == 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "the graph '%s' has no operators",
                            graph->name);
    }
    status = check_layers(graph);
    if (status == XM_OK) {
        free(graph->boundary);
        graph->boundary = NULL;
        status = find_boundaries(graph);
    }
    graph->finished = status == XM_OK;
    return status;
}

int ap_graph_layers(const ap_graph_t *graph)
{
    if (XM_IS_NULL(graph)) {
        return 0;
    }
    return graph->layers;
}

int ap_graph_boundary(const ap_graph_t *graph, int layer)
{
    return graph->boundary[layer];
}

double ap_graph_layer_flops(const ap_graph_t *graph, int layer)
{
    double flops = 0;

    for (int o = 0; o < graph->op_count; ++o) {
        flops += graph->ops[o].layer == layer ? graph->ops[o].flops : 0;
    }
    return flops;
}

double ap_graph_parameters(const ap_graph_t *graph)
{
    if (XM_IS_NULL(graph)) {
        return 0;
    }
    double parameters = 0;

    for (int t = 0; t < graph->tensor_count; ++t) {
        if (graph->tensors[t].kind == AP_TENSOR_PARAMETER) {
            parameters += ap_graph_tensor_bytes(graph, t) / ap_dtype_bytes(graph->tensors[t].dtype);
        }
    }
    return parameters;
}

/* Each value is hashed with the hash so far as seed, so the order of what is mixed in counts. */
static uint64_t mix(uint64_t hash, const void *data, size_t size)
{
    return XXH64(data, size, hash);
}

static uint64_t mix_int(uint64_t hash, int64_t value)
{
    return mix(hash, &value, sizeof(value));
}

/* Numbers tensors in the order a layer first touches them, which is what two equal layers share. */
typedef struct numbering {
    int *local; /* per tensor, -1 = not touched */
    int count;
} numbering_t;

/* What a tensor is enters the hash at its first use only, then its number is enough. An activation
 * from another layer differs from one of this layer, because it arrives over a boundary. */
static uint64_t mix_tensor(const ap_graph_t *graph, int layer, int tensor, numbering_t *numbering,
                           uint64_t hash)
{
    const ap_tensor_t *t = &graph->tensors[tensor];

    if (numbering->local[tensor] < 0) {
        numbering->local[tensor] = numbering->count++;
        hash = mix_int(hash, t->kind);
        hash = mix_int(hash, t->dtype);
        hash = mix_int(hash, t->kind == AP_TENSOR_ACTIVATION && t->layer != layer);
        hash = mix(hash, t->shape.dims, (size_t)t->shape.rank * sizeof(t->shape.dims[0]));
        if (ap_tensor_demands(t)) {
            hash = mix(hash, t->parts, sizeof(t->parts));
        }
    }
    return mix_int(hash, numbering->local[tensor]);
}

/* Names stay out. FLOPs are hashed as they lie in memory: equal layers were built by equal
 * arithmetic, so their sums are equal to the bit. */
static uint64_t mix_op(const ap_graph_t *graph, int layer, const ap_op_t *op,
                       numbering_t *numbering, uint64_t hash)
{
    hash = mix_int(hash, op->kind);
    hash = mix_int(hash, op->phase);
    hash = mix_int(hash, op->linear);
    hash = mix(hash, op->rule.text, strlen(op->rule.text));
    for (int f = 0; f < op->rule.factors; ++f) {
        hash = mix_int(hash, op->rule.factor[f].kind);
        hash = mix_int(hash, op->rule.factor[f].size);
    }
    hash = mix(hash, op->touched, sizeof(op->touched));
    hash = mix(hash, &op->flops, sizeof(op->flops));
    hash = mix(hash, &op->repeat, sizeof(op->repeat));
    for (int i = 0; i < op->operand_count; ++i) {
        hash = mix_tensor(graph, layer, op->operands[i], numbering, hash);
    }
    for (int r = 0; r < op->result_count; ++r) {
        hash = mix_tensor(graph, layer, op->results[r], numbering, hash);
        /* Which result leaves the layer decides what crosses the boundary, so it is part of the
         * structure. */
        hash = mix_int(hash, graph->boundary[layer] == op->results[r]);
    }
    return hash;
}

/* A collision would give a layer the costs of another one. With 64 bits and at most some hundreds
 * of layers that is not guarded against. */
uint64_t ap_graph_layer_hash(const ap_graph_t *graph, int layer)
{
    numbering_t numbering = {.local = malloc((size_t)graph->tensor_count * sizeof(int))};
    uint64_t hash = 0;

    if (numbering.local == NULL) {
        return (uint64_t)layer; /* distinct per layer: slower, never wrong */
    }
    for (int t = 0; t < graph->tensor_count; ++t) {
        numbering.local[t] = -1;
    }
    for (int o = 0; o < graph->op_count; ++o) {
        if (graph->ops[o].layer == layer) {
            hash = mix_op(graph, layer, &graph->ops[o], &numbering, hash);
        }
    }
    free(numbering.local);
    return hash;
}
