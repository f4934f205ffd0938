/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From JSON to a graph: tensors, operators in order, what updates what, the loss. The format is for
 * other programs and for hand-written files, so errors matter more than speed: each has line,
 * column and a sentence (see planner/frontend/json/place.h for how).
 *
 * Operators refer to tensors by name and must stand in order, which makes circles impossible
 * without a search for them.
 */

#include "planner/frontend/json.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/frontend/common.h"
#include "planner/frontend/json/json_private.h"

enum { LAYERS_MOST = 1 << 20 };

/* Notes that the tensor or operator `name` is number `id`; a second one is refused. */
static void define(json_reader_t *r, json_t *names, const char *name, int id)
{
    if (r->status != XM_OK) {
        return;
    }
    if (json_object_get(names, name) != NULL) {
        json_refuse(r, NULL, "the name '%s' is taken", name);
    } else if (json_object_set_new(names, name, json_integer(id)) != 0) {
        (void)json_note(r, NULL, XM_NO_MEMORY("a graph from JSON"));
    }
}

/* The id behind a name, or -1. */
static int look_up(const json_t *names, const char *name)
{
    const json_t *id = json_object_get(names, name);

    return id != NULL ? (int)json_integer_value(id) : -1;
}

static void read_tensor(json_reader_t *r, const json_t *list, size_t position)
{
    static const char *const kinds[] = {"input", "parameter"};
    static const ap_tensor_kind_t made[] = {AP_TENSOR_INPUT, AP_TENSOR_PARAMETER};
    const json_t *object = json_array_get(list, position);
    ap_dtype_t dtype;
    const char *name;
    ap_shape_t shape;
    int kind, id = -1;

    if (!json_is_object(object)) {
        json_refuse(r, NULL, "a tensor must be an object");
    }
    json_check_keys(r, object, "name kind shape dtype");
    name = json_get_string(r, object, "name");
    kind = json_get_choice(r, object, "kind", "kind", kinds, 2);
    shape = json_get_shape(r, object, "shape");
    dtype = json_get_dtype(r, object, "dtype", AP_DTYPE_F32);
    if (r->status == XM_OK) {
        (void)json_note(r, NULL,
                        ap_graph_add_tensor(r->graph, name, made[kind], &shape, dtype, &id));
    }
    define(r, r->tensors, name, id);
}

/* Whether an operator after `position` makes the tensor: then the order is wrong, or there is a
 * circle. Results are recognised by the name in front of their dot. It is asked only after a
 * failure. */
static bool is_made_later(const json_t *ops, size_t position, const char *tensor)
{
    for (size_t o = position; o < json_array_size(ops); ++o) {
        const json_t *name = json_object_get(json_array_get(ops, o), "name");
        size_t length = name != NULL ? json_string_length(name) : 0;

        if (length > 0 && strncmp(tensor, json_string_value(name), length) == 0 &&
            (tensor[length] == '\0' || tensor[length] == '.')) {
            return true;
        }
    }
    return false;
}

static void read_operands(json_reader_t *r, const json_t *ops, size_t position,
                          const json_t *object, json_op_t *op)
{
    const json_t *list = json_object_get(object, "operands");

    if (!json_is_array(list)) {
        json_refuse(r, list != NULL ? "operands" : NULL,
                    "'operands' must be a list of names of tensors");
    }
    op->operands = json_list(r, json_array_size(list), sizeof(*op->operands));
    for (size_t i = 0; i < json_array_size(list) && r->status == XM_OK; ++i) {
        const char *name = json_string_value(json_array_get(list, i));
        int id = name != NULL ? look_up(r->tensors, name) : -1;

        if (id >= 0) {
            op->operands[op->count++] = id;
            continue;
        }
        json_place_enter(&r->place, "operands");
        json_place_enter_at(&r->place, i);
        if (name != NULL && is_made_later(ops, position, name)) {
            json_refuse(r, NULL,
                        "'%s' is made by a later operator, or by this one: operators must stand "
                        "in order, without circles",
                        name);
        }
        json_refuse(r, NULL, "there is no tensor '%s'", name != NULL ? name : "(no name)");
    }
}

/* Reads {"d": 64} as "d=64", the form that rules take. */
static char *read_sizes(json_reader_t *r, const json_t *object)
{
    const json_t *sizes = json_object_get(object, "sizes");
    const char *letter;
    json_t *value;
    size_t length = 0, size = 1 + 40 * json_object_size(sizes);
    char *text = json_list(r, size, 1);

    if (sizes != NULL && !json_is_object(sizes)) {
        json_refuse(r, "sizes", "'sizes' must be an object: {\"d\": 64}");
    }
    json_object_foreach((json_t *)sizes, letter, value)
    {
        if (r->status != XM_OK) {
            break;
        }
        if (letter[0] == '\0' || strlen(letter) >= AP_FACTOR_TEXT || !json_is_integer(value) ||
            json_integer_value(value) < 1) {
            json_refuse(r, "sizes",
                        "the size of '%s' must be a positive integer, of a factor of one letter",
                        letter);
            break;
        }
        length += (size_t)snprintf(text + length, size - length, "%s%s=%" JSON_INTEGER_FORMAT,
                                   length > 0 ? "," : "", letter, json_integer_value(value));
    }
    return text;
}

/* What a backward operator belongs to: an operator before it, and the operand that each result is
 * the gradient of. */
static void read_forward(json_reader_t *r, const json_t *object, int results,
                         ap_op_params_t *params)
{
    const char *name = json_get_optional_string(r, object, "forward");
    int64_t *operands;
    int count, *differentiates;

    if (name == NULL) {
        return;
    }
    params->forward = look_up(r->ops, name);
    if (params->forward < 0) {
        json_refuse(r, "forward", "there is no operator '%s' before this one", name);
    }
    operands = json_get_list(r, object, "differentiates", 0, INT_MAX, &count);
    differentiates = json_list(r, (size_t)results, sizeof(*differentiates));
    for (int i = 0; i < count && i < results && differentiates != NULL; ++i) {
        differentiates[i] = (int)operands[i];
        if (params->forward >= 0 &&
            operands[i] >= ap_graph_op(r->graph, params->forward)->operand_count) {
            json_refuse(r, "differentiates", "'%s' has no operand %" PRId64, name, operands[i]);
        }
    }
    params->differentiates = differentiates;
}

/* Makes the rule; a fault in it is told at its place in the file. */
static bool read_rule(json_reader_t *r, const json_t *object, const json_op_t *op,
                      ap_sharding_rule_t *rule)
{
    const char *text = json_get_string(r, object, "rule");
    const char *whole = json_get_optional_string(r, object, "whole");
    const char *permuted = json_get_optional_string(r, object, "permuted");
    const char *sizes = read_sizes(r, object);
    ap_shape_t *shapes = json_list(r, (size_t)op->count, sizeof(*shapes));

    for (int i = 0; i < op->count && shapes != NULL; ++i) {
        shapes[i] = ap_graph_tensor(r->graph, op->operands[i])->shape;
    }
    return r->status == XM_OK && json_note(r, "rule",
                                           ap_sharding_rule_create(text, whole, permuted, sizes,
                                                                   shapes, op->count, rule));
}

/* Per term, the term that it is touched like: itself, -1 for not at all, another for its rows. */
static void read_touched(json_reader_t *r, const json_t *object, int terms, ap_op_params_t *params)
{
    int count;
    int64_t *like = json_get_list(r, object, "touched", -1, terms - 1, &count);
    int *touched = json_list(r, (size_t)terms, sizeof(*touched));

    if (count > terms) {
        json_refuse(r, "touched", "'touched' has %d entries, the rule %d terms", count, terms);
    }
    for (int t = 0; t < count && r->status == XM_OK; ++t) {
        touched[t] = like[t] == t  ? AP_TOUCHES_ALL
                     : like[t] < 0 ? AP_TOUCHES_NONE
                                   : (int)like[t] + 1;
    }
    params->touched = touched;
}

static void add_by_rule(json_reader_t *r, const json_t *object, const json_op_t *op)
{
    const char *kinds[AP_OP_KIND_COUNT];
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    ap_sharding_rule_t rule;
    int *results;

    for (int k = 0; k < AP_OP_KIND_COUNT; ++k) {
        kinds[k] = ap_op_kind_name((ap_op_kind_t)k);
    }
    params.phase = op->phase;
    params.name = op->name;
    params.label = op->label;
    params.operand_count = op->count;
    params.operands = op->operands;
    params.repeat = op->repeat;
    params.kind = (ap_op_kind_t)json_get_choice(r, object, "kind", "kind", kinds, AP_OP_KIND_COUNT);
    params.result_dtype = json_get_dtype(
        r, object, "dtype",
        op->count > 0 ? ap_graph_tensor(r->graph, op->operands[0])->dtype : AP_DTYPE_F32);
    params.linear = json_get_bool(r, object, "linear");
    params.flops_per_point = json_get_number(r, object, "flops", 0);
    if (!read_rule(r, object, op, &rule)) {
        return;
    }
    params.flops_per_point /= ap_sharding_rule_points(&rule);
    read_touched(r, object, rule.operands + rule.results, &params);
    read_forward(r, object, rule.results, &params);
    results = json_list(r, (size_t)rule.results, sizeof(*results));
    if (r->status == XM_OK) {
        (void)json_note(r, NULL, ap_graph_add_op_by_rule(r->graph, &params, &rule, results));
    } else {
        ap_sharding_rule_destroy(&rule);
    }
}

/* Enters the name of the operator that was added last, and those of its results. */
static void define_op(json_reader_t *r, const json_op_t *op)
{
    const int id = ap_graph_ops(r->graph) - 1;
    const ap_op_t *made = ap_graph_op(r->graph, id);

    define(r, r->ops, op->name, id);
    for (int i = 0; i < made->result_count; ++i) {
        char text[300];

        (void)snprintf(text, sizeof(text), i == 0 ? "%s" : "%s.%d", op->name, i);
        define(r, r->tensors, text, made->results[i]);
    }
}

/* Keys of all kinds are accepted for each; what matters is that unknown ones are not. */
static void read_op(json_reader_t *r, const json_t *ops, size_t position)
{
    static const char *const phases[] = {"forward", "backward", "update"};
    const json_t *object = json_array_get(ops, position);
    json_op_t op = {.count = 0};
    int64_t layer;

    if (!json_is_object(object)) {
        json_refuse(r, NULL, "an operator must be an object");
    }
    json_check_keys(r, object,
                    "name kind operands phase layer label repeat flops dtype rule whole "
                    "permuted sizes linear touched forward equation dim dims keep groups "
                    "differentiates parts shape order window stride padding dilation "
                    "results flops_per_element");
    op.name = json_get_string(r, object, "name");
    op.kind = json_get_string(r, object, "kind");
    op.label = json_get_optional_string(r, object, "label");
    if (json_object_get(object, "phase") != NULL) {
        op.phase = (ap_phase_t)json_get_choice(r, object, "phase", "phase", phases, 3);
    }
    op.repeat = json_get_number(r, object, "repeat", 1);
    if (op.repeat < 1) {
        json_refuse(r, "repeat", "an operator runs at least once, not %g times", op.repeat);
    }
    layer = json_get_int(r, object, "layer", 0, LAYERS_MOST, -1);
    if (r->status == XM_OK && layer >= 0) {
        (void)json_note(r, NULL, ap_graph_set_layer(r->graph, (int)layer));
    }
    read_operands(r, ops, position, object, &op);
    /* Longer names would not leave room for the numbers of results in texts of fixed size. */
    if (strlen(op.name) > 200) {
        json_refuse(r, "name", "a name of %zu bytes is too long", strlen(op.name));
    }
    if (r->status == XM_OK && json_object_get(object, "rule") != NULL) {
        add_by_rule(r, object, &op);
    } else if (r->status == XM_OK) {
        json_add_by_kind(r, object, &op);
    }
    if (r->status == XM_OK) {
        define_op(r, &op);
    }
}

/* Reads every entry of a list, each with its place. */
static void read_list(json_reader_t *r, const json_t *document, const char *key,
                      void (*read)(json_reader_t *r, const json_t *list, size_t position))
{
    const json_t *list = json_object_get(document, key);

    if (!json_is_array(list)) {
        json_refuse(r, list != NULL ? key : NULL, "'%s' must be a list", key);
    }
    json_place_enter(&r->place, key);
    for (size_t i = 0; i < json_array_size(list) && r->status == XM_OK; ++i) {
        json_place_enter_at(&r->place, i);
        read(r, list, i);
        json_place_leave(&r->place);
    }
    json_place_leave(&r->place);
}

/* Reads pairs of tensors such as {"new_w1": "w1"}. */
static void read_pairs(json_reader_t *r, const json_t *document, const char *key,
                       xm_status_t (*set)(ap_graph_t *graph, int tensor, int other))
{
    const json_t *pairs = json_object_get(document, key);
    const char *name;
    json_t *value;

    if (pairs != NULL && !json_is_object(pairs)) {
        json_refuse(r, key, "'%s' must be an object of names of tensors", key);
    }
    json_place_enter(&r->place, key);
    json_object_foreach((json_t *)pairs, name, value)
    {
        const char *other = json_string_value(value);
        int from = look_up(r->tensors, name);
        int to = other != NULL ? look_up(r->tensors, other) : -1;

        if (from < 0 || to < 0) {
            json_refuse(r, name, "there is no tensor '%s'",
                        from < 0 ? name : (other != NULL ? other : "(no name)"));
        }
        if (r->status == XM_OK) {
            (void)json_note(r, name, set(r->graph, from, to));
        }
    }
    json_place_leave(&r->place);
}

static void read_loss(json_reader_t *r, const json_t *document)
{
    const json_t *loss = json_object_get(document, "loss");
    bool is_gradient;
    const char *name;

    if (loss == NULL) {
        return;
    }
    json_place_enter(&r->place, "loss");
    if (!json_is_object(loss)) {
        json_refuse(r, NULL, "'loss' must be an object with a tensor");
    }
    json_check_keys(r, loss, "tensor is_gradient");
    name = json_get_string(r, loss, "tensor");
    is_gradient = json_get_bool(r, loss, "is_gradient");
    if (look_up(r->tensors, name) < 0) {
        json_refuse(r, "tensor", "there is no tensor '%s'", name);
    }
    if (r->status == XM_OK) {
        (void)json_note(r, NULL,
                        ap_graph_set_loss(r->graph, look_up(r->tensors, name), is_gradient));
    }
    json_place_leave(&r->place);
}

static void check_header(json_reader_t *r, const json_t *document)
{
    const char *format;
    int64_t version;

    if (!json_is_object(document)) {
        json_refuse(r, NULL, "the document is no object");
    }
    if (xm_json_check_kind(document, "a model's graph") != XM_OK) {
        json_refuse(r, NULL, "%s", xm_last_error());
    }
    format = json_get_string(r, document, "format");
    if (strcmp(format, "autopar-graph") != 0) {
        json_refuse(r, "format", "the format is '%s', not 'autopar-graph'", format);
    }
    version = json_get_int(r, document, "version", 0, INT64_MAX, -1);
    if (version != AP_GRAPH_JSON_VERSION) {
        json_refuse(r, version >= 0 ? "version" : NULL,
                    "version %" PRId64 " is not known, only %d is", version, AP_GRAPH_JSON_VERSION);
    }
    json_check_keys(r, document, "format version name tensors ops loss aliases gradients");
}

static xm_status_t build(json_reader_t *r, const json_t *document)
{
    const char *name;

    check_header(r, document);
    name = json_get_string(r, document, "name");
    if (r->status != XM_OK || !json_note(r, NULL, ap_graph_create(name, &r->graph))) {
        return r->status;
    }
    read_list(r, document, "tensors", read_tensor);
    read_list(r, document, "ops", read_op);
    read_pairs(r, document, "aliases", ap_graph_set_alias);
    read_pairs(r, document, "gradients", ap_graph_set_gradient);
    read_loss(r, document);
    return r->status == XM_OK ? ap_graph_finish(r->graph) : r->status;
}

/* Duplicate keys are refused, for jansson would keep the last one in silence. Only faults of the
 * file get a place; a lack of memory has none. */
xm_status_t ap_json_from_text(const char *text, size_t size, const char *name, ap_graph_t **graph)
{
    XM_NEED_ARGUMENTS(text, name, graph);
    json_error_t error;
    json_t *document = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    json_reader_t r = {.tensors = json_object(), .ops = json_object()};
    xm_status_t status;

    if (document == NULL) {
        status =
            XM_MALFORMED("%s: line %d, column %d: %s", name, error.line, error.column, error.text);
    } else if (r.tensors == NULL || r.ops == NULL) {
        status = XM_NO_MEMORY("a graph from JSON");
    } else {
        status = build(&r, document);
        if (status != XM_OK && xm_status_is_caller(status)) {
            int line, column;

            json_place_find(&r.place, text, size, &line, &column);
            status = xm_error_prefix(status, "%s: line %d, column %d", name, line, column);
        }
    }
    json_decref(document);
    xm_arena_clear(&r.arena);
    json_decref(r.tensors);
    json_decref(r.ops);
    if (status != XM_OK) {
        ap_graph_destroy(r.graph);
        return status;
    }
    *graph = r.graph;
    return XM_OK;
}

xm_status_t ap_json_from_file(const char *path, ap_graph_t **graph)
{
    ap_frontend_file_t file;
    xm_status_t status = ap_frontend_file_map(path, "a JSON graph", &file);

    if (status == XM_OK) {
        status = ap_json_from_text(file.bytes, file.size, path, graph);
        ap_frontend_file_unmap(&file);
    }
    return status;
}
