/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computes with the numbers that shapes are made of. Exporters write shapes as small graphs of
 * Shape, Gather, Mul, Concat and the like that end in a Reshape; folding them while nodes are read
 * gives the reshape its numbers, and none of them becomes an operator.
 *
 * All numbers are doubles: sizes are below 2^53, and one form serves integers, truth values and the
 * scales of a Resize. A number that is not known is NaN, and a list with one is given up, so
 * folding never guesses.
 */

#include <math.h>
#include <string.h>

#include "planner/frontend/onnx/build.h"

/* One element of an initialiser that stands in the file in one of the typed lists. */
static bool stored(const Onnx__TensorProto *tensor, int64_t i, double *number)
{
    if ((size_t)i < tensor->n_int64_data) {
        *number = (double)tensor->int64_data[i];
    } else if ((size_t)i < tensor->n_int32_data) {
        *number = (double)tensor->int32_data[i];
    } else if ((size_t)i < tensor->n_float_data) {
        *number = (double)tensor->float_data[i];
    } else if ((size_t)i < tensor->n_double_data) {
        *number = tensor->double_data[i];
    } else {
        return false;
    }
    return true;
}

/* The same from raw bytes, which ONNX defines as little-endian; so is every machine this runs on.
 * Lengths are compared by division, so no index overflows. */
static bool raw(const Onnx__TensorProto *tensor, int64_t i, double *number)
{
    const uint8_t *bytes = tensor->raw_data.data;
    size_t length = tensor->has_raw_data ? tensor->raw_data.len : 0, at = (size_t)i;
    union {
        int64_t i64;
        int32_t i32;
        float f32;
        double f64;
    } bits;

    switch (tensor->data_type) {
    case ONNX__TENSOR_PROTO__DATA_TYPE__INT64:
    case ONNX__TENSOR_PROTO__DATA_TYPE__DOUBLE:
        if (length / 8 <= at) {
            return false;
        }
        memcpy(&bits.i64, bytes + 8 * at, 8);
        *number =
            tensor->data_type == ONNX__TENSOR_PROTO__DATA_TYPE__INT64 ? (double)bits.i64 : bits.f64;
        return true;
    case ONNX__TENSOR_PROTO__DATA_TYPE__INT32:
    case ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT:
        if (length / 4 <= at) {
            return false;
        }
        memcpy(&bits.i32, bytes + 4 * at, 4);
        *number = tensor->data_type == ONNX__TENSOR_PROTO__DATA_TYPE__INT32 ? (double)bits.i32
                                                                            : (double)bits.f32;
        return true;
    case ONNX__TENSOR_PROTO__DATA_TYPE__BOOL:
        if (length <= at) {
            return false;
        }
        *number = bytes[at];
        return true;
    default:
        return false;
    }
}

/* Large tensors and those beside the file are weights, and weights are never looked at. */
double *onnx_tensor_numbers(onnx_build_t *b, const Onnx__TensorProto *tensor,
                            const operand_type_t *type)
{
    int64_t elements = onnx_elements(type);
    double *numbers;

    if (elements > ONNX_MAX_NUMBERS || tensor->n_external_data > 0) {
        return NULL;
    }
    numbers = xm_arena_get(&b->arena, (size_t)elements + 1, sizeof(double));
    for (int64_t i = 0; numbers != NULL && i < elements; ++i) {
        if (!stored(tensor, i, &numbers[i]) && !raw(tensor, i, &numbers[i])) {
            return NULL;
        }
    }
    return numbers;
}

static bool is_op(const onnx_node_t *n, const char *name)
{
    return strcmp(n->proto->op_type, name) == 0;
}

static bool is_integer(ap_dtype_t dtype)
{
    return dtype == AP_DTYPE_I8 || dtype == AP_DTYPE_I16 || dtype == AP_DTYPE_I32 ||
           dtype == AP_DTYPE_I64;
}

/* The place of an element of the result in an operand that broadcasts to it: dimensions are aligned
 * at the end, and one of 1 stays where it is. */
static int64_t broadcast_at(const ap_shape_t *from, const ap_shape_t *to, int64_t index)
{
    int64_t at = 0, stride = 1;

    for (int d = to->rank - 1, s = from->rank - 1; s >= 0; --d, --s) {
        at += from->dims[s] == 1 ? 0 : (index % to->dims[d]) * stride;
        stride *= from->dims[s];
        index /= to->dims[d];
    }
    return at;
}

/* What is not in the list gives NaN. Integer division truncates as ONNX's does; division by 0 is
 * unknown and not an error, because nothing may ever read the result. */
static double compute(const onnx_node_t *n, const double *x, int count)
{
    double y = count > 1 ? x[1] : 0;

    if (is_op(n, "Where")) {
        return x[0] != 0 ? x[1] : x[2];
    }
    if (is_op(n, "Add") || is_op(n, "Sum")) {
        return count > 1 ? x[0] + y : x[0];
    }
    if (is_op(n, "Sub")) {
        return x[0] - y;
    }
    if (is_op(n, "Mul")) {
        return x[0] * y;
    }
    if (is_op(n, "Div")) {
        return y == 0 ? NAN : (is_integer(n->op.made[0].dtype) ? trunc(x[0] / y) : x[0] / y);
    }
    if (is_op(n, "Mod")) {
        return y == 0 ? NAN : x[0] - y * floor(x[0] / y);
    }
    if (is_op(n, "Pow")) {
        return pow(x[0], y);
    }
    if (is_op(n, "Min")) {
        return count > 1 && y < x[0] ? y : x[0];
    }
    if (is_op(n, "Max")) {
        return count > 1 && y > x[0] ? y : x[0];
    }
    if (is_op(n, "Equal")) {
        return x[0] == y;
    }
    if (is_op(n, "Greater")) {
        return x[0] > y;
    }
    if (is_op(n, "GreaterOrEqual")) {
        return x[0] >= y;
    }
    if (is_op(n, "Less")) {
        return x[0] < y;
    }
    if (is_op(n, "LessOrEqual")) {
        return x[0] <= y;
    }
    if (is_op(n, "And")) {
        return x[0] != 0 && y != 0;
    }
    if (is_op(n, "Or")) {
        return x[0] != 0 || y != 0;
    }
    if (is_op(n, "Not")) {
        return x[0] == 0;
    }
    if (is_op(n, "Neg")) {
        return -x[0];
    }
    if (is_op(n, "Abs")) {
        return fabs(x[0]);
    }
    if (is_op(n, "Floor")) {
        return floor(x[0]);
    }
    if (is_op(n, "Ceil")) {
        return ceil(x[0]);
    }
    if (is_op(n, "Sqrt")) {
        return sqrt(x[0]);
    }
    if (is_op(n, "Cast") || is_op(n, "CastLike")) {
        return is_integer(n->op.made[0].dtype) ? trunc(x[0]) : x[0];
    }
    return NAN; /* not known */
}

static bool fold_elementwise(onnx_node_t *n, int64_t elements)
{
    const ap_shape_t *to = &n->op.made[0].shape;

    for (int64_t i = 0; i < elements; ++i) {
        double x[OPERATOR_MAX_OPERANDS];

        for (int k = 0; k < n->reads; ++k) {
            x[k] = n->read[k]->numbers[broadcast_at(&n->read[k]->type.shape, to, i)];
        }
        n->numbers[i] =
            n->reads > 3 || (n->reads > 2 && !is_op(n, "Where")) ? NAN : compute(n, x, n->reads);
        if (isnan(n->numbers[i])) {
            return false;
        }
    }
    return true;
}

/* Operators after which the same elements stand in the same order. */
static bool fold_same(onnx_node_t *n, int64_t elements)
{
    if (onnx_elements(&n->read[0]->type) != elements) {
        return false;
    }
    memcpy(n->numbers, n->read[0]->numbers, (size_t)elements * sizeof(double));
    return true;
}

static bool fold_expand(onnx_node_t *n, int64_t elements)
{
    for (int64_t i = 0; i < elements; ++i) {
        n->numbers[i] =
            n->read[0]->numbers[broadcast_at(&n->read[0]->type.shape, &n->op.made[0].shape, i)];
    }
    return true;
}

/* Lists, one after the other. */
static bool fold_concat(onnx_node_t *n)
{
    int64_t at = 0;

    if (n->op.made[0].shape.rank != 1) {
        return false;
    }
    for (int k = 0; k < n->reads; ++k) {
        for (int64_t i = 0; i < onnx_elements(&n->read[k]->type); ++i) {
            n->numbers[at++] = n->read[k]->numbers[i];
        }
    }
    return true;
}

/* Elements of a list, by one index or several; negative ones count from the end. */
static bool fold_gather(onnx_node_t *n, int64_t elements)
{
    const onnx_value_t *index = n->read[0], *list = n->read[1];

    if (list->type.shape.rank != 1) {
        return false;
    }
    for (int64_t i = 0; i < elements; ++i) {
        double at = index->numbers[i];

        at = at < 0 ? at + (double)list->type.shape.dims[0] : at;
        if (!(at >= 0 && at < (double)list->type.shape.dims[0])) {
            onnx_fail(n, "the index %g is outside of a list of %lld", index->numbers[i],
                      (long long)list->type.shape.dims[0]);
            return false;
        }
        n->numbers[i] = list->numbers[(int64_t)at];
    }
    return true;
}

/* A part of a list. The number of elements was inferred from the same ends, so only the start and
 * the step are needed. */
static bool fold_slice(onnx_node_t *n, int64_t elements)
{
    int64_t start[1], step[1] = {1}, extent;
    int count;

    if (n->op.made[0].shape.rank != 1 || onnx_input(n, 1) == NULL ||
        !onnx_numbers(n, 1, start, 1, &count) ||
        (onnx_input(n, 4) != NULL && !onnx_numbers(n, 4, step, 1, &count))) {
        return false;
    }
    extent = n->read[0]->type.shape.dims[0];
    start[0] = start[0] < 0 ? start[0] + extent : start[0];
    start[0] = start[0] < 0 ? 0 : start[0];
    start[0] = step[0] < 0 && start[0] >= extent ? extent - 1 : start[0];
    for (int64_t i = 0; i < elements; ++i) {
        int64_t at = start[0] + i * step[0];

        if (at < 0 || at >= extent) {
            return false;
        }
        n->numbers[i] = n->read[0]->numbers[at];
    }
    return true;
}

/* A reduction of everything to one number. */
static bool fold_reduce(onnx_node_t *n, int64_t elements)
{
    int64_t count = onnx_elements(&n->read[0]->type);
    const double *x = n->read[0]->numbers;
    double made = is_op(n, "ReduceProd") ? 1 : (count > 0 ? x[0] : 0);

    if (elements != 1) {
        return false;
    }
    if (is_op(n, "ReduceSum")) {
        made = 0;
    }
    for (int64_t i = 0; i < count; ++i) {
        if (is_op(n, "ReduceProd")) {
            made *= x[i];
        } else if (is_op(n, "ReduceSum")) {
            made += x[i];
        } else if (is_op(n, "ReduceMax")) {
            made = fmax(made, x[i]);
        } else if (is_op(n, "ReduceMin")) {
            made = fmin(made, x[i]);
        } else {
            return false;
        }
    }
    n->numbers[0] = made;
    return true;
}

static bool fold(onnx_node_t *n, int64_t elements)
{
    if (is_op(n, "Reshape") || is_op(n, "Squeeze") || is_op(n, "Unsqueeze") ||
        is_op(n, "Flatten")) {
        return fold_same(n, elements);
    }
    if (is_op(n, "Expand")) {
        return fold_expand(n, elements);
    }
    if (is_op(n, "Concat")) {
        return fold_concat(n);
    }
    if (is_op(n, "Gather")) {
        return fold_gather(n, elements);
    }
    if (is_op(n, "Slice")) {
        return fold_slice(n, elements);
    }
    if (strncmp(n->proto->op_type, "Reduce", 6) == 0) {
        return fold_reduce(n, elements);
    }
    return n->op.rule.kind == AP_OP_ELEMENTWISE && fold_elementwise(n, elements);
}

/* A weight is never folded, even if it is small enough that its numbers are known: its data are
 * trained. Without memory for the numbers they count as unknown. */
void onnx_fold(onnx_node_t *n)
{
    int64_t elements;
    double *numbers;

    if (n->numbers != NULL || n->reads == 0 || n->op.rule.results != 1) {
        return;
    }
    elements = onnx_elements(&n->op.made[0]);
    if (elements > ONNX_MAX_NUMBERS) {
        return;
    }
    for (int k = 0; k < n->reads; ++k) {
        if (n->read[k]->numbers == NULL || n->read[k]->input) {
            return;
        }
    }
    numbers = xm_arena_get(&n->b->arena, (size_t)elements + 1, sizeof(double));
    if (numbers == NULL) {
        return;
    }
    n->numbers = numbers;
    if (elements > 0 && !fold(n, elements)) { /* of nothing, everything is known */
        n->numbers = NULL;
    }
}
