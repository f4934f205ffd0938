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
#include <string.h>

#include "planner/graph.h"

/* The gradients found so far, while walking the forward operators backwards. */
typedef struct expansion {
    ap_graph_t *graph;
    int *gradient;       /* per forward tensor: tensor id, -1 = none yet */
    bool *needs;         /* per forward tensor: see ap_graph_learning() */
    int forward_tensors; /* ids below are forward tensors */
    int forward_ops;
    /* Lists for one backward operator: see reading_t; the operands that its results are gradients
     * of, and its results. */
    int *terms, *operands, *differentiates, *made;
    int *none; /* of as many terms, nothing is touched */
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

/* FLOPs per point of one run. */
static double flops_per_point(const ap_op_t *op)
{
    return op->flops / op->repeat / ap_sharding_rule_points(&op->rule);
}

/* What one backward operator reads, and then makes: terms of the forward operator's rule, of which
 * an operand of the reading is the tensor itself or its gradient. The lists are the expansion's. */
typedef struct reading {
    int *terms, *operands;
    int count;
} reading_t;

/* Adds a backward operator of `op`, which reads what `reading` lists and makes the gradients of
 * `results` operands from `differentiates` on, with so many FLOPs per point. */
static xm_status_t add_backward(expansion_t *x, int op, ap_op_kind_t kind, reading_t *reading,
                                int differentiates, int results, double flops, const char *name,
                                int *made)
{
    const ap_op_t *forward = ap_graph_op(x->graph, op);
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    ap_sharding_rule_t rule;
    xm_status_t status;

    for (int r = 0; r < results; ++r) {
        reading->terms[reading->count + r] = x->differentiates[r] = differentiates + r;
    }
    status = ap_sharding_rule_pick(&forward->rule, reading->terms, reading->count, results, &rule);
    params.kind = kind;
    params.phase = AP_PHASE_BACKWARD;
    params.name = name;
    params.operand_count = reading->count;
    params.operands = reading->operands;
    /* A gradient has the type of what is differentiated. */
    params.result_dtype = ap_graph_tensor(x->graph, forward->operands[differentiates])->dtype;
    params.flops_per_point = flops;
    params.repeat = forward->repeat;
    params.forward = op;
    params.differentiates = x->differentiates;
    /* Where the result takes an operand's place, its gradient takes that of the result's. */
    params.touched = ap_op_passes_on(forward) ? x->none : NULL;
    return status == XM_OK ? ap_graph_add_op_by_rule(x->graph, &params, &rule, made) : status;
}

/* Adds an operator that goes over two tensors of one shape element by element, and makes a third of
 * their shape and of the type of `of`. */
static xm_status_t add_linear(expansion_t *x, const ap_tensor_t *of, const int *pair,
                              ap_op_kind_t kind, ap_phase_t phase, double flops, const char *name,
                              int *made)
{
    static const char letters[] = "abcdefgh";
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    char term[AP_MAX_RANK + 1], rule[3 * AP_MAX_RANK + 8];

    (void)snprintf(term, sizeof(term), "%.*s", of->shape.rank, letters);
    (void)snprintf(rule, sizeof(rule), "%s,%s->%s", term, term, term);
    params.kind = kind;
    params.phase = phase;
    params.name = name;
    params.rule = rule;
    params.operand_count = 2;
    params.operands = pair;
    params.result_dtype = of->dtype;
    params.flops_per_point = flops;
    params.linear = true;
    return ap_graph_add_op(x->graph, &params, made);
}

/* Notes `gradient` as the gradient of `tensor`, or as one more part of it; parts are summed by
 * operators that belong to no forward operator. */
static xm_status_t contribute(expansion_t *x, int tensor, int gradient)
{
    const ap_tensor_t *of = ap_graph_tensor(x->graph, tensor);
    const int parts[] = {x->gradient[tensor], gradient};
    char name[256];

    if (x->gradient[tensor] < 0) {
        x->gradient[tensor] = gradient;
        /* The loss may be the gradient of two tensors; it keeps what it is. */
        if (gradient >= x->forward_tensors &&
            ap_graph_tensor(x->graph, gradient)->gradient_of < 0) {
            return ap_graph_set_gradient(x->graph, gradient, tensor);
        }
        return XM_OK;
    }
    (void)snprintf(name, sizeof(name), "d_%s.sum", of->name);
    XM_TRY(add_linear(x, of, parts, AP_OP_ELEMENTWISE, AP_PHASE_BACKWARD, 1, name,
                      &x->gradient[tensor]));
    return ap_graph_set_gradient(x->graph, x->gradient[tensor], tensor);
}

/* Of an operator with several results, the first that has a gradient stands for all. */
static reading_t read_gradient(const expansion_t *x, const ap_op_t *op)
{
    reading_t reading = {.terms = x->terms, .operands = x->operands, .count = 1};
    int r = 0;

    while (r + 1 < op->result_count && x->gradient[op->results[r]] < 0) {
        ++r;
    }
    reading.operands[0] = x->gradient[op->results[r]];
    reading.terms[0] = op->operand_count + r;
    return reading;
}

static void read_saved(reading_t *reading, const ap_op_t *op, int term)
{
    reading->operands[reading->count] = ap_op_tensor(op, term);
    reading->terms[reading->count++] = term;
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

    backward_name(op, x, operand, name, sizeof(name));
    XM_TRY(add_backward(x, id, kind, reading, operand, 1, flops, name, &result));
    return contribute(x, op->operands[operand], result);
}

static bool same_term(const ap_sharding_rule_t *rule, int a, int b)
{
    return rule->rank[a] == rule->rank[b] &&
           memcmp(rule->dim[a], rule->dim[b], (size_t)rule->rank[a] * sizeof(rule->dim[a][0])) == 0;
}

static void read_operands(reading_t *reading, const ap_op_t *op, int but)
{
    for (int i = 0; i < op->operand_count; ++i) {
        if (i != but) {
            read_saved(reading, op, i);
        }
    }
}

/* The gradient of one operand. Of a product it is a product with the other operands, over the same
 * factors: what was contracted passes and what passed is contracted. Of a sum it is the result's
 * itself where the dimensions are the same; a broadcast operand sums over what it lacks. What is
 * not linear needs all operands again. A movement is reversed, and computes nothing. */
static xm_status_t operand_backward(expansion_t *x, int id, const ap_op_t *op, int operand)
{
    reading_t reading = read_gradient(x, op);
    double flops = flops_per_point(op);

    switch (op->kind) {
    case AP_OP_EINSUM:
        read_operands(&reading, op, operand);
        /* 2, or for a convolution what its window makes of it. */
        return finish_single(x, id, op, &reading, operand, AP_OP_EINSUM, flops);
    case AP_OP_ELEMENTWISE:
        if (op->linear) {
            return same_term(&op->rule, operand, op->rule.operands)
                       ? contribute(x, op->operands[operand], reading.operands[0])
                       : finish_single(x, id, op, &reading, operand, AP_OP_REDUCE, 1);
        }
        read_operands(&reading, op, -1);
        return finish_single(x, id, op, &reading, operand, AP_OP_GRADIENT, flops + 1);
    case AP_OP_CUSTOM:
        if (!op->linear) {
            read_operands(&reading, op, -1);
        }
        return finish_single(x, id, op, &reading, operand, AP_OP_GRADIENT, flops);
    default:
        return finish_single(x, id, op, &reading, operand,
                             op->kind == AP_OP_RESHAPE ? op->kind : AP_OP_GRADIENT, 0);
    }
}

/* One operator for each operand that needs a gradient. */
static xm_status_t operands_backward(expansion_t *x, int id, const ap_op_t *op)
{
    for (int i = 0; i < op->operand_count; ++i) {
        if (x->needs[op->operands[i]]) {
            XM_TRY(operand_backward(x, id, op, i));
        }
    }
    return XM_OK;
}

/* Mean and variance tie the gradients of input, scale and shift together, so one operator makes all
 * three, at twice the forward FLOPs. */
static xm_status_t layer_norm_backward(expansion_t *x, int id, const ap_op_t *op)
{
    reading_t reading = read_gradient(x, op);
    char name[256];

    read_saved(&reading, op, 0);
    read_saved(&reading, op, 1);
    backward_name(op, x, 0, name, sizeof(name));
    XM_TRY(add_backward(x, id, AP_OP_GRADIENT, &reading, 0, op->operand_count,
                        2 * flops_per_point(op), name, x->made));
    for (int i = 0; i < op->operand_count; ++i) {
        if (x->needs[op->operands[i]]) {
            XM_TRY(contribute(x, op->operands[i], x->made[i]));
        }
    }
    return XM_OK;
}

/* The gradients of those results that have one, put together; the rest is zero and costs
 * nothing. */
static xm_status_t split_backward(expansion_t *x, int id, const ap_op_t *op)
{
    reading_t reading = {.terms = x->terms, .operands = x->operands, .count = 0};

    for (int r = 0; r < op->result_count; ++r) {
        if (x->gradient[op->results[r]] >= 0) {
            reading.terms[reading.count] = op->operand_count + r;
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
    case AP_OP_ELEMENTWISE:
    case AP_OP_CUSTOM:
    case AP_OP_REDUCE:
    case AP_OP_RESHAPE:
        return operands_backward(x, id, &op);
    case AP_OP_LAYER_NORM:
        return layer_norm_backward(x, id, &op);
    case AP_OP_SPLIT:
        return split_backward(x, id, &op);
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
    return XM_UNSUPPORTED("operator '%s' of kind %s has no derivative", op.name,
                          ap_op_kind_name(op.kind));
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

        for (int r = 0; r < op->result_count; ++r) {
            used = used || x->gradient[op->results[r]] >= 0;
        }
        if (!x->needs[op->results[0]] || !used) {
            continue; /* nothing to train before, or nothing uses it after */
        }
        XM_TRY(op_backward(x, o));
    }
    return XM_OK;
}

/* The update reads weight and gradient and takes over the weight's storage. Optimizer state is not
 * in the graph; whoever prices memory adds it. */
static xm_status_t add_update(expansion_t *x, int parameter, ap_optimizer_t optimizer)
{
    const ap_tensor_t *of = ap_graph_tensor(x->graph, parameter);
    const int read[] = {parameter, x->gradient[parameter]};
    char name[256];
    int result;

    (void)snprintf(name, sizeof(name), "new_%s", of->name);
    (void)ap_graph_set_layer(x->graph, of->layer);
    XM_TRY(add_linear(x, of, read, AP_OP_UPDATE, AP_PHASE_UPDATE,
                      optimizer == AP_OPTIMIZER_ADAM ? 12 : 2, name, &result));
    return ap_graph_set_alias(x->graph, result, parameter);
}

/* The forward graph is copied whole first, so its numbers stay valid in the result. */
xm_status_t ap_training_expand(const ap_graph_t *forward, ap_optimizer_t optimizer,
                               ap_graph_t **training)
{
    expansion_t x = {.forward_tensors = ap_graph_tensors(forward),
                     .forward_ops = ap_graph_ops(forward)};
    size_t most = 1; /* terms of an operator */
    xm_arena_t arena = {0};
    xm_status_t status;

    if (ap_graph_loss(forward, NULL) < 0) {
        return XM_INVALID("the graph '%s' names no loss", ap_graph_name(forward));
    }
    status = ap_graph_copy_whole(forward, &x.graph);
    if (status != XM_OK) {
        return status;
    }
    for (int o = 0; o < x.forward_ops; ++o) {
        const ap_op_t *op = ap_graph_op(forward, o);
        size_t terms = (size_t)op->operand_count + (size_t)op->result_count;

        most = terms > most ? terms : most;
    }
    x.gradient = xm_arena_get(&arena, (size_t)ap_graph_tensors(forward), sizeof(int));
    x.needs = xm_arena_get(&arena, (size_t)ap_graph_tensors(forward), sizeof(bool));
    /* An operator's reading has its gradient beside its terms at most, and makes as many. */
    x.terms = xm_arena_get(&arena, 2 * (most + 1), sizeof(int));
    x.operands = xm_arena_get(&arena, 2 * (most + 1), sizeof(int));
    x.differentiates = xm_arena_get(&arena, most + 1, sizeof(int));
    x.made = xm_arena_get(&arena, most + 1, sizeof(int));
    x.none = xm_arena_get(&arena, 2 * (most + 1), sizeof(int));
    if (arena.failed) {
        status = XM_NO_MEMORY("%d gradients", ap_graph_tensors(forward));
        goto release;
    }
    for (int t = 0; t < x.forward_tensors; ++t) {
        x.gradient[t] = -1;
    }
    for (size_t t = 0; t < 2 * (most + 1); ++t) {
        x.none[t] = AP_TOUCHES_NONE;
    }
    ap_graph_learning(forward, x.needs);
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
    xm_arena_clear(&arena);
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

    if (XM_IS_NULL(graph)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    if (ap_frontend_untrainable(*graph) != NULL) {
        return XM_OK;
    }
    XM_TRY(ap_training_expand(*graph, optimizer, &training));
    ap_graph_destroy(*graph);
    *graph = training;
    return XM_OK;
}
