/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each ONNX operator does to shapes, and its rule: elementwise operators, products,
 * reductions, constants. The tables name operators of the default domain; anything else has no
 * rule, and then the file must declare the shapes. FLOPs per element are rough counts of a
 * vectorised evaluation: they matter only where an operator is not bound by memory.
 */

#include <inttypes.h>
#include <string.h>

#include "planner/frontend/onnx/build.h"

enum { EQUATION_TEXT = 200 };

typedef struct elementwise {
    const char *op;
    double flops;
    bool linear; /* the derivative does not need the operands */
    bool truth;  /* the result is true or false */
} elementwise_t;

static const elementwise_t elementwise[] = {
    {"Add", 1, true, false},          {"Sub", 1, true, false},
    {"Neg", 1, true, false},          {"Sum", 1, true, false},
    {"Mean", 1, true, false},         {"Mul", 1, false, false},
    {"Div", 1, false, false},         {"Pow", 8, false, false},
    {"Mod", 1, false, false},         {"Min", 1, false, false},
    {"Max", 1, false, false},         {"Abs", 1, false, false},
    {"Exp", 8, false, false},         {"Log", 8, false, false},
    {"Sqrt", 4, false, false},        {"Reciprocal", 4, false, false},
    {"Floor", 1, false, false},       {"Ceil", 1, false, false},
    {"Round", 1, false, false},       {"Sign", 1, false, false},
    {"Erf", 8, false, false},         {"Sin", 8, false, false},
    {"Cos", 8, false, false},         {"Tan", 8, false, false},
    {"Asin", 8, false, false},        {"Acos", 8, false, false},
    {"Atan", 8, false, false},        {"Sinh", 8, false, false},
    {"Cosh", 8, false, false},        {"Tanh", 8, false, false},
    {"Asinh", 8, false, false},       {"Acosh", 8, false, false},
    {"Atanh", 8, false, false},       {"Sigmoid", 5, false, false},
    {"Relu", 1, false, false},        {"LeakyRelu", 2, false, false},
    {"PRelu", 2, false, false},       {"Elu", 8, false, false},
    {"Selu", 8, false, false},        {"Celu", 8, false, false},
    {"Gelu", 8, false, false},        {"Swish", 5, false, false},
    {"HardSigmoid", 3, false, false}, {"HardSwish", 4, false, false},
    {"Softplus", 8, false, false},    {"Softsign", 3, false, false},
    {"Mish", 9, false, false},        {"ThresholdedRelu", 1, false, false},
    {"BitShift", 1, false, false},    {"BitwiseAnd", 1, false, false},
    {"BitwiseOr", 1, false, false},   {"BitwiseXor", 1, false, false},
    {"BitwiseNot", 1, false, false},  {"Equal", 1, false, true},
    {"Greater", 1, false, true},      {"GreaterOrEqual", 1, false, true},
    {"Less", 1, false, true},         {"LessOrEqual", 1, false, true},
    {"And", 1, false, true},          {"Or", 1, false, true},
    {"Xor", 1, false, true},          {"Not", 1, false, true},
    {"IsNaN", 1, false, true},        {"IsInf", 1, false, true}};

static bool rule_elementwise(onnx_node_t *n)
{
    for (size_t i = 0; i < sizeof(elementwise) / sizeof(elementwise[0]); ++i) {
        if (strcmp(elementwise[i].op, n->proto->op_type) != 0) {
            continue;
        }
        if (onnx_begin_all(n)) {
            shape_rule_elementwise(&n->op, elementwise[i].flops, elementwise[i].linear);
            if (elementwise[i].truth) {
                onnx_result_dtype(n, 0, AP_DTYPE_I8);
            }
        }
        return true;
    }
    return false;
}

static void rule_where(onnx_node_t *n)
{
    if (onnx_begin_all(n) && onnx_need(n, 1) != NULL) {
        shape_rule_elementwise(&n->op, 1, false);
        onnx_result_dtype(n, 0, n->in[1]->type.dtype);
    }
}

/* The bounds are numbers, not data. */
static void rule_clip(onnx_node_t *n)
{
    if (onnx_begin1(n, 0)) { /* the bounds are numbers */
        shape_rule_elementwise(&n->op, 2, false);
    }
}

static void rule_cast(onnx_node_t *n)
{
    ap_dtype_t dtype;
    int64_t to = onnx_int(n, "to", 0);

    if (onnx_is(n, "CastLike") && onnx_need(n, 1) != NULL) {
        dtype = n->in[1]->type.dtype;
    } else if (to < 0 || to > INT32_MAX || !onnx_dtype((int32_t)to, &dtype)) {
        onnx_fail(n, "there is no element type %" PRId64, to);
        return;
    }
    if (onnx_begin1(n, 0)) {
        shape_rule_elementwise(&n->op, 0, true);
        onnx_result_dtype(n, 0, dtype);
    }
}

/* Operators that leave their input as it is. A dropout does not when the file says that it is
 * training. */
static void rule_pass(onnx_node_t *n)
{
    onnx_value_t *training = onnx_input(n, 2);

    if (onnx_is(n, "Dropout") && training != NULL && training->numbers != NULL &&
        training->numbers[0] != 0) {
        if (onnx_begin1(n, 0)) {
            shape_rule_elementwise(&n->op, 2, false);
        }
        return;
    }
    n->alias = onnx_need(n, 0);
}

static void rule_matmul(onnx_node_t *n)
{
    if (onnx_begin(n, (const int[]){0, 1}, 2)) {
        shape_rule_matmul(&n->op);
    }
}

/* The product comes first; the bias is added by an operator of its own (see add_biased). */
static void rule_gemm(onnx_node_t *n)
{
    if (onnx_begin(n, (const int[]){0, 1}, 2)) {
        shape_rule_gemm(&n->op, onnx_int(n, "transA", 0) != 0, onnx_int(n, "transB", 0) != 0);
        n->bias = onnx_input(n, 2);
        n->bias_dim = -1;
    }
}

static void rule_einsum(onnx_node_t *n)
{
    char equation[EQUATION_TEXT];

    if (!onnx_string(n, "equation", equation, sizeof(equation)) ||
        strlen(equation) + 1 == sizeof(equation)) {
        onnx_fail(n, "the attribute 'equation' is missing or too long");
    } else if (onnx_begin_all(n)) {
        shape_rule_einsum(&n->op, equation);
    }
}

/* The dimensions that a reduction names; all when it names none, unless the file says that none
 * means none. */
static bool reduced_dims(onnx_node_t *n, bool *reduced)
{
    int64_t axes[AP_MAX_RANK];
    int count, rank, dim;

    if (onnx_need(n, 0) == NULL || !onnx_list(n, "axes", 1, axes, AP_MAX_RANK, &count)) {
        return false;
    }
    rank = n->in[0]->type.shape.rank;
    for (int d = 0; d < rank; ++d) {
        reduced[d] = count <= 0 && onnx_int(n, "noop_with_empty_axes", 0) == 0;
    }
    for (int i = 0; i < count; ++i) {
        if (!onnx_normal_axis(n, axes[i], rank, &dim)) {
            return false;
        }
        reduced[dim] = true;
    }
    return true;
}

/* What adds up in parts may be cut along a reduced dimension. The norms and logarithms of sums do
 * not: a part's logarithm is of no use to the others. */
static bool rule_reduce(onnx_node_t *n)
{
    bool reduced[AP_MAX_RANK] = {false};
    bool adds = onnx_is(n, "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 "
                           "ReduceSumSquare");

    if (!adds && !onnx_is(n, "ReduceL2 ReduceLogSum ReduceLogSumExp")) {
        return false;
    }
    if (reduced_dims(n, reduced) && onnx_begin1(n, 0)) {
        shape_rule_reduce(&n->op, reduced, onnx_int(n, "keepdims", 1) != 0, adds);
    }
    return true;
}

/* The place of the largest element: the dimension is needed whole. */
static void rule_arg(onnx_node_t *n)
{
    bool reduced[AP_MAX_RANK] = {false};
    int axis = onnx_axis(n, 0, "axis", 0);

    if (n->status == XM_OK && onnx_begin1(n, 0)) {
        reduced[axis] = true;
        shape_rule_reduce(&n->op, reduced, onnx_int(n, "keepdims", 1) != 0, false);
        onnx_result_dtype(n, 0, AP_DTYPE_I64);
    }
}

/* Before version 13, softmax ran over all dimensions from the axis on, flattened together. */
static void rule_softmax(onnx_node_t *n)
{
    bool whole[AP_MAX_RANK] = {false};
    int axis = onnx_axis(n, 0, "axis", n->b->opset < 13 ? 1 : -1);

    if (n->status != XM_OK || !onnx_begin1(n, 0)) {
        return;
    }
    if (n->b->opset >= 13) {
        shape_rule_softmax(&n->op, axis);
        return;
    }
    for (int d = axis; d < n->in[0]->type.shape.rank; ++d) {
        whole[d] = true; /* over all that follow, together */
    }
    shape_rule_along(&n->op, 1, whole, 6);
    n->op.rule.kind = AP_OP_SOFTMAX;
}

/* Running sums and triangles: what they run along stays whole. */
static void rule_along(onnx_node_t *n)
{
    bool whole[AP_MAX_RANK] = {false};
    int64_t axis[1];
    int rank, count, dim;

    if (onnx_need(n, 0) == NULL) {
        return;
    }
    rank = n->in[0]->type.shape.rank;
    if (onnx_is(n, "Trilu")) {
        for (int d = rank - 2; d >= 0 && d < rank; ++d) {
            whole[d] = true;
        }
    } else if (onnx_numbers(n, 1, axis, 1, &count) && count == 1 &&
               onnx_normal_axis(n, axis[0], rank, &dim)) {
        whole[dim] = true;
    }
    if (n->status == XM_OK && onnx_begin1(n, 0)) {
        shape_rule_along(&n->op, 1, whole, 1);
        n->op.rule.kind = AP_OP_CUSTOM;
        n->op.rule.linear = true;
    }
}

/* Both results, elements and places, have the same factors. */
static void rule_top_k(onnx_node_t *n)
{
    int axis = onnx_axis(n, 0, "axis", -1), count;
    bool whole[AP_MAX_RANK] = {false};
    int64_t k[1];
    ap_shape_t shape;

    if (n->status != XM_OK || !onnx_numbers(n, 1, k, 1, &count) || !onnx_begin1(n, 0)) {
        return;
    }
    shape = n->in[0]->type.shape;
    if (count != 1 || k[0] < 0 || k[0] > shape.dims[axis]) {
        onnx_fail(n, "the number of elements to take is not in 0 to %" PRId64, shape.dims[axis]);
        return;
    }
    shape.dims[axis] = k[0];
    shape_rule_result(&n->op, 0, n->in[0]->type.dtype, &shape);
    shape_rule_result(&n->op, 1, AP_DTYPE_I64, &shape);
    n->op.rule.kind = AP_OP_CUSTOM;
    n->op.rule.flops = 8 * operand_type_elements(&n->in[0]->type);
    whole[axis] = true;
    operator_rule_share(&n->op.rule, 0, whole);
}

/* A result that needs no data: its type, and its elements when there are few. */
static void constant(onnx_node_t *n, ap_dtype_t dtype, const ap_shape_t *shape, double fill)
{
    int64_t elements;

    if (!onnx_begin(n, NULL, 0)) {
        return;
    }
    shape_rule_result(&n->op, 0, dtype, shape);
    elements = onnx_elements(&n->op.made[0]);
    if (elements > ONNX_MAX_NUMBERS || n->op.rule.status != XM_OK) {
        return;
    }
    n->numbers = xm_arena_get(&n->b->arena, (size_t)elements + 1, sizeof(double));
    for (int64_t i = 0; n->numbers != NULL && i < elements; ++i) {
        n->numbers[i] = fill;
    }
}

/* Shape is what makes most of a file's shape arithmetic foldable: its numbers are known as soon as
 * its input's type is. */
static void rule_shape(onnx_node_t *n)
{
    const onnx_value_t *of = onnx_need(n, 0);
    ap_shape_t shape = {.rank = 1};
    int64_t start = onnx_int(n, "start", 0), end = onnx_int(n, "end", INT32_MAX);
    int rank;

    if (of == NULL) {
        return;
    }
    rank = of->type.shape.rank;
    start = start < 0 ? start + rank : start;
    end = end < 0 ? end + rank : end;
    start = start < 0 ? 0 : (start > rank ? rank : start);
    end = end < start ? start : (end > rank ? rank : end);
    shape.dims[0] = end - start;
    if (onnx_is(n, "Size")) {
        shape.rank = 0;
        constant(n, AP_DTYPE_I64, &shape, (double)onnx_elements(&of->type));
        return;
    }
    constant(n, AP_DTYPE_I64, &shape, 0);
    for (int64_t i = start; n->numbers != NULL && i < end; ++i) {
        n->numbers[i - start] = (double)of->type.shape.dims[i];
    }
}

static void rule_constant(onnx_node_t *n)
{
    const Onnx__AttributeProto *value = onnx_attribute(n, "value");
    const Onnx__AttributeProto *i = onnx_attribute(n, "value_int");
    const Onnx__AttributeProto *f = onnx_attribute(n, "value_float");
    const Onnx__AttributeProto *is = onnx_attribute(n, "value_ints");
    const Onnx__AttributeProto *fs = onnx_attribute(n, "value_floats");
    ap_shape_t shape = {0};
    operand_type_t type;

    if (value != NULL && value->t != NULL) {
        n->status = onnx_tensor_type(n->b, value->t, n->name, &type);
        if (n->status == XM_OK) {
            constant(n, type.dtype, &type.shape, 0);
            n->numbers = onnx_tensor_numbers(n->b, value->t, &type);
        }
    } else if (i != NULL || f != NULL) {
        constant(n, i != NULL ? AP_DTYPE_I64 : AP_DTYPE_F32, &shape,
                 i != NULL ? (double)i->i : (double)f->f);
    } else if (is != NULL || fs != NULL) {
        shape.rank = 1;
        shape.dims[0] = (int64_t)(is != NULL ? is->n_ints : fs->n_floats);
        constant(n, is != NULL ? AP_DTYPE_I64 : AP_DTYPE_F32, &shape, 0);
        for (int64_t k = 0; n->numbers != NULL && k < shape.dims[0]; ++k) {
            n->numbers[k] = is != NULL ? (double)is->ints[k] : (double)fs->floats[k];
        }
    } else {
        onnx_fail(n, "the constant has no value that is numbers");
    }
}

static void rule_constant_of_shape(onnx_node_t *n)
{
    const Onnx__AttributeProto *value = onnx_attribute(n, "value");
    ap_dtype_t dtype = AP_DTYPE_F32;
    ap_shape_t shape = {0};
    double fill = 0;
    operand_type_t type;

    if (!onnx_numbers(n, 0, shape.dims, AP_MAX_RANK, &shape.rank)) {
        return;
    }
    if (value != NULL && value->t != NULL) {
        double *numbers;

        n->status = onnx_tensor_type(n->b, value->t, n->name, &type);
        if (n->status != XM_OK) {
            return;
        }
        dtype = type.dtype;
        numbers = onnx_tensor_numbers(n->b, value->t, &type);
        fill = numbers != NULL && onnx_elements(&type) > 0 ? numbers[0] : 0;
    }
    constant(n, dtype, &shape, fill);
}

/* start, start + step, …: as many as come before the limit. The length decides a shape, so all
 * three must be known. */
static void rule_range(onnx_node_t *n)
{
    const onnx_value_t *start = onnx_need(n, 0), *limit = onnx_need(n, 1), *step = onnx_need(n, 2);
    ap_shape_t shape = {.rank = 1};
    double count;

    if (n->status != XM_OK) {
        return;
    }
    if (start->numbers == NULL || limit->numbers == NULL || step->numbers == NULL ||
        step->numbers[0] == 0 || onnx_elements(&start->type) != 1 ||
        onnx_elements(&limit->type) != 1 || onnx_elements(&step->type) != 1) {
        onnx_fail(n, "start, limit and step must follow from shapes, and the step not be 0");
        return;
    }
    count = (limit->numbers[0] - start->numbers[0]) / step->numbers[0];
    if (!(count < 1e15)) {
        onnx_fail(n, "%g numbers are too many", count);
        return;
    }
    shape.dims[0] = count <= 0 ? 0 : (int64_t)count + ((double)(int64_t)count < count);
    constant(n, start->type.dtype, &shape, 0);
    for (int64_t i = 0; n->numbers != NULL && i < shape.dims[0]; ++i) {
        n->numbers[i] = start->numbers[0] + (double)i * step->numbers[0];
    }
}

/* Random numbers and identity matrices in the shape of an input: every device makes its part by
 * itself. */
static void rule_like(onnx_node_t *n)
{
    const onnx_value_t *of = onnx_need(n, 0);

    if (of != NULL) {
        constant(n, of->type.dtype, &of->type.shape, 0);
        n->numbers = NULL;
    }
}

static const onnx_rule_t plain[] = {{"Where", rule_where},
                                    {"Clip", rule_clip},
                                    {"Cast", rule_cast},
                                    {"CastLike", rule_cast},
                                    {"Identity", rule_pass},
                                    {"Dropout", rule_pass},
                                    {"MatMul", rule_matmul},
                                    {"Gemm", rule_gemm},
                                    {"Einsum", rule_einsum},
                                    {"ArgMax", rule_arg},
                                    {"ArgMin", rule_arg},
                                    {"Softmax", rule_softmax},
                                    {"LogSoftmax", rule_softmax},
                                    {"Hardmax", rule_softmax},
                                    {"CumSum", rule_along},
                                    {"Trilu", rule_along},
                                    {"TopK", rule_top_k},
                                    {"Shape", rule_shape},
                                    {"Size", rule_shape},
                                    {"Constant", rule_constant},
                                    {"ConstantOfShape", rule_constant_of_shape},
                                    {"Range", rule_range},
                                    {"EyeLike", rule_like},
                                    {"RandomNormalLike", rule_like},
                                    {"RandomUniformLike", rule_like}};

/* A linear search through a few tables, once per node. */
bool onnx_rule_of(onnx_node_t *n, const onnx_rule_t *rules, size_t count)
{
    for (size_t i = 0; i < count; ++i) {
        if (strcmp(rules[i].op, n->proto->op_type) == 0) {
            rules[i].fill(n);
            return true;
        }
    }
    return false;
}

bool onnx_rule(onnx_node_t *n)
{
    const char *domain = n->proto->domain;

    n->alias = n->bias = NULL;
    n->numbers = NULL;
    if (domain != NULL && domain[0] != '\0' && strcmp(domain, "ai.onnx") != 0) {
        return false;
    }
    return onnx_rule_of(n, plain, sizeof(plain) / sizeof(plain[0])) || rule_elementwise(n) ||
           rule_reduce(n) || onnx_rule_movement(n) || onnx_rule_window(n);
}
