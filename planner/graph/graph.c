/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operator graph while it is built: tensors and operators in two growing arrays, named by their
 * index. Indices and not pointers, because the arrays move when they grow, and because passes copy
 * operators from graph to graph and only have to map numbers.
 *
 * An operator brings its sharding rule, and the shapes of its results follow from the rule. So a
 * rule that does not fit its operands is refused where it is added, and nothing later has to check
 * shapes again. planner/graph/layers.c validates the whole when it is finished.
 */

#include "planner/graph/graph_private.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

const char *ap_dtype_name(ap_dtype_t dtype)
{
    static const char *const names[AP_DTYPE_COUNT] = {"float16", "bfloat16", "float32",
                                                      "float64", "int32",    "int8",
                                                      "int16",   "int64",    "complex128"};

    return names[dtype];
}

int ap_dtype_bytes(ap_dtype_t dtype)
{
    static const int bytes[AP_DTYPE_COUNT] = {2, 2, 4, 8, 4, 1, 2, 8, 16};

    return bytes[dtype];
}

bool ap_dtype_is_smooth(ap_dtype_t dtype)
{
    return dtype == AP_DTYPE_F16 || dtype == AP_DTYPE_BF16 || dtype == AP_DTYPE_F32 ||
           dtype == AP_DTYPE_F64 || dtype == AP_DTYPE_C128;
}

const char *ap_op_kind_name(ap_op_kind_t kind)
{
    static const char *const names[AP_OP_KIND_COUNT] = {
        "einsum",        "elementwise", "reduce",  "layer_norm", "softmax",  "embedding",
        "cross_entropy", "split",       "reshape", "custom",     "gradient", "update"};

    return names[kind];
}

char *ap_graph_keep_name(ap_graph_t *graph, const char *name)
{
    size_t size = name != NULL ? strlen(name) + 1 : 0;
    char *copy = name != NULL ? xm_arena_take(&graph->arena, size) : NULL;

    return copy != NULL ? xm_text_copy(name, copy, size) : NULL;
}

xm_status_t ap_graph_create(const char *name, ap_graph_t **graph)
{
    XM_NEED_ARGUMENTS(name, graph);
    ap_graph_t *made = calloc(1, sizeof(*made));

    if (made == NULL || (made->name = ap_graph_keep_name(made, name)) == NULL) {
        free(made);
        return XM_NO_MEMORY("the graph '%s'", name);
    }
    made->loss = -1;
    *graph = made;
    return XM_OK;
}

void ap_graph_destroy(ap_graph_t *graph)
{
    if (graph == NULL) {
        return;
    }
    for (int o = 0; o < graph->op_count; ++o) {
        ap_sharding_rule_destroy(&graph->ops[o].rule);
    }
    free(graph->tensors);
    free(graph->ops);
    xm_arena_clear(&graph->arena);
    free(graph);
}

/* A finished graph is shared between threads without locks, so every function that changes one
 * begins here. */
static xm_status_t check_open(const ap_graph_t *graph)
{
    if (graph->finished) {
        return XM_INVALID("the graph '%s' is finished", graph->name);
    }
    return XM_OK;
}

static xm_status_t check_tensor(const ap_graph_t *graph, int tensor)
{
    if (tensor < 0 || tensor >= graph->tensor_count) {
        return XM_INVALID("the graph '%s' has no tensor %d (0 … %d)", graph->name, tensor,
                          graph->tensor_count - 1);
    }
    return XM_OK;
}

xm_status_t ap_graph_append_tensor(ap_graph_t *graph, const ap_tensor_t *tensor, const char *name,
                                   int *id)
{
    double elements = 1;
    char *copy;

    XM_NEED_MEMORY(XM_ARRAY_ROOM(graph->tensors, graph->tensor_capacity, graph->tensor_count),
                   "%d graph entries", graph->tensor_count + 1);
    for (int d = 0; d < tensor->shape.rank; ++d) {
        elements *= (double)tensor->shape.dims[d];
    }
    if (elements > (double)AP_MOST_ELEMENTS) {
        return XM_INVALID("tensor '%s' has more than 2^48 elements", name);
    }
    copy = ap_graph_keep_name(graph, name);
    XM_NEED_MEMORY(copy, "the tensor '%s'", name);
    graph->tensors[graph->tensor_count] = *tensor;
    graph->tensors[graph->tensor_count].name = copy;
    *id = graph->tensor_count++;
    return XM_OK;
}

xm_status_t ap_graph_reserve_op(ap_graph_t *graph)
{
    return XM_ARRAY_ROOM(graph->ops, graph->op_capacity, graph->op_count)
               ? XM_OK
               : XM_NO_MEMORY("%d graph entries", graph->op_count + 1);
}

xm_status_t ap_graph_add_tensor(ap_graph_t *graph, const char *name, ap_tensor_kind_t kind,
                                const ap_shape_t *shape, ap_dtype_t dtype, int *tensor)
{
    XM_NEED_ARGUMENTS(graph, name, shape, tensor);
    ap_tensor_t made = {.shape = *shape,
                        .dtype = dtype,
                        .kind = kind,
                        .producer = -1,
                        .layer = -1,
                        .alias_of = -1,
                        .taken_by = -1,
                        .gradient_of = -1};

    XM_TRY(check_open(graph));
    if (kind == AP_TENSOR_ACTIVATION || shape->rank < 0 || shape->rank > AP_MAX_RANK) {
        return XM_INVALID("tensor '%s' must be an input or a parameter of at most %d dimensions",
                          name, AP_MAX_RANK);
    }
    for (int d = 0; d < shape->rank; ++d) {
        if (shape->dims[d] <= 0) {
            return XM_INVALID("tensor '%s': dimension %d is %" PRId64 ", must be positive", name, d,
                              shape->dims[d]);
        }
    }
    return ap_graph_append_tensor(graph, &made, name, tensor);
}

/* The results of an operator that is about to be appended as number `id`. Their shapes come from
 * the rule; the first is called as the operator is, further ones get a number behind it. */
static xm_status_t append_results(ap_graph_t *graph, ap_op_t *op, int id,
                                  const ap_op_params_t *params)
{
    for (int r = 0; r < op->rule.results; ++r) {
        ap_tensor_t made = {.shape = ap_sharding_rule_shape(&op->rule, op->rule.operands + r),
                            .dtype = params->result_dtype,
                            .kind = AP_TENSOR_ACTIVATION,
                            .producer = id,
                            .layer = op->layer,
                            .alias_of = -1,
                            .taken_by = -1,
                            .gradient_of = -1};
        char name[256];

        (void)snprintf(name, sizeof(name), r == 0 ? "%s" : "%s.%d", params->name, r);
        XM_TRY(ap_graph_append_tensor(graph, &made, name, &op->results[r]));
    }
    return XM_OK;
}

/* Makes the rule of a text over the shapes of the operands. Sentences get the operator's name in
 * front, for the rule itself does not know whose it is. */
static xm_status_t make_rule(const ap_graph_t *graph, const ap_op_params_t *params,
                             ap_sharding_rule_t *rule)
{
    ap_shape_t *shapes = calloc((size_t)params->operand_count + 1, sizeof(*shapes));
    xm_status_t status = shapes == NULL ? XM_NO_MEMORY("the operator '%s'", params->name) : XM_OK;

    for (int o = 0; o < params->operand_count && status == XM_OK; ++o) {
        shapes[o] = graph->tensors[params->operands[o]].shape;
    }
    XM_THEN(status, ap_sharding_rule_create(params->rule, params->replicated, params->permuted,
                                            params->sizes, shapes, params->operand_count, rule));
    free(shapes);
    return status == XM_OK ? XM_OK : xm_error_prefix(status, "operator '%s'", params->name);
}

static xm_status_t check_operands(const ap_graph_t *graph, const ap_op_params_t *params)
{
    if (params->operand_count < 0) {
        return XM_INVALID("operator '%s' has %d operands", params->name, params->operand_count);
    }
    for (int o = 0; o < params->operand_count; ++o) {
        xm_status_t status = check_tensor(graph, params->operands[o]);

        if (status != XM_OK) {
            return xm_error_prefix(status, "operator '%s' operand %d", params->name, o);
        }
    }
    return XM_OK;
}

/* How much of each term an operator touches, checked against the number of terms. An embedding of
 * which nothing was said reads as many bytes of its table as its result has, term 2 of the rule. */
static xm_status_t set_touched(const ap_op_params_t *params, ap_op_t *op)
{
    const int terms = op->rule.operands + op->rule.results;
    bool given = false;

    for (int t = 0; t < terms && params->touched != NULL; ++t) {
        if (params->touched[t] < AP_TOUCHES_NONE || params->touched[t] > terms) {
            return XM_INVALID("operator '%s' touches term %d like term %d, of %d", params->name, t,
                              params->touched[t] - 1, terms);
        }
        op->touched[t] = params->touched[t];
        given = given || params->touched[t] != AP_TOUCHES_ALL;
    }
    if (params->kind == AP_OP_EMBEDDING && op->rule.operands == 2 && !given) {
        op->touched[1] = 2 + 1;
    }
    return XM_OK;
}

/* Fills in an operator that has its rule. */
static xm_status_t fill_op(ap_graph_t *graph, const ap_op_params_t *params, ap_op_t *op)
{
    XM_TRY(ap_op_open(graph, op, op->rule.operands, op->rule.results));
    XM_TRY(set_touched(params, op));
    XM_TRY(ap_graph_reserve_op(graph));
    for (int r = 0; r < op->result_count && params->differentiates != NULL; ++r) {
        op->differentiates[r] = params->differentiates[r];
    }
    op->repeat = params->repeat > 0 ? params->repeat : 1;
    /* FLOPs are of all runs in a micro-batch, so that sums over operators need not know of
     * loops. */
    op->flops = op->repeat * params->flops_per_point * ap_sharding_rule_points(&op->rule);
    op->name = ap_graph_keep_name(graph, params->name);
    op->label = ap_graph_keep_name(graph, params->label);
    if (op->name == NULL || (params->label != NULL && op->label == NULL)) {
        return XM_NO_MEMORY("the operator '%s'", params->name);
    }
    return append_results(graph, op, graph->op_count, params);
}

/* An operator enters the graph as the last step, when nothing can fail any more. A failure before
 * that may leave result tensors behind, but only when memory is short, and then the caller gives
 * the graph up. */
xm_status_t ap_graph_add_op_by_rule(ap_graph_t *graph, const ap_op_params_t *params,
                                    ap_sharding_rule_t *rule, int *results)
{
    ap_op_t op = {.kind = params->kind,
                  .phase = params->phase,
                  .layer = graph->layer,
                  .linear = params->linear,
                  .forward = params->forward,
                  .rule = *rule};
    xm_status_t status = check_open(graph);

    XM_THEN(status, check_operands(graph, params));
    XM_THEN(status, fill_op(graph, params, &op));
    if (status != XM_OK) {
        ap_sharding_rule_destroy(&op.rule);
        return status;
    }
    for (int o = 0; o < op.operand_count; ++o) {
        ap_tensor_t *operand = &graph->tensors[params->operands[o]];

        op.operands[o] = params->operands[o];
        /* An input or parameter belongs to the layer that uses it first. */
        if (operand->layer < 0) {
            operand->layer = op.layer;
        }
    }
    graph->ops[graph->op_count++] = op;
    for (int r = 0; r < op.result_count; ++r) {
        results[r] = op.results[r];
    }
    return XM_OK;
}

xm_status_t ap_graph_add_op(ap_graph_t *graph, const ap_op_params_t *params, int *results)
{
    XM_NEED_ARGUMENTS(graph, results);
    ap_op_params_t own = AP_OP_PARAMS_INIT;
    ap_sharding_rule_t rule;

    XM_TRY(XM_PARAMS_COPY(ap_op_params_t, &own, params));
    XM_TRY(check_open(graph));
    XM_TRY(check_operands(graph, &own));
    XM_TRY(make_rule(graph, &own, &rule));
    return ap_graph_add_op_by_rule(graph, &own, &rule, results);
}

size_t ap_graph_terms(const ap_graph_t *graph)
{
    size_t terms = 0;

    for (int o = 0; o < graph->op_count; ++o) {
        terms += (size_t)graph->ops[o].operand_count + (size_t)graph->ops[o].result_count;
    }
    return terms;
}

xm_status_t ap_graph_set_layer(ap_graph_t *graph, int layer)
{
    XM_NEED_ARGUMENTS(graph);

    XM_TRY(check_open(graph));
    if (layer < 0) {
        return XM_INVALID("layer %d is negative", layer);
    }
    graph->layer = layer;
    return XM_OK;
}

bool ap_shape_equal(const ap_shape_t *a, const ap_shape_t *b)
{
    return a->rank == b->rank &&
           memcmp(a->dims, b->dims, (size_t)a->rank * sizeof(a->dims[0])) == 0;
}

/* Both tensors exist and have one shape. */
static xm_status_t check_pair(const ap_graph_t *graph, int a, int b)
{
    XM_TRY(check_open(graph));
    XM_TRY(check_tensor(graph, a));
    XM_TRY(check_tensor(graph, b));
    if (!ap_shape_equal(&graph->tensors[a].shape, &graph->tensors[b].shape)) {
        return XM_INVALID("tensors '%s' and '%s' differ in shape", graph->tensors[a].name,
                          graph->tensors[b].name);
    }
    return XM_OK;
}

/* Aliases are kept in both directions: whoever prices memory asks from the old tensor, whoever
 * prices an update asks from the new one. */
xm_status_t ap_graph_set_alias(ap_graph_t *graph, int tensor, int old)
{
    XM_NEED_ARGUMENTS(graph);
    XM_TRY(check_pair(graph, tensor, old));

    graph->tensors[tensor].alias_of = old;
    graph->tensors[old].taken_by = tensor;
    return XM_OK;
}

xm_status_t ap_graph_set_gradient(ap_graph_t *graph, int tensor, int of)
{
    XM_NEED_ARGUMENTS(graph);
    XM_TRY(check_pair(graph, tensor, of));

    graph->tensors[tensor].gradient_of = of;
    return XM_OK;
}

xm_status_t ap_graph_set_loss(ap_graph_t *graph, int tensor, bool is_gradient)
{
    XM_NEED_ARGUMENTS(graph);

    XM_TRY(check_open(graph));
    XM_TRY(check_tensor(graph, tensor));
    /* Only a scalar can have the implicit gradient 1. */
    if (!is_gradient && graph->tensors[tensor].shape.rank != 0) {
        return XM_INVALID("the loss '%s' is not a scalar", graph->tensors[tensor].name);
    }
    graph->loss = tensor;
    graph->loss_is_gradient = is_gradient;
    return XM_OK;
}

const char *ap_graph_name(const ap_graph_t *graph)
{
    if (XM_IS_NULL(graph)) {
        return NULL;
    }
    return graph->name;
}

int ap_graph_tensors(const ap_graph_t *graph)
{
    if (XM_IS_NULL(graph)) {
        return 0;
    }
    return graph->tensor_count;
}

int ap_graph_ops(const ap_graph_t *graph)
{
    if (XM_IS_NULL(graph)) {
        return 0;
    }
    return graph->op_count;
}

const ap_tensor_t *ap_graph_tensor(const ap_graph_t *graph, int tensor)
{
    return &graph->tensors[tensor];
}

const ap_op_t *ap_graph_op(const ap_graph_t *graph, int op)
{
    return &graph->ops[op];
}

int ap_graph_loss(const ap_graph_t *graph, bool *is_gradient)
{
    if (is_gradient != NULL) {
        *is_gradient = graph->loss_is_gradient;
    }
    return graph->loss;
}

/* A double, because the bytes of all tensors together exceed what products of 64-bit numbers are
 * safe for. */
double ap_graph_tensor_bytes(const ap_graph_t *graph, int tensor)
{
    const ap_tensor_t *t = &graph->tensors[tensor];
    double bytes = ap_dtype_bytes(t->dtype);

    for (int d = 0; d < t->shape.rank; ++d) {
        bytes *= (double)t->shape.dims[d];
    }
    return bytes;
}

/* A tensor that is overwritten inside a loop gets a new value with every round, though the operator
 * that made its first value ran once. */
double ap_graph_tensor_turns(const ap_graph_t *graph, int tensor)
{
    const ap_tensor_t *of = &graph->tensors[tensor];
    int next = of->taken_by >= 0 ? graph->tensors[of->taken_by].producer : -1;
    double made = of->producer >= 0 ? graph->ops[of->producer].repeat : 1;

    return next >= 0 && graph->ops[next].repeat > made ? graph->ops[next].repeat : made;
}

ap_dtype_t ap_graph_op_dtype(const ap_graph_t *graph, const ap_op_t *op)
{
    const int *tensors = op->operand_count > 0 ? op->operands : op->results;
    int count = op->operand_count > 0 ? op->operand_count : op->result_count;
    ap_dtype_t widest = graph->tensors[tensors[0]].dtype;

    for (int t = 1; t < count; ++t) {
        ap_dtype_t dtype = graph->tensors[tensors[t]].dtype;
        bool smooth = ap_dtype_is_smooth(dtype);

        if (smooth != ap_dtype_is_smooth(widest) ? smooth
                                                 : ap_dtype_bytes(dtype) > ap_dtype_bytes(widest)) {
            widest = dtype;
        }
    }
    return widest;
}

bool ap_op_passes_on(const ap_op_t *op)
{
    for (int t = 0; t < op->operand_count + op->result_count; ++t) {
        if (op->touched[t] != AP_TOUCHES_NONE) {
            return false;
        }
    }
    return true;
}

void ap_graph_set_fusion(ap_graph_t *graph, int op, ap_fusion_t fusion)
{
    graph->ops[op].fusion = fusion;
}
