/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a finished graph knows about its layers: what passes between them. Where one activation
 * passes, it is the boundary, and stages may cut it as they like. Where several do, one of them is
 * the boundary, that which the next layer needs of the layer before; the others, which skip layers,
 * pass as resting copies, whose cut does not depend on the stages, so that the cost of a stage does
 * not depend on where they come from or go to.
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
            return XM_INVALID("graph '%s': operator '%s' is in layer %d after layer %d",
                              graph->name, op->name, op->layer, layer);
        }
        layer = op->layer;
    }
    graph->layers = layer + 1;
    return XM_OK;
}

/* Notes the last layer that uses each activation; `used` says of each tensor whether an operator of
 * @p layer does. */
static void find_uses(const ap_graph_t *graph, int *last, int layer, bool *used)
{
    for (int t = 0; t < graph->tensor_count; ++t) {
        used[t] = false;
    }
    for (int o = 0; o < graph->op_count; ++o) {
        const ap_op_t *op = &graph->ops[o];

        for (int i = 0; i < op->operand_count && op->phase == AP_PHASE_FORWARD; ++i) {
            int tensor = op->operands[i];

            last[tensor] = op->layer > last[tensor] ? op->layer : last[tensor];
            used[tensor] = used[tensor] || op->layer == layer;
        }
    }
}

/* How well a tensor that passes after a layer stands for what passes there: best is what this layer
 * makes for the next, then what came as the boundary already. */
static int suits(const ap_graph_t *graph, int layer, int tensor, const bool *used)
{
    if (!used[tensor]) {
        return 1;
    }
    if (graph->tensors[tensor].layer == layer) {
        return 4;
    }
    return layer > 0 && graph->boundary[layer - 1] == tensor ? 3 : 2;
}

/* The boundary after a layer: of equals the tensor that is made last. The forward operators alone
 * decide: gradients pass the same cuts the other way, under the same tensors. */
static xm_status_t find_boundary(ap_graph_t *graph, int layer, int *last, bool *used)
{
    int best = 0;

    find_uses(graph, last, layer + 1, used);
    for (int t = 0; t < graph->tensor_count; ++t) {
        const ap_tensor_t *tensor = &graph->tensors[t];

        if (tensor->kind == AP_TENSOR_ACTIVATION && tensor->layer <= layer && last[t] > layer &&
            suits(graph, layer, t, used) >= best) {
            best = suits(graph, layer, t, used);
            graph->boundary[layer] = t;
        }
    }
    return best > 0 ? XM_OK
                    : XM_INVALID("graph '%s': nothing passes from layer %d to layer %d",
                                 graph->name, layer, layer + 1);
}

bool ap_graph_boundary_rests(const ap_graph_t *graph, int layer)
{
    int tensor = graph->boundary[layer];

    return tensor >= 0 && graph->tensors[tensor].layer < layer &&
           graph->boundary[layer - 1] != tensor;
}

bool ap_graph_reads_rest(const ap_graph_t *graph, int layer, int tensor)
{
    const ap_tensor_t *of = &graph->tensors[tensor];

    return of->kind == AP_TENSOR_ACTIVATION && of->layer < layer &&
           graph->boundary[layer - 1] != tensor;
}

static void note_rest(ap_graph_t *graph, int layer, int tensor)
{
    graph->rest_until[tensor] =
        layer > graph->rest_until[tensor] ? layer : graph->rest_until[tensor];
}

/* Finds the tensors that layers read other than as their boundary. */
static void find_rests(ap_graph_t *graph)
{
    for (int t = 0; t < graph->tensor_count; ++t) {
        graph->rest_until[t] = -1;
    }
    for (int o = 0; o < graph->op_count; ++o) {
        const ap_op_t *op = &graph->ops[o];

        for (int i = 0; i < op->operand_count && op->phase == AP_PHASE_FORWARD; ++i) {
            if (ap_graph_reads_rest(graph, op->layer, op->operands[i])) {
                note_rest(graph, op->layer, op->operands[i]);
            }
        }
    }
    for (int layer = 0; layer + 1 < graph->layers; ++layer) {
        if (ap_graph_boundary_rests(graph, layer)) {
            note_rest(graph, layer, graph->boundary[layer]);
        }
    }
}

static xm_status_t find_boundaries(ap_graph_t *graph)
{
    xm_arena_t scratch = {0};
    int *last = xm_arena_get(&scratch, (size_t)graph->tensor_count, sizeof(*last));
    bool *used = xm_arena_get(&scratch, (size_t)graph->tensor_count, sizeof(*used));
    xm_status_t status = XM_OK;

    graph->boundary = xm_arena_take(&graph->arena, (size_t)graph->layers * sizeof(int));
    graph->rest_until = xm_arena_take(&graph->arena, (size_t)graph->tensor_count * sizeof(int));
    if (graph->arena.failed || scratch.failed) {
        status = XM_NO_MEMORY("%d layers", graph->layers);
    } else {
        graph->boundary[graph->layers - 1] = -1;
    }
    for (int layer = 0; layer + 1 < graph->layers && status == XM_OK; ++layer) {
        status = find_boundary(graph, layer, last, used);
    }
    if (status == XM_OK) {
        find_rests(graph);
    }
    xm_arena_clear(&scratch);
    return status;
}

/* Whether a layer of a range reads a resting copy: of an operand, or to hand it on as boundary. */
static bool range_reads(const ap_graph_t *graph, int first, int last, int tensor)
{
    for (int layer = first; layer <= last; ++layer) {
        if (graph->boundary[layer] == tensor && ap_graph_boundary_rests(graph, layer)) {
            return true;
        }
    }
    for (int o = 0; o < graph->op_count; ++o) {
        const ap_op_t *op = &graph->ops[o];

        for (int i = 0; i < op->operand_count && op->phase == AP_PHASE_FORWARD; ++i) {
            if (op->operands[i] == tensor && op->layer >= first && op->layer <= last &&
                ap_graph_reads_rest(graph, op->layer, tensor)) {
                return true;
            }
        }
    }
    return false;
}

int ap_graph_resting(const ap_graph_t *graph, const int from[2], const int to[2], int *tensors)
{
    int count = 0;

    for (int t = 0; t < graph->tensor_count; ++t) {
        if (graph->rest_until[t] >= to[0] && graph->tensors[t].layer >= from[0] &&
            graph->tensors[t].layer <= from[1] && range_reads(graph, to[0], to[1], t)) {
            tensors[count++] = t;
        }
    }
    return count;
}

/* May be called again after a failure, with the graph changed in between. */
xm_status_t ap_graph_finish(ap_graph_t *graph)
{
    XM_NEED_ARGUMENTS(graph);
    xm_status_t status;

    if (graph->finished) {
        return XM_INVALID("the graph '%s' is finished", graph->name);
    }
    if (graph->op_count == 0) {
        return XM_INVALID("the graph '%s' has no operators", graph->name);
    }
    status = check_layers(graph);
    XM_THEN(status, find_boundaries(graph));
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

int ap_graph_rests_until(const ap_graph_t *graph, int tensor)
{
    return graph->rest_until[tensor];
}

xm_status_t ap_graph_freeze(ap_graph_t *graph, int layers)
{
    if (layers < 0 || layers >= graph->layers) {
        return XM_INVALID("%d of the %d layers of %s cannot be frozen: at least one is trained",
                          layers, graph->layers, graph->name);
    }
    graph->frozen = layers;
    return XM_OK;
}

int ap_graph_frozen(const ap_graph_t *graph)
{
    return graph->frozen;
}

static bool is_trained(const ap_graph_t *graph, const ap_tensor_t *tensor)
{
    return tensor->kind == AP_TENSOR_PARAMETER && tensor->layer >= graph->frozen;
}

/* One pass is enough, for operators stand in order. */
void ap_graph_learning(const ap_graph_t *graph, bool *learns)
{
    for (int t = 0; t < graph->tensor_count; ++t) {
        learns[t] =
            is_trained(graph, &graph->tensors[t]) && ap_dtype_is_smooth(graph->tensors[t].dtype);
    }
    for (int o = 0; o < graph->op_count; ++o) {
        const ap_op_t *op = &graph->ops[o];
        bool any = false;

        for (int i = 0; i < op->operand_count; ++i) {
            any = any || learns[op->operands[i]];
        }
        for (int r = 0; r < op->result_count; ++r) {
            learns[op->results[r]] =
                any && ap_dtype_is_smooth(graph->tensors[op->results[r]].dtype);
        }
    }
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
        if (is_trained(graph, &graph->tensors[t])) {
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
        hash = mix_int(hash, layer > 0 && ap_graph_reads_rest(graph, layer, tensor));
        hash = mix(hash, t->shape.dims, (size_t)t->shape.rank * sizeof(t->shape.dims[0]));
        if (ap_tensor_demands(t)) {
            hash = mix(hash, t->cut, sizeof(t->cut));
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
    hash = mix(hash, op->touched,
               (size_t)(op->operand_count + op->result_count) * sizeof(*op->touched));
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
        hash = mix_int(hash, graph->rest_until[op->results[r]] > layer);
    }
    return hash;
}

/* The boundary after a layer, which need not be a tensor that the layer touches. */
static uint64_t mix_boundary(const ap_graph_t *graph, int layer, uint64_t hash)
{
    const ap_tensor_t *t;

    if (layer < 0 || graph->boundary[layer] < 0) {
        return mix_int(hash, -1);
    }
    t = &graph->tensors[graph->boundary[layer]];
    hash = mix_int(hash, t->dtype);
    hash = mix_int(hash, ap_graph_boundary_rests(graph, layer));
    return mix(hash, t->shape.dims, (size_t)t->shape.rank * sizeof(t->shape.dims[0]));
}

/* A collision would give a layer the costs of another one. With 64 bits and at most some hundreds
 * of layers that is not guarded against. */
uint64_t ap_graph_layer_hash(const ap_graph_t *graph, int layer)
{
    numbering_t numbering = {.local = malloc((size_t)graph->tensor_count * sizeof(int))};
    /* Frozen layers have no backward pass, and the first that is trained has no gradient to give.
     */
    uint64_t hash = layer < graph->frozen ? 1 : graph->frozen > 0 && layer == graph->frozen ? 2 : 0;

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
    hash = mix_boundary(graph, layer - 1, hash);
    return mix_boundary(graph, layer, hash);
}
