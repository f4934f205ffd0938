/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a forward graph to the training step, by reverse accumulation over operators: backwards
 * through the forward pass, each operator adds what computes its operands' gradients from its
 * result's. What is derived are shapes, rules and FLOPs, not formulas, so one function per kind is
 * enough for any operator of the kind.
 *
 * Every backward operator uses the letters of its forward operator. That is what lets one
 * assignment of mesh axes shard an operator with all that belongs to it, and what Megatron's
 * column-row pattern falls out of.
 */

#include "planner/passes/training.h"

#include "comm/base.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/graph.h"

/* The gradients found so far, while walking the forward operators backwards. */
typedef struct expansion {
    ap_graph_t *graph;
    int *gradient;       /* per forward tensor: tensor id, -1 = none yet */
    bool *needs;         /* per forward tensor: depends on a parameter */
    int forward_tensors; /* ids below are forward tensors */
    int forward_ops;
} expansion_t;

/* Adam keeps two moments; 16-bit weights have them, and a master copy, in 32 bits. */
double ap_training_state_bytes(ap_optimizer_t optimizer, ap_dtype_t dtype)
{
    if (optimizer == AP_OPTIMIZER_SGD) {
        return 0;
    }
    return ap_dtype_bytes(dtype) < 4 ? 12 : 2 * ap_dtype_bytes(dtype);
}

double ap_training_version_share(const ap_graph_t *graph)
{
    double share = 0.0;

    for (int t = 0; t < ap_graph_tensors(graph); ++t) {
        const ap_tensor_t *tensor = ap_graph_tensor(graph, t);
        double bytes = ap_dtype_bytes(tensor->dtype);

        if (tensor->kind == AP_TENSOR_PARAMETER) {
            share = fmax(share, bytes / (2.0 * bytes + ap_training_state_bytes(AP_OPTIMIZER_ADAM,
                                                                               tensor->dtype)));
        }
    }
    return share;
}

double ap_training_update_bytes(ap_optimizer_t optimizer, ap_dtype_t dtype)
{
    return 2 * ap_training_state_bytes(optimizer, dtype) + 3 * ap_dtype_bytes(dtype);
}

/* Writes the letters of one kind of factor as a string. */
static void letters_of_kind(const ap_sharding_rule_t *rule, ap_factor_kind_t kind, char *letters)
{
    for (int f = 0; f < rule->factors; ++f) {
        if (rule->factor[f].kind == kind) {
            *letters++ = rule->factor[f].letter;
        }
    }
    *letters = '\0';
}

/* Writes "b=8,s=1024,…" for those factors of `rule` whose letters stand in `text`. Sizes must be
 * told, because a backward operator's operands need not show those of a reduction. */
static void sizes_of(const ap_sharding_rule_t *rule, const char *text, char *sizes, size_t size)
{
    size_t length = 0;

    sizes[0] = '\0';
    for (int f = 0; f < rule->factors; ++f) {
        if (strchr(text, rule->factor[f].letter) != NULL) {
            int written =
                snprintf(sizes + length, size - length, "%s%c=%" PRId64, length > 0 ? "," : "",
                         rule->factor[f].letter, rule->factor[f].size);

            length += written > 0 ? (size_t)written : 0;
        }
    }
}

/* FLOPs per point of one run. */
static double flops_per_point(const ap_op_t *op)
{
    return op->flops / op->repeat / ap_sharding_rule_points(&op->rule);
}

/* Adds a backward operator of `op` over the factors of its rule, with so many FLOPs per point.
 * Result r is the gradient of operand `differentiates` + r. */
static xm_status_t add_backward(expansion_t *x, int op, ap_op_kind_t kind, const char *rule,
                                const int *operands, int operand_count, double flops,
                                const char *name, int differentiates, int *results)
{
    const ap_op_t forward = *ap_graph_op(x->graph, op); /* a copy: the array may move */
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    char sizes[AP_MAX_FACTORS * 24], replicated[AP_MAX_FACTORS + 1], permuted[AP_MAX_FACTORS + 1];

    sizes_of(&forward.rule, rule, sizes, sizeof(sizes));
    letters_of_kind(&forward.rule, AP_FACTOR_NEED_REPLICATION, replicated);
    letters_of_kind(&forward.rule, AP_FACTOR_PERMUTATION, permuted);
    params.kind = kind;
    params.phase = AP_PHASE_BACKWARD;
    params.name = name;
    params.rule = rule;
    params.sizes = sizes;
    params.replicated = replicated;
    params.permuted = permuted;
    params.operand_count = operand_count;
    memcpy(params.operands, operands, (size_t)operand_count * sizeof(int));
    /* A gradient has the type of what is differentiated. */
    params.result_dtype = ap_graph_tensor(x->graph, forward.operands[differentiates])->dtype;
    params.flops_per_point = flops;
    params.repeat = forward.repeat;
    params.forward = op;
    for (int r = 0; r < AP_MAX_RESULTS; ++r) {
        params.differentiates[r] = differentiates + r;
    }
    return ap_graph_add_op(x->graph, &params, results);
}

/* Notes `gradient` as the gradient of `tensor`, or as one more part of it; parts are summed by
 * operators that belong to no forward operator. */
static xm_status_t contribute(expansion_t *x, int tensor, int gradient)
{
    static const char letters[] = "abcdefgh";
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    char term[AP_MAX_RANK + 1], rule[3 * AP_MAX_RANK + 8], name[256];
    const ap_tensor_t *of = ap_graph_tensor(x->graph, tensor);
    xm_status_t status;

    if (x->gradient[tensor] < 0) {
        x->gradient[tensor] = gradient;
        /* The loss may be the gradient of two tensors; it keeps what it is. */
        if (gradient >= x->forward_tensors &&
            ap_graph_tensor(x->graph, gradient)->gradient_of < 0) {
            return ap_graph_set_gradient(x->graph, gradient, tensor);
        }
        return XM_OK;
    }
    (void)snprintf(term, sizeof(term), "%.*s", of->shape.rank, letters);
    (void)snprintf(rule, sizeof(rule), "%s,%s->%s", term, term, term);
    (void)snprintf(name, sizeof(name), "d_%s.sum", of->name);
    params.kind = AP_OP_ELEMENTWISE;
    params.phase = AP_PHASE_BACKWARD;
    params.name = name;
    params.rule = rule;
    params.operand_count = 2;
    params.operands[0] = x->gradient[tensor];
    params.operands[1] = gradient;
    params.result_dtype = of->dtype;
    params.flops_per_point = 1;
    params.linear = true;
    status = ap_graph_add_op(x->graph, &params, &x->gradient[tensor]);
    return status == XM_OK ? ap_graph_set_gradient(x->graph, x->gradient[tensor], tensor) : status;
}

/* Appends ",letters" of a term to a rule text (no comma at the start of a list). */
static void append_term(char *text, const ap_sharding_rule_t *rule, int term, bool first)
{
    char letters[AP_RULE_TEXT];
    size_t length = strlen(text);

    (void)ap_sharding_rule_term(rule, term, letters, sizeof(letters));
    (void)snprintf(text + length, AP_RULE_TEXT - length, "%s%s", first ? "" : ",", letters);
}

static void append_arrow(char *text)
{
    size_t length = strlen(text);

    (void)snprintf(text + length, AP_RULE_TEXT - length, "->");
}

/* What one backward operator reads: the gradient, then saved operands of the forward operator. */
typedef struct reading {
    char rule[AP_RULE_TEXT];
    int operands[AP_MAX_OPERANDS];
    int count;
} reading_t;

/* Of an operator with several results, the first that has a gradient stands for all. */
static reading_t read_gradient(const expansion_t *x, const ap_op_t *op)
{
    reading_t reading = {.count = 1};
    int r = 0;

    while (r + 1 < op->result_count && x->gradient[op->results[r]] < 0) {
        ++r;
    }
    reading.operands[0] = x->gradient[op->results[r]];
    append_term(reading.rule, &op->rule, op->rule.operands + r, true);
    return reading;
}

/* Saved tensors that do not fit beside the gradient are left out: their bytes are not counted. */
static void read_saved(reading_t *reading, const ap_op_t *op, int term)
{
    if (reading->count == AP_MAX_OPERANDS) {
        return;
    }
    reading->operands[reading->count++] = ap_op_tensor(op, term);
    append_term(reading->rule, &op->rule, term, false);
}

static void backward_name(const ap_op_t *op, const expansion_t *x, int operand, char *name,
                          size_t size)
{
    (void)snprintf(name, size, "d_%s.%s", ap_graph_tensor(x->graph, op->operands[operand])->name,
                   op->name);
}

/* Makes the gradient of one operand by one operator with one result. */
static xm_status_t finish_single(expansion_t *x, int id, const ap_op_t *op, reading_t *reading,
                                 int operand, ap_op_kind_t kind, double flops)
{
    char name[256];
    int result;
    xm_status_t status;

    append_arrow(reading->rule);
    append_term(reading->rule, &op->rule, operand, true);
    backward_name(op, x, operand, name, sizeof(name));
    status = add_backward(x, id, kind, reading->rule, reading->operands, reading->count, flops,
                          name, operand, &result);
    return status == XM_OK ? contribute(x, op->operands[operand], result) : status;
}

/* The gradient of a product is a product with the other operands, over the same factors; what was
 * contracted passes and what passed is contracted. */
static xm_status_t einsum_backward(expansion_t *x, int id, const ap_op_t *op)
{
    for (int i = 0; i < op->operand_count; ++i) {
        reading_t reading = read_gradient(x, op);
        xm_status_t status;

        if (!x->needs[op->operands[i]]) {
            continue;
        }
        for (int j = 0; j < op->operand_count; ++j) {
            if (j != i) {
                read_saved(&reading, op, j);
            }
        }
        /* 2, or for a convolution what its window makes of it. */
        status = finish_single(x, id, op, &reading, i, AP_OP_EINSUM, flops_per_point(op));
        if (status != XM_OK) {
            return status;
        }
    }
    return XM_OK;
}

static bool same_term(const ap_sharding_rule_t *rule, int a, int b)
{
    char left[AP_RULE_TEXT], right[AP_RULE_TEXT];

    return strcmp(ap_sharding_rule_term(rule, a, left, sizeof(left)),
                  ap_sharding_rule_term(rule, b, right, sizeof(right))) == 0;
}

/* The result's gradient itself is that of an operand of a sum with the same dimensions; a broadcast
 * operand sums over what it lacks. */
static xm_status_t elementwise_backward(expansion_t *x, int id, const ap_op_t *op)
{
    for (int i = 0; i < op->operand_count; ++i) {
        reading_t reading = read_gradient(x, op);
        xm_status_t status;

        if (!x->needs[op->operands[i]]) {
            continue;
        }
        if (op->linear && same_term(&op->rule, i, op->rule.operands)) {
            status = contribute(x, op->operands[i], reading.operands[0]);
        } else if (op->linear) {
            status = finish_single(x, id, op, &reading, i, AP_OP_REDUCE, 1);
        } else {
            for (int j = 0; j < op->operand_count; ++j) {
                read_saved(&reading, op, j);
            }
            status = finish_single(x, id, op, &reading, i, AP_OP_GRADIENT, flops_per_point(op) + 1);
        }
        if (status != XM_OK) {
            return status;
        }
    }
    return XM_OK;
}

/* One operator per operand: of the gradient and, unless linear, of all operands. */
static xm_status_t custom_backward(expansion_t *x, int id, const ap_op_t *op)
{
    for (int i = 0; i < op->operand_count; ++i) {
        reading_t reading = read_gradient(x, op);
        xm_status_t status;

        if (!x->needs[op->operands[i]]) {
            continue;
        }
        for (int j = 0; j < op->operand_count && !op->linear; ++j) {
            read_saved(&reading, op, j);
        }
        status = finish_single(x, id, op, &reading, i, AP_OP_GRADIENT, flops_per_point(op));
        if (status != XM_OK) {
            return status;
        }
    }
    return XM_OK;
}

/* The reverse movement, for every operand that was moved. It computes nothing. */
static xm_status_t movement_backward(expansion_t *x, int id, const ap_op_t *op)
{
    xm_status_t status = XM_OK;

    for (int i = 0; i < op->operand_count && status == XM_OK; ++i) {
        reading_t reading = read_gradient(x, op);

        if (x->needs[op->operands[i]]) {
            status = finish_single(x, id, op, &reading, i,
                                   op->kind == AP_OP_RESHAPE ? op->kind : AP_OP_GRADIENT, 0);
        }
    }
    return status;
}

/* Mean and variance tie the gradients of input, scale and shift together, so one operator makes all
 * three, at twice the forward FLOPs. */
static xm_status_t layer_norm_backward(expansion_t *x, int id, const ap_op_t *op)
{
    reading_t reading = read_gradient(x, op);
    int results[AP_MAX_RESULTS];
    char name[256];
    xm_status_t status;

    read_saved(&reading, op, 0);
    read_saved(&reading, op, 1);
    append_arrow(reading.rule);
    for (int i = 0; i < op->operand_count; ++i) {
        append_term(reading.rule, &op->rule, i, i == 0);
    }
    backward_name(op, x, 0, name, sizeof(name));
    status = add_backward(x, id, AP_OP_GRADIENT, reading.rule, reading.operands, reading.count,
                          2 * flops_per_point(op), name, 0, results);
    for (int i = 0; i < op->operand_count && status == XM_OK; ++i) {
        if (x->needs[op->operands[i]]) {
            status = contribute(x, op->operands[i], results[i]);
        }
    }
    return status;
}

/* The gradients of those results that have one, put together; the rest is zero and costs
 * nothing. */
static xm_status_t split_backward(expansion_t *x, int id, const ap_op_t *op)
{
    reading_t reading = {.count = 0};

    for (int r = 0; r < op->result_count; ++r) {
        if (x->gradient[op->results[r]] >= 0) {
            append_term(reading.rule, &op->rule, op->operand_count + r, reading.count == 0);
            reading.operands[reading.count++] = x->gradient[op->results[r]];
        }
    }
    return finish_single(x, id, op, &reading, 0, AP_OP_GRADIENT, 0);
}

static xm_status_t op_backward(expansion_t *x, int id)
{
    /* A copy: the array moves as operators are added. */
    const ap_op_t op = *ap_graph_op(x->graph, id);
    reading_t reading = read_gradient(x, &op);
    double points = flops_per_point(&op);

    (void)ap_graph_set_layer(x->graph, op.layer);
    switch (op.kind) {
    case AP_OP_EINSUM:
        return einsum_backward(x, id, &op);
    case AP_OP_ELEMENTWISE:
        return elementwise_backward(x, id, &op);
    case AP_OP_LAYER_NORM:
        return layer_norm_backward(x, id, &op);
    case AP_OP_SPLIT:
        return split_backward(x, id, &op);
    case AP_OP_CUSTOM:
        return custom_backward(x, id, &op);
    case AP_OP_REDUCE:
    case AP_OP_RESHAPE:
        return movement_backward(x, id, &op);
    case AP_OP_SOFTMAX: /* needs its own result, not its operand */
        read_saved(&reading, &op, op.operand_count);
        return finish_single(x, id, &op, &reading, 0, AP_OP_GRADIENT, points);
    case AP_OP_CROSS_ENTROPY:
        read_saved(&reading, &op, 0);
        read_saved(&reading, &op, 1);
        return finish_single(x, id, &op, &reading, 0, AP_OP_GRADIENT, points);
    case AP_OP_EMBEDDING: /* indices may be constants and missing */
        if (op.operand_count > 1) {
            read_saved(&reading, &op, 0);
        }
        return finish_single(x, id, &op, &reading, op.operand_count - 1, AP_OP_GRADIENT, 0);
    case AP_OP_GRADIENT:
    case AP_OP_UPDATE:
    case AP_OP_KIND_COUNT:
        break;
    }
    return xm_error_set(XM_ERR_UNSUPPORTED, "operator '%s' of kind %s has no derivative", op.name,
                        ap_op_kind_name(op.kind));
}

/* A tensor needs a gradient if a parameter has a part in it. One pass is enough, for operators
 * stand in order. */
static void mark_needs(expansion_t *x)
{
    for (int t = 0; t < x->forward_tensors; ++t) {
        x->gradient[t] = -1;
        x->needs[t] = ap_graph_tensor(x->graph, t)->kind == AP_TENSOR_PARAMETER &&
                      ap_dtype_is_smooth(ap_graph_tensor(x->graph, t)->dtype);
    }
    for (int o = 0; o < x->forward_ops; ++o) {
        const ap_op_t *op = ap_graph_op(x->graph, o);
        bool needs = false;

        for (int i = 0; i < op->operand_count; ++i) {
            needs = needs || x->needs[op->operands[i]];
        }
        for (int r = 0; r < op->result_count; ++r) {
            x->needs[op->results[r]] =
                needs && ap_dtype_is_smooth(ap_graph_tensor(x->graph, op->results[r])->dtype);
        }
    }
}

/* A loss that is the gradient of another tensor starts there: nothing between the two is
 * differentiated again. By the time an operator is reached, all users of its results have been, so
 * its gradients are complete. */
static xm_status_t add_backward_phase(expansion_t *x)
{
    int named = ap_graph_loss(x->graph, NULL);
    const ap_tensor_t *loss = ap_graph_tensor(x->graph, named);

    x->gradient[loss->gradient_of >= 0 ? loss->gradient_of : named] = named;
    for (int o = x->forward_ops - 1; o >= 0; --o) {
        const ap_op_t *op = ap_graph_op(x->graph, o);
        bool used = false;
        xm_status_t status;

        for (int r = 0; r < op->result_count; ++r) {
            used = used || x->gradient[op->results[r]] >= 0;
        }
        if (!x->needs[op->results[0]] || !used) {
            continue; /* nothing to train before, or nothing uses it after */
        }
        status = op_backward(x, o);
        if (status != XM_OK) {
            return status;
        }
    }
    return XM_OK;
}

/* The update reads weight and gradient and takes over the weight's storage. Optimizer state is not
 * in the graph; whoever prices memory adds it. */
static xm_status_t add_update(expansion_t *x, int parameter, ap_optimizer_t optimizer)
{
    static const char letters[] = "abcdefgh";
    const ap_tensor_t of = *ap_graph_tensor(x->graph, parameter);
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    char term[AP_MAX_RANK + 1], rule[3 * AP_MAX_RANK + 8], name[256];
    int result;
    xm_status_t status;

    (void)snprintf(term, sizeof(term), "%.*s", of.shape.rank, letters);
    (void)snprintf(rule, sizeof(rule), "%s,%s->%s", term, term, term);
    (void)snprintf(name, sizeof(name), "new_%s", of.name);
    params.kind = AP_OP_UPDATE;
    params.phase = AP_PHASE_UPDATE;
    params.name = name;
    params.rule = rule;
    params.operand_count = 2;
    params.operands[0] = parameter;
    params.operands[1] = x->gradient[parameter];
    params.result_dtype = of.dtype;
    params.flops_per_point = optimizer == AP_OPTIMIZER_ADAM ? 12 : 2;
    params.linear = true;
    (void)ap_graph_set_layer(x->graph, of.layer);
    status = ap_graph_add_op(x->graph, &params, &result);
    return status == XM_OK ? ap_graph_set_alias(x->graph, result, parameter) : status;
}

/* The forward graph is copied whole first, so its numbers stay valid in the result. */
xm_status_t ap_training_expand(const ap_graph_t *forward, ap_optimizer_t optimizer,
                               ap_graph_t **training)
{
    expansion_t x = {.forward_tensors = ap_graph_tensors(forward),
                     .forward_ops = ap_graph_ops(forward)};
    xm_status_t status;

    if (ap_graph_loss(forward, NULL) < 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "the graph '%s' names no loss",
                            ap_graph_name(forward));
    }
    status = ap_graph_copy_whole(forward, &x.graph);
    if (status != XM_OK) {
        return status;
    }
    x.gradient = malloc((size_t)ap_graph_tensors(forward) * sizeof(int));
    x.needs = malloc((size_t)ap_graph_tensors(forward) * sizeof(bool));
    if (x.gradient == NULL || x.needs == NULL) {
        status =
            xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d gradients", ap_graph_tensors(forward));
        goto release;
    }
    mark_needs(&x);
    status = add_backward_phase(&x);
    for (int t = 0; t < ap_graph_tensors(forward) && status == XM_OK; ++t) {
        if (ap_graph_tensor(forward, t)->kind == AP_TENSOR_PARAMETER && x.gradient[t] >= 0) {
            status = add_update(&x, t, optimizer);
        }
    }
    if (status == XM_OK) {
        status = ap_graph_finish(x.graph);
    }
    if (status == XM_OK) {
        *training = x.graph;
        x.graph = NULL;
    }

release:
    free(x.gradient);
    free(x.needs);
    ap_graph_destroy(x.graph);
    return status;
}

/* One of the two phases is enough to know that a graph holds more than a forward pass. */
const char *ap_frontend_untrainable(const ap_graph_t *graph)
{
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        if (ap_graph_op(graph, o)->phase != AP_PHASE_FORWARD) {
            return "holds its whole step";
        }
    }
    return ap_graph_loss(graph, NULL) < 0 ? "names no loss to derive a step from" : NULL;
}

xm_status_t ap_frontend_train(ap_optimizer_t optimizer, ap_graph_t **graph)
{
    ap_graph_t *training;
    xm_status_t status;

    if (XM_IS_NULL(graph)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    if (ap_frontend_untrainable(*graph) != NULL) {
        return XM_OK;
    }
    status = ap_training_expand(*graph, optimizer, &training);
    if (status == XM_OK) {
        ap_graph_destroy(*graph);
        *graph = training;
    }
    return status;
}
