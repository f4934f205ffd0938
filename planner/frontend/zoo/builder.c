/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Building blocks of the built-in models. The first failure sticks and later calls do nothing, so
 * that a model's source reads as the list of its operators; the ids that are passed on after a
 * failure are -1 and never looked at.
 *
 * Names carry a prefix and the number of a block, so that equal blocks differ in their names only
 * and hash alike.
 */

#include "planner/frontend/zoo/builder.h"

#include <stdio.h>
#include <string.h>

enum { NAME_TEXT = 96 };

static const char *full_name(const zoo_builder_t *b, const char *name, char *buffer)
{
    if (b->prefix == NULL) {
        return name;
    }
    if (b->block < 0) {
        (void)snprintf(buffer, NAME_TEXT, "%s.%s", b->prefix, name);
    } else {
        (void)snprintf(buffer, NAME_TEXT, "%s%d.%s", b->prefix, b->block, name);
    }
    return buffer;
}

static int tensor(zoo_builder_t *b, const char *name, ap_tensor_kind_t kind, ap_dtype_t dtype,
                  int rank, const int64_t *dims)
{
    ap_shape_t shape = {.rank = rank};
    char buffer[NAME_TEXT];
    int id = -1;

    memcpy(shape.dims, dims, (size_t)rank * sizeof(dims[0]));
    if (b->status == XM_OK) {
        b->status =
            ap_graph_add_tensor(b->graph, full_name(b, name, buffer), kind, &shape, dtype, &id);
    }
    return id;
}

int zoo_input(zoo_builder_t *b, const char *name, ap_dtype_t dtype, int rank, const int64_t *dims)
{
    return tensor(b, name, AP_TENSOR_INPUT, dtype, rank, dims);
}

int zoo_parameter(zoo_builder_t *b, const char *name, int rank, const int64_t *dims)
{
    return tensor(b, name, AP_TENSOR_PARAMETER, b->dtype, rank, dims);
}

int zoo_parameter1(zoo_builder_t *b, const char *name, int64_t size)
{
    return zoo_parameter(b, name, 1, &size);
}

static int add(zoo_builder_t *b, ap_op_params_t *params, const char *name, const int *operands,
               int count, int *results)
{
    char buffer[NAME_TEXT];

    params->name = full_name(b, name, buffer);
    params->result_dtype = b->dtype;
    params->operand_count = count;
    params->operands = operands;
    XM_THEN(b->status, ap_graph_add_op(b->graph, params, results));
    return results[0];
}

static int add_op(zoo_builder_t *b, ap_op_kind_t kind, const char *name, const char *rule,
                  double flops, const int *operands, int count)
{
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    int results[] = {-1};

    params.kind = kind;
    params.rule = rule;
    params.flops_per_point = flops;
    /* These letters are fixed in the models' rules: what is normalised is h or d, what a softmax
     * runs over is t. */
    if (kind == AP_OP_LAYER_NORM) {
        params.replicated = "hd";
    } else if (kind == AP_OP_SOFTMAX) {
        params.replicated = "t";
    }
    params.linear = kind == AP_OP_ELEMENTWISE && count == 2;
    return add(b, &params, name, operands, count, results);
}

int zoo_op1(zoo_builder_t *b, ap_op_kind_t kind, const char *name, const char *rule, double flops,
            int operand)
{
    return add_op(b, kind, name, rule, flops, &operand, 1);
}

int zoo_op2(zoo_builder_t *b, ap_op_kind_t kind, const char *name, const char *rule, double flops,
            int first, int second)
{
    const int operands[] = {first, second};

    return add_op(b, kind, name, rule, flops, operands, 2);
}

/* The points of a rule on these operands, because a zoo_op's FLOPs are for all of them together. A
 * rule that does not fit gives 1, and adding the operator then fails with the sentence. */
static double points_of(const zoo_builder_t *b, const zoo_op_t *op, const int *operands, int count)
{
    ap_shape_t shapes[ZOO_OPERANDS];
    ap_sharding_rule_t rule;
    double points;

    for (int i = 0; i < count; ++i) {
        shapes[i] = ap_graph_tensor(b->graph, operands[i])->shape;
    }
    if (ap_sharding_rule_create(op->rule, op->whole, NULL, op->sizes, shapes, count, &rule) !=
        XM_OK) {
        return 1; /* adding the operator says so */
    }
    points = ap_sharding_rule_points(&rule);
    ap_sharding_rule_destroy(&rule);
    return points;
}

int zoo_any(zoo_builder_t *b, const zoo_op_t *op, const int *operands, int *results)
{
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    int made[ZOO_RESULTS] = {-1, -1, -1}, count = 0, first;

    while (count < ZOO_OPERANDS && operands[count] >= 0) {
        ++count;
    }
    params.kind = op->kind;
    params.rule = op->rule;
    params.replicated = op->whole;
    params.sizes = op->sizes;
    params.linear = op->linear;
    if (b->status == XM_OK && op->flops > 0) {
        params.flops_per_point = op->flops / points_of(b, op, operands, count);
    }
    first = add(b, &params, op->name, operands, count, made);
    if (results != NULL) {
        memcpy(results, made, sizeof(made));
    }
    return first;
}

int zoo_any1(zoo_builder_t *b, const zoo_op_t *op, int operand)
{
    const int operands[] = {operand, -1};

    return zoo_any(b, op, operands, NULL);
}

int zoo_any2(zoo_builder_t *b, const zoo_op_t *op, int first, int second)
{
    const int operands[] = {first, second, -1};

    return zoo_any(b, op, operands, NULL);
}

int zoo_norm(zoo_builder_t *b, const char *name, const char *rule, int64_t size, bool shift, int x)
{
    char part[NAME_TEXT];
    int operands[3];

    (void)snprintf(part, sizeof(part), "%s.scale", name);
    operands[0] = x;
    operands[1] = zoo_parameter1(b, part, size);
    if (shift) {
        (void)snprintf(part, sizeof(part), "%s.shift", name);
        operands[2] = zoo_parameter1(b, part, size);
    }
    return add_op(b, AP_OP_LAYER_NORM, name, rule, shift ? 8 : 5, operands, shift ? 3 : 2);
}

int zoo_linear(zoo_builder_t *b, const char *name, const char *rule, int rank, const int64_t *dims,
               int x)
{
    char part[NAME_TEXT];

    (void)snprintf(part, sizeof(part), "%s.w", name);
    return zoo_op2(b, AP_OP_EINSUM, name, rule, 2, x, zoo_parameter(b, part, rank, dims));
}

int zoo_bias(zoo_builder_t *b, const char *name, const char *rule, int rank, const int64_t *dims,
             int x)
{
    char part[NAME_TEXT], sum[NAME_TEXT];

    (void)snprintf(part, sizeof(part), "%s.b", name);
    (void)snprintf(sum, sizeof(sum), "%s.add", name);
    return zoo_op2(b, AP_OP_ELEMENTWISE, sum, rule, 1, x, zoo_parameter(b, part, rank, dims));
}

int zoo_residual(zoo_builder_t *b, const char *name, int x, int y)
{
    return zoo_op2(b, AP_OP_ELEMENTWISE, name, "bsh,bsh->bsh", 1, x, y);
}

void zoo_layer(zoo_builder_t *b, int layer)
{
    XM_THEN(b->status, ap_graph_set_layer(b->graph, layer));
}

void zoo_loss(zoo_builder_t *b, int loss, bool is_gradient)
{
    XM_THEN(b->status, ap_graph_set_loss(b->graph, loss, is_gradient));
}
