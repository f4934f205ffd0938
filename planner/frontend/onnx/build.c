/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the nodes of an ONNX graph to operators. Every name stands for a value with a type; a value
 * holds data, or numbers that are known, or nothing. Shapes are inferred node by node, and what the
 * file declares is only checked against them, because declared shapes are often missing and
 * sometimes symbolic.
 *
 * A node becomes an operator only if some input holds data; all else folds away. Nodes with more
 * inputs or results than an operator can have are done in pieces.
 */

#include "planner/frontend/onnx/build.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NAME_TEXT = 200,
    MAX_OUTPUTS = 4096,
    MAX_WORK = 1 << 20 /* nodes, those of functions each time that they are called */
};

/* Values are never moved, only the list of them is, so pointers to values stay valid. */
onnx_value_t *onnx_value(onnx_build_t *b, const char *name)
{
    onnx_value_t *made = xm_arena_get(&b->arena, 1, sizeof(*made));

    if (made == NULL) {
        return NULL;
    }
    if (b->count == b->room) {
        int room = b->room == 0 ? 256 : 2 * b->room;
        onnx_value_t **grown = xm_arena_get(&b->arena, (size_t)room, sizeof(*grown));

        if (grown == NULL) {
            return NULL;
        }
        if (b->count > 0) {
            memcpy(grown, b->values, (size_t)b->count * sizeof(*grown));
        }
        b->values = grown;
        b->room = room;
    }
    made->name = name;
    made->tensor = OPERATOR_NO_TENSOR;
    b->values[b->count++] = made;
    return made;
}

onnx_value_t *onnx_find(const onnx_build_t *b, const char *name)
{
    const json_t *at = json_object_get(b->names, name);

    return at != NULL ? b->values[json_integer_value(at)] : NULL;
}

/* Gives a value a name; a name that is taken is refused. The search for its number begins at the
 * end, where new values are. */
xm_status_t onnx_bind(onnx_build_t *b, const char *name, const onnx_value_t *value)
{
    int at = b->count - 1;

    while (b->values[at] != value) {
        --at;
    }
    if (json_object_get(b->names, name) != NULL) {
        return XM_MALFORMED("%s: '%s' is made twice", b->file, name);
    }
    return json_object_set_new_nocheck(b->names, name, json_integer(at)) == 0
               ? XM_OK
               : XM_NO_MEMORY("the graph of %s", b->file);
}

/* The size of a symbolic dimension, or 0. It notes that the dimension was met, because a given name
 * that no dimension has is an error at the end. */
static int64_t bound_size(onnx_build_t *b, const char *name)
{
    for (size_t i = 0; b->params != NULL && i < b->params->dim_count; ++i) {
        const char *given = b->params->dims[i];
        size_t length = strcspn(given, "=");

        if (strlen(name) == length && strncmp(given, name, length) == 0) {
            b->bound[i] = true;
            return strtoll(given + length + 1, NULL, 10); /* checked before. */
        }
    }
    return 0;
}

/* Every extent must be known: a plan for an unknown batch would have no costs. The sentence says
 * how to give one. */
xm_status_t onnx_read_type(onnx_build_t *b, const Onnx__ValueInfoProto *info, operand_type_t *type)
{
    const Onnx__TypeProto__Tensor *tensor;
    const char *name = info->name != NULL ? info->name : "";
    int64_t elements = 1;

    memset(type, 0, sizeof(*type));
    if (info->type == NULL || info->type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE) {
        return XM_UNSUPPORTED("%s: '%s' is no tensor", b->file, name);
    }
    tensor = info->type->tensor_type;
    if (!onnx_dtype(tensor->has_elem_type ? tensor->elem_type : 0, &type->dtype)) {
        return XM_UNSUPPORTED("%s: '%s' has no element type, or one of strings", b->file, name);
    }
    if (tensor->shape == NULL || tensor->shape->n_dim > AP_MAX_RANK) {
        return XM_UNSUPPORTED("%s: '%s' has no shape, or more than %d dimensions", b->file, name,
                              AP_MAX_RANK);
    }
    for (size_t d = 0; d < tensor->shape->n_dim; ++d) {
        const Onnx__TensorShapeProto__Dimension *dim = tensor->shape->dim[d];
        int64_t size = -1;

        if (dim->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE) {
            size = dim->dim_value;
        } else if (dim->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM) {
            size = bound_size(b, dim->dim_param);
            if (size == 0) {
                return XM_INVALID(
                    "%s: dimension %zu of '%s' is called '%s': give its size with --dim %.60s=SIZE",
                    b->file, d, name, dim->dim_param, dim->dim_param);
            }
        }
        if (size < 0 || (size > 0 && __builtin_mul_overflow(elements, size, &elements)) ||
            elements > (int64_t)1 << 62) {
            return XM_MALFORMED(
                "%s: dimension %zu of '%s' has no size, or makes it larger than 2^62 elements",
                b->file, d, name);
        }
        type->shape.dims[type->shape.rank++] = size;
        type->empty = type->empty || size == 0;
    }
    return XM_OK;
}

/* A declaration that cannot be read counts as none: inference decides, and only operators without a
 * rule depend on what is declared. */
static bool declared_type(onnx_build_t *b, const char *name, operand_type_t *type)
{
    const json_t *at = json_object_get(b->declared, name);
    const Onnx__ValueInfoProto *info;

    if (at == NULL) {
        return false;
    }
    info = json_integer_value(at) < (json_int_t)b->proto->n_value_info
               ? b->proto->value_info[json_integer_value(at)]
               : b->proto->output[json_integer_value(at) - (json_int_t)b->proto->n_value_info];
    return onnx_read_type(b, info, type) == XM_OK;
}

/* The tensor that holds a value's data. Inputs and parameters are made when they are first read, so
 * what nothing reads costs nothing. */
xm_status_t onnx_tensor(onnx_build_t *b, onnx_value_t *value, int *tensor)
{
    xm_status_t status = XM_OK;

    if (value->tensor == OPERATOR_NO_TENSOR && value->input && !value->type.empty) {
        status = ap_graph_add_tensor(b->graph, value->name,
                                     value->parameter ? AP_TENSOR_PARAMETER : AP_TENSOR_INPUT,
                                     &value->type.shape, value->type.dtype, &value->tensor);
        if (status != XM_OK) {
            return xm_error_prefix(status, "%s", b->file);
        }
    }
    *tensor = value->tensor;
    return status;
}

static bool has_data(const onnx_value_t *value)
{
    return !value->type.empty && (value->input || value->tensor != OPERATOR_NO_TENSOR);
}

/* What the file declares must be what was inferred. A difference is a fault of the file or of a
 * rule, and either would give costs of another model. */
static void check_declared(onnx_node_t *n, const char *name, const operand_type_t *made)
{
    operand_type_t declared;

    if (!declared_type(n->b, name, &declared) || operand_type_same(&declared, made)) {
        return;
    }
    {
        char left[OPERAND_TYPE_TEXT], right[OPERAND_TYPE_TEXT];

        onnx_fail(n, "the result '%s' is %s, the file says %s", name,
                  operand_type_format(made, left, sizeof(left)),
                  operand_type_format(&declared, right, sizeof(right)));
    }
}

/* Adds the operator that n->op describes, unless it needs no data; makes a value per result in any
 * case, for types are needed either way. A constant that a product reads is a weight, though it was
 * written into the graph as a node. */
static xm_status_t add_operator(onnx_node_t *n, const char *name, onnx_value_t **made)
{
    const size_t terms = (size_t)n->reads + (size_t)n->op.rule.results;
    int *tensors = xm_arena_get(&n->b->arena, terms + 1, sizeof(int)), *results;
    shape_emission_t emission = {.name = name, .tensors = tensors};
    bool data = false, empty = false;
    xm_status_t status =
        tensors == NULL ? XM_NO_MEMORY("the graph of %s", n->b->file) : n->op.rule.status;

    for (int r = 0; r < n->op.rule.results && status == XM_OK; ++r) {
        made[r] = onnx_value(n->b, n->proto->op_type); /* results that have a name get it later */
        XM_NEED_MEMORY(made[r], "the graph of %s", n->b->file);
        made[r]->type = n->op.made[r];
        empty = empty || made[r]->type.empty;
    }
    for (int i = 0; i < n->reads; ++i) {
        if (n->op.rule.kind == AP_OP_EINSUM && n->read[i]->literal) {
            n->read[i]->input = n->read[i]->parameter = true;
        }
        data = data || has_data(n->read[i]);
    }
    if (status != XM_OK || !data || empty || n->op.rule.results == 0) {
        return status;
    }
    for (int i = 0; i < n->reads && status == XM_OK; ++i) {
        status = onnx_tensor(n->b, n->read[i], &tensors[i]);
    }
    results = tensors + n->reads;
    XM_THEN(status, shape_rule_emit(&n->op, n->b->graph, &emission, results));
    if (status == XM_OK && emission.opaque) {
        status = ap_frontend_notes_add(n->b->notes, n->proto->op_type);
    }
    for (int r = 0; r < n->op.rule.results && status == XM_OK; ++r) {
        made[r]->tensor = results[r];
    }
    return status;
}

/* Gives results their names; those that the rule does not have are free when the file declares
 * them, and unknown otherwise. A value that is passed on keeps the name it was made under. */
xm_status_t onnx_bind_results(onnx_node_t *n, onnx_value_t *const *made, int results)
{
    for (size_t r = 0; r < n->proto->n_output; ++r) {
        const char *name = n->proto->output[r];
        onnx_value_t *value = (int)r < results ? made[r] : NULL;
        operand_type_t type;
        xm_status_t status;

        if (name[0] == '\0') {
            continue;
        }
        if (value == NULL) {
            if (!declared_type(n->b, name, &type)) {
                continue;
            }
            value = onnx_value(n->b, name);
            XM_NEED_MEMORY(value, "the graph of %s", n->b->file);
            value->type = type;
        } else if (n->alias == NULL) {
            value->name = name;
        }
        check_declared(n, name, &value->type);
        status = n->status == XM_OK ? onnx_bind(n->b, name, value) : n->status;
        XM_TRY(status);
    }
    return XM_OK;
}

/* An operator without a rule: the file must tell what it makes, and everything is needed whole. */
static void unknown(onnx_node_t *n)
{
    int results = 0;

    if (!onnx_begin_all(n)) {
        return;
    }
    for (size_t r = 0; r < n->proto->n_output; ++r) {
        operand_type_t type;

        if (n->proto->output[r][0] == '\0') {
            break;
        }
        if (!declared_type(n->b, n->proto->output[r], &type)) {
            onnx_fail(n,
                      "there is no rule for this operator, and the file does not tell the shape "
                      "of its result '%s'",
                      n->proto->output[r]);
            return;
        }
        shape_rule_result(&n->op, results++, type.dtype, &type.shape);
    }
    shape_rule_opaque(&n->op, results);
}

static xm_status_t note_unknown(onnx_node_t *n)
{
    char text[80];

    if (!onnx_is(n, "If Loop Scan")) {
        return ap_frontend_notes_add(n->b->notes, n->proto->op_type);
    }
    (void)snprintf(text, sizeof(text), "%s (its body is not looked into)", n->proto->op_type);
    return ap_frontend_notes_add(n->b->notes, text);
}

/* Keeps what a result is, where it follows from shapes and constants. */
static void keep_numbers(onnx_node_t *n, onnx_value_t *made)
{
    onnx_fold(n);
    if (made != NULL && made->tensor == OPERATOR_NO_TENSOR) {
        made->numbers = n->numbers;
    }
    n->numbers = NULL;
}

/* The product first, then the sum: each has its own derivative, and the bias gets its gradient from
 * the sum. */
static xm_status_t add_biased(onnx_node_t *n, onnx_value_t **made)
{
    onnx_value_t *bias = n->bias;
    const operand_type_t *types[2];
    char name[NAME_TEXT];

    (void)snprintf(name, sizeof(name), "%.180s.product", n->name);
    XM_TRY(add_operator(n, name, made));
    types[0] = &made[0]->type;
    types[1] = &bias->type;
    n->read[0] = made[0];
    n->read[1] = bias;
    n->reads = 2;
    shape_rule_begin(&n->op, n->place, types, 2);
    if (n->bias_dim >= 0) {
        shape_rule_bias(&n->op, n->bias_dim);
    } else {
        shape_rule_elementwise(&n->op, 1, true);
    }
    return add_operator(n, n->name, made);
}

/* Floating-point numbers, more than one: a single number is a constant of the formula, not a
 * weight. */
static bool is_weight(const operand_type_t *type)
{
    return (type->dtype == AP_DTYPE_F32 || type->dtype == AP_DTYPE_F16 ||
            type->dtype == AP_DTYPE_BF16 || type->dtype == AP_DTYPE_F64) &&
           onnx_elements(type) > 1;
}

static xm_status_t finish_node(onnx_node_t *n, bool known)
{
    onnx_value_t **made;

    if (n->alias != NULL) {
        return onnx_bind_results(n, &n->alias, 1);
    }
    if (n->op.rule.status != XM_OK) {
        return n->op.rule.status;
    }
    made = xm_arena_get(&n->b->arena, (size_t)n->op.rule.results + 1, sizeof(onnx_value_t *));
    XM_NEED_MEMORY(made, "the graph of %s", n->b->file);
    XM_TRY(n->bias != NULL ? add_biased(n, made) : add_operator(n, n->name, made));
    if (!known) {
        XM_TRY(note_unknown(n));
    }
    keep_numbers(n, made[0]);
    if (made[0] != NULL && strcmp(n->proto->op_type, "Constant") == 0) {
        made[0]->literal = is_weight(&made[0]->type);
    }
    return onnx_bind_results(n, made, n->op.rule.results);
}

/* Whether a node from `index` on makes a value. It is asked only after a failure, to tell nodes out
 * of order from missing ones. */
static bool is_made_later(const onnx_build_t *b, size_t index, const char *name)
{
    for (size_t i = index; i < b->node_count; ++i) {
        for (size_t r = 0; r < b->nodes[i]->n_output; ++r) {
            if (strcmp(b->nodes[i]->output[r], name) == 0) {
                return true;
            }
        }
    }
    return false;
}

static xm_status_t find_inputs(onnx_node_t *n, size_t index)
{
    const Onnx__NodeProto *proto = n->proto;

    n->in = xm_arena_get(&n->b->arena, proto->n_input, sizeof(onnx_value_t *));
    if (n->in == NULL && proto->n_input > 0) {
        return XM_NO_MEMORY("the graph of %s", n->b->file);
    }
    n->inputs = (int)proto->n_input;
    for (size_t i = 0; i < proto->n_input; ++i) {
        if (proto->input[i][0] == '\0') {
            continue;
        }
        n->in[i] = onnx_find(n->b, proto->input[i]);
        if (n->in[i] != NULL) {
            continue;
        }
        if (is_made_later(n->b, index, proto->input[i])) {
            onnx_fail(n,
                      "input %zu, '%s', is made by this node or a later one: nodes must stand in "
                      "order, without circles",
                      i, proto->input[i]);
        } else {
            onnx_fail(n, "input %zu, '%s', is made by nothing", i, proto->input[i]);
        }
        return n->status;
    }
    return XM_OK;
}

/* Reads one node. Functions call each other; their depth is limited, and so is the work of all
 * calls together. NOLINTNEXTLINE(misc-no-recursion) */
xm_status_t onnx_build_node(onnx_build_t *b, size_t index, const onnx_node_t *caller,
                            const Onnx__FunctionProto *function)
{
    const Onnx__NodeProto *proto = b->nodes[index];
    onnx_node_t n = {.b = b, .proto = proto, .caller = caller, .function = function};
    const Onnx__FunctionProto *called;
    char scoped[NAME_TEXT];
    bool known;
    xm_status_t status;

    if (++b->work > MAX_WORK) {
        return XM_UNSUPPORTED("%s: more than %d nodes are not handled", b->file, MAX_WORK);
    }

    if (proto->op_type == NULL) {
        return XM_MALFORMED("%s: node %zu has no operator", b->file, index);
    }
    /* Nodes need no name; the first result's name then stands for the node in sentences and
     * plans. */
    n.name = proto->name != NULL && proto->name[0] != '\0' ? proto->name
             : proto->n_output > 0                         ? proto->output[0]
                                                           : proto->op_type;
    if (caller != NULL) {
        (void)snprintf(scoped, sizeof(scoped), "%.90s/%.90s", caller->name, n.name);
        n.name = scoped;
    }
    (void)snprintf(n.place, sizeof(n.place), "%.120s: node %zu '%.100s' (%.40s)", b->file, index,
                   n.name, proto->op_type);
    if (proto->n_input > MAX_OUTPUTS || proto->n_output > MAX_OUTPUTS) {
        onnx_fail(&n, "more than %d inputs or outputs are not handled", MAX_OUTPUTS);
        return n.status;
    }
    status = find_inputs(&n, index);
    XM_TRY(status);
    called = onnx_find_function(b, proto);
    if (called != NULL) {
        return onnx_call_function(&n, called);
    }
    known = onnx_rule(&n);
    if (n.status == XM_OK && !known) {
        unknown(&n);
    }
    status = n.status == XM_OK ? finish_node(&n, known) : n.status;
    shape_rule_end(&n.op);
    return status;
}
