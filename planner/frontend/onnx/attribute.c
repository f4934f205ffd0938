/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an ONNX node is given: attributes, inputs, and the numbers among them. Over ONNX's versions
 * many parameters moved from attributes to inputs; the readers here take them from either, so the
 * rules need not know which version wrote the file.
 *
 * The first failure sticks to the node, with its place in front, and every reader after it returns
 * something harmless. So a rule reads what it needs and checks once.
 */

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "planner/frontend/onnx/build.h"

void onnx_fail(onnx_node_t *n, const char *format, ...)
{
    va_list arguments;

    if (n->status != XM_OK) {
        return;
    }
    va_start(arguments, format);
    (void)xm_error_set_list(XM_ERR_PARSE, format, arguments);
    va_end(arguments);
    n->status = xm_error_prefix(XM_ERR_PARSE, "%s", n->place);
}

/* An attribute that a function hands on: what it is called with, or its default. Calls are limited
 * in depth. NOLINTNEXTLINE(misc-no-recursion) */
static const Onnx__AttributeProto *of_caller(const onnx_node_t *n, const char *name)
{
    const Onnx__AttributeProto *given = n->caller != NULL ? onnx_attribute(n->caller, name) : NULL;

    for (size_t i = 0; given == NULL && n->function != NULL && i < n->function->n_attribute_proto;
         ++i) {
        const Onnx__AttributeProto *otherwise = n->function->attribute_proto[i];

        if (otherwise->name != NULL && strcmp(otherwise->name, name) == 0) {
            given = otherwise;
        }
    }
    return given;
}

/* NOLINTNEXTLINE(misc-no-recursion) */
bool onnx_is(const onnx_node_t *n, const char *operators)
{
    return xm_text_in_words(operators, n->proto->op_type, strlen(n->proto->op_type));
}

const Onnx__AttributeProto *onnx_attribute(const onnx_node_t *n, const char *name)
{
    for (size_t i = 0; i < n->proto->n_attribute; ++i) {
        const Onnx__AttributeProto *attribute = n->proto->attribute[i];

        if (attribute->name != NULL && strcmp(attribute->name, name) == 0) {
            return attribute->ref_attr_name != NULL && attribute->ref_attr_name[0] != '\0'
                       ? of_caller(n, attribute->ref_attr_name)
                       : attribute;
        }
    }
    return NULL;
}

/* An attribute of another type counts as missing, and the default holds. */
int64_t onnx_int(const onnx_node_t *n, const char *name, int64_t otherwise)
{
    const Onnx__AttributeProto *attribute = onnx_attribute(n, name);

    return attribute != NULL && attribute->has_i ? attribute->i : otherwise;
}

int onnx_ints(onnx_node_t *n, const char *name, int64_t *values, int room)
{
    const Onnx__AttributeProto *attribute = onnx_attribute(n, name);

    if (attribute == NULL) {
        return -1;
    }
    if (attribute->n_ints > (size_t)room) {
        onnx_fail(n, "the attribute '%s' has %zu numbers, %d are handled", name, attribute->n_ints,
                  room);
        return -1;
    }
    for (size_t i = 0; i < attribute->n_ints; ++i) {
        values[i] = attribute->ints[i];
    }
    return (int)attribute->n_ints;
}

bool onnx_string(const onnx_node_t *n, const char *name, char *text, size_t size)
{
    const Onnx__AttributeProto *attribute = onnx_attribute(n, name);
    size_t length;

    if (attribute == NULL || !attribute->has_s) {
        return false;
    }
    length = attribute->s.len < size - 1 ? attribute->s.len : size - 1;
    memcpy(text, attribute->s.data, length);
    text[length] = '\0';
    return true;
}

onnx_value_t *onnx_input(const onnx_node_t *n, int index)
{
    return index < n->inputs ? n->in[index] : NULL;
}

onnx_value_t *onnx_need(onnx_node_t *n, int index)
{
    onnx_value_t *value = onnx_input(n, index);

    if (value == NULL) {
        onnx_fail(n, "input %d is missing", index);
    }
    return value;
}

/* INT64_MAX stands for more elements than 64 bits count; every caller compares with a limit far
 * below. */
int64_t onnx_elements(const operand_type_t *type)
{
    int64_t elements = 1;

    for (int d = 0; d < type->shape.rank; ++d) {
        if (__builtin_mul_overflow(elements, type->shape.dims[d], &elements)) {
            return INT64_MAX;
        }
    }
    return elements;
}

bool onnx_numbers(onnx_node_t *n, int index, int64_t *values, int room, int *count)
{
    const onnx_value_t *value = onnx_need(n, index);
    int64_t elements;

    if (value == NULL) {
        return false;
    }
    elements = onnx_elements(&value->type);
    if (value->numbers == NULL && elements > 0) {
        onnx_fail(n, "the value of input %d, '%s', is needed and does not follow from shapes",
                  index, value->name);
        return false;
    }
    if (elements > room) {
        onnx_fail(n, "input %d has %" PRId64 " numbers, %d are handled", index, elements, room);
        return false;
    }
    for (int64_t i = 0; i < elements; ++i) {
        double number = value->numbers[i];

        /* Ends of slices are often the largest integer, which a double rounds up beyond it. The
         * bounds of 2^62 keep sums of a few of them within 64 bits. */
        values[i] = number >= 0x1p62    ? (int64_t)1 << 62
                    : number <= -0x1p62 ? -((int64_t)1 << 62)
                                        : (int64_t)number;
    }
    *count = (int)elements;
    return true;
}

/* For parameters that are an attribute in old files and an input in new ones. The attribute wins
 * where both are there. */
bool onnx_list(onnx_node_t *n, const char *name, int index, int64_t *values, int room, int *count)
{
    *count = onnx_ints(n, name, values, room);
    if (*count < 0 && n->status == XM_OK && onnx_input(n, index) != NULL) {
        return onnx_numbers(n, index, values, room, count);
    }
    return n->status == XM_OK;
}

bool onnx_normal_axis(onnx_node_t *n, int64_t axis, int rank, int *dim)
{
    if (axis < -rank || axis >= rank) {
        onnx_fail(n, "there is no axis %" PRId64 " among %d dimensions", axis, rank);
        *dim = 0;
        return false;
    }
    *dim = (int)(axis < 0 ? axis + rank : axis);
    return true;
}

int onnx_axis(onnx_node_t *n, int of, const char *name, int64_t otherwise)
{
    const onnx_value_t *value = onnx_need(n, of);
    int dim = 0;

    if (value != NULL) {
        (void)onnx_normal_axis(n, onnx_int(n, name, otherwise), value->type.shape.rank, &dim);
    }
    return dim;
}

/* Types are those of the inputs as read so far; they stay where they are, in the arena, while the
 * rule points at them. */
bool onnx_begin(onnx_node_t *n, const int *inputs, int count)
{
    /* A bias may come to an operator of one operand. */
    const size_t room = (size_t)count + 1;
    const operand_type_t **types = xm_arena_get(&n->b->arena, room, sizeof(*types));

    n->reads = 0;
    n->read = xm_arena_get(&n->b->arena, room, sizeof(onnx_value_t *));
    if (types == NULL || n->read == NULL) {
        onnx_fail(n, "no memory for %d operands", count);
    }
    for (int i = 0; i < count && n->status == XM_OK; ++i) {
        onnx_value_t *value = onnx_need(n, inputs[i]);

        if (value != NULL) {
            types[n->reads] = &value->type;
            n->read[n->reads++] = value;
        }
    }
    if (n->status != XM_OK) {
        return false;
    }
    shape_rule_begin(&n->op, n->place, types, n->reads);
    return n->op.rule.status == XM_OK;
}

bool onnx_begin1(onnx_node_t *n, int input)
{
    return onnx_begin(n, &input, 1);
}

/* Inputs that were left out are skipped, so the operands of the rule are numbered without them. */
bool onnx_begin_all(onnx_node_t *n)
{
    int *inputs = xm_arena_get(&n->b->arena, (size_t)n->inputs + 1, sizeof(int)), count = 0;

    if (inputs == NULL) {
        onnx_fail(n, "no memory for %d operands", n->inputs);
        return false;
    }
    for (int i = 0; i < n->inputs; ++i) {
        if (n->in[i] != NULL) {
            inputs[count++] = i;
        }
    }
    return onnx_begin(n, inputs, count);
}

void onnx_result_dtype(onnx_node_t *n, int result, ap_dtype_t dtype)
{
    n->op.made[result].dtype = dtype;
}

/* Element types as the planner counts them, by size. Strings have none. */
bool onnx_dtype(int32_t data_type, ap_dtype_t *dtype)
{
    switch (data_type) {
    case ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT:
        *dtype = AP_DTYPE_F32;
        return true;
    case ONNX__TENSOR_PROTO__DATA_TYPE__DOUBLE:
    case ONNX__TENSOR_PROTO__DATA_TYPE__COMPLEX64:
        *dtype = AP_DTYPE_F64;
        return true;
    case ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT16:
        *dtype = AP_DTYPE_F16;
        return true;
    case ONNX__TENSOR_PROTO__DATA_TYPE__BFLOAT16:
        *dtype = AP_DTYPE_BF16;
        return true;
    case ONNX__TENSOR_PROTO__DATA_TYPE__INT64:
    case ONNX__TENSOR_PROTO__DATA_TYPE__UINT64:
        *dtype = AP_DTYPE_I64;
        return true;
    case ONNX__TENSOR_PROTO__DATA_TYPE__INT32:
    case ONNX__TENSOR_PROTO__DATA_TYPE__UINT32:
        *dtype = AP_DTYPE_I32;
        return true;
    case ONNX__TENSOR_PROTO__DATA_TYPE__INT16:
    case ONNX__TENSOR_PROTO__DATA_TYPE__UINT16:
        *dtype = AP_DTYPE_I16;
        return true;
    case ONNX__TENSOR_PROTO__DATA_TYPE__COMPLEX128:
        *dtype = AP_DTYPE_C128;
        return true;
    case ONNX__TENSOR_PROTO__DATA_TYPE__UNDEFINED:
    case ONNX__TENSOR_PROTO__DATA_TYPE__STRING:
        return false;
    default: /* truth values, and numbers of a byte or less */
        *dtype = AP_DTYPE_I8;
        return true;
    }
}

/* The number of elements stays below 2^62, so that bytes and products of two counts can be computed
 * in doubles and 64 bits without a check at each place. Extents of 0 do not hide the others from
 * the check. */
xm_status_t onnx_tensor_type(onnx_build_t *b, const Onnx__TensorProto *tensor, const char *name,
                             operand_type_t *type)
{
    int64_t elements = 1;

    memset(type, 0, sizeof(*type));
    if (!onnx_dtype(tensor->has_data_type ? tensor->data_type : 0, &type->dtype)) {
        return XM_UNSUPPORTED("%s: the tensor '%s' has no element type, or one of strings", b->file,
                              name);
    }
    if (tensor->n_dims > AP_MAX_RANK) {
        return XM_UNSUPPORTED("%s: the tensor '%s' has more than %d dimensions", b->file, name,
                              AP_MAX_RANK);
    }
    for (size_t d = 0; d < tensor->n_dims; ++d) {
        if (tensor->dims[d] < 0 ||
            (tensor->dims[d] > 0 && __builtin_mul_overflow(elements, tensor->dims[d], &elements)) ||
            elements > (int64_t)1 << 62) {
            return XM_MALFORMED("%s: dimension %zu of the tensor '%s' is %lld, or makes it larger "
                                "than 2^62 elements",
                                b->file, d, name, (long long)tensor->dims[d]);
        }
        type->shape.dims[type->shape.rank++] = tensor->dims[d];
        type->empty = type->empty || tensor->dims[d] == 0;
    }
    return XM_OK;
}
