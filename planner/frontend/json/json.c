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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/frontend/common.h"
#include "planner/frontend/json/json_private.h"

enum { LAYERS_MOST = 1 << 20 };

static xm_status_t no_memory(void)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a graph from JSON");
}

/* Notes that the tensor or operator `name` is number `id`; a second one is refused. */
static xm_status_t define(json_reader_t *r, json_t *names, const char *name, int id)
{
    if (json_object_get(names, name) != NULL) {
        return json_refuse(r, NULL, "the name '%s' is taken", name);
    }
    return json_object_set_new(names, name, json_integer(id)) == 0 ? XM_OK : no_memory();
}

/* The id behind a name, or -1. */
static int look_up(const json_t *names, const char *name)
{
    const json_t *id = json_object_get(names, name);

    return id != NULL ? (int)json_integer_value(id) : -1;
}

static xm_status_t choose(json_reader_t *r, const json_t *object, const char *key,
                          const char *const *names, int count, int *index)
{
    const char *text;
    xm_status_t status = json_get_string(r, object, key, &text);

    if (status == XM_OK) {
        status = xm_text_choose(key, text, names, (size_t)count, index);
        if (status != XM_OK) {
            json_place_enter(&r->place, key);
        }
    }
    return status;
}

static xm_status_t read_tensor(json_reader_t *r, const json_t *object)
{
    static const char *const keys[] = {"name", "kind", "shape", "dtype"};
    static const char *const kinds[] = {"input", "parameter"};
    ap_dtype_t dtype = AP_DTYPE_F32;
    const char *name;
    ap_shape_t shape;
    int kind = 0, id;
    xm_status_t status;

    if (!json_is_object(object)) {
        return json_refuse(r, NULL, "a tensor must be an object");
    }
    status = json_check_keys(r, object, keys, sizeof(keys) / sizeof(keys[0]));
    if (status == XM_OK) {
        status = json_get_string(r, object, "name", &name);
    }
    if (status == XM_OK) {
        status = choose(r, object, "kind", kinds, 2, &kind);
    }
    if (status == XM_OK) {
        status = json_get_shape(r, object, "shape", &shape);
    }
    if (status == XM_OK) {
        status = json_get_dtype(r, object, "dtype", &dtype);
    }
    if (status == XM_OK) {
        status = ap_graph_add_tensor(
            r->graph, name, kind == 0 ? AP_TENSOR_INPUT : AP_TENSOR_PARAMETER, &shape, dtype, &id);
    }
    return status == XM_OK ? define(r, r->tensors, name, id) : status;
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

static xm_status_t read_operands(json_reader_t *r, const json_t *ops, size_t position,
                                 const json_t *object, json_op_t *op)
{
    const json_t *list = json_object_get(object, "operands");

    if (!json_is_array(list)) {
        return json_refuse(r, list != NULL ? "operands" : NULL,
                           "'operands' must be a list of names of tensors");
    }
    if (json_array_size(list) > AP_MAX_OPERANDS) {
        return json_refuse(r, "operands", "%zu operands, %d are handled", json_array_size(list),
                           AP_MAX_OPERANDS);
    }
    for (size_t i = 0; i < json_array_size(list); ++i) {
        const char *name = json_string_value(json_array_get(list, i));
        int id = name != NULL ? look_up(r->tensors, name) : -1;

        if (id >= 0) {
            op->operands[op->count++] = id;
            continue;
        }
        json_place_enter(&r->place, "operands");
        json_place_enter_at(&r->place, i);
        if (name != NULL && is_made_later(ops, position, name)) {
            return json_refuse(r, NULL,
                               "'%s' is made by a later operator, or by this one: operators must "
                               "stand in order, without circles",
                               name);
        }
        return json_refuse(r, NULL, "there is no tensor '%s'", name != NULL ? name : "(no name)");
    }
    return XM_OK;
}

/* Reads {"d": 64} as "d=64", the form that rules take. */
static xm_status_t read_sizes(json_reader_t *r, const json_t *object, char *text, size_t size)
{
    const json_t *sizes = json_object_get(object, "sizes");
    const char *letter;
    json_t *value;
    size_t length = 0;

    text[0] = '\0';
    if (sizes == NULL) {
        return XM_OK;
    }
    if (!json_is_object(sizes)) {
        return json_refuse(r, "sizes", "'sizes' must be an object: {\"d\": 64}");
    }
    json_object_foreach((json_t *)sizes, letter, value)
    {
        if (strlen(letter) != 1 || !json_is_integer(value) || json_integer_value(value) < 1 ||
            length + 32 > size) {
            return json_refuse(r, "sizes",
                               "the size of '%s' must be a positive integer, of a factor of one "
                               "letter",
                               letter);
        }
        length += (size_t)snprintf(text + length, size - length, "%s%s=%" JSON_INTEGER_FORMAT,
                                   length > 0 ? "," : "", letter, json_integer_value(value));
    }
    return XM_OK;
}

/* What a backward operator belongs to: an operator before it, and the operand that each result is
 * the gradient of. */
static xm_status_t read_forward(json_reader_t *r, const json_t *object, ap_op_params_t *params)
{
    int64_t operands[AP_MAX_RESULTS];
    const char *name;
    int count = 0;
    xm_status_t status;

    if (json_object_get(object, "forward") == NULL) {
        return XM_OK;
    }
    status = json_get_string(r, object, "forward", &name);
    if (status == XM_OK) {
        params->forward = look_up(r->ops, name);
        if (params->forward < 0) {
            return json_refuse(r, "forward", "there is no operator '%s' before this one", name);
        }
        status = json_get_ints(r, object, "differentiates", 0, AP_MAX_OPERANDS - 1, AP_MAX_RESULTS,
                               operands, &count);
    }
    for (int i = 0; i < count && status == XM_OK; ++i) {
        params->differentiates[i] = (int)operands[i];
    }
    return status;
}

static xm_status_t read_optional_string(json_reader_t *r, const json_t *object, const char *key,
                                        const char **text)
{
    return json_object_get(object, key) == NULL ? XM_OK : json_get_string(r, object, key, text);
}

/* FLOPs of a run, given for all points of the rule together. The rule is made once more to count
 * its points; a fault in it is told at its place in the file. */
static xm_status_t read_flops(json_reader_t *r, const json_t *object, ap_op_params_t *params)
{
    ap_shape_t shapes[AP_MAX_OPERANDS];
    ap_sharding_rule_t rule;
    double flops = 0;
    xm_status_t status = json_get_number(r, object, "flops", &flops);

    for (int i = 0; i < params->operand_count; ++i) {
        shapes[i] = ap_graph_tensor(r->graph, params->operands[i])->shape;
    }
    if (status == XM_OK) {
        status = ap_sharding_rule_create(params->rule, params->replicated, params->permuted,
                                         params->sizes, shapes, params->operand_count, &rule);
        if (status != XM_OK) {
            json_place_enter(&r->place, "rule");
            return status;
        }
        params->flops_per_point = flops / ap_sharding_rule_points(&rule);
    }
    return status;
}

/* Per term, the term that it is touched like: itself, -1 for not at all, another for its rows. */
static xm_status_t read_touched(json_reader_t *r, const json_t *object, ap_op_params_t *params)
{
    int64_t like[AP_MAX_TERMS];
    int count = 0;
    xm_status_t status =
        json_get_ints(r, object, "touched", -1, AP_MAX_TERMS - 1, AP_MAX_TERMS, like, &count);

    for (int t = 0; t < count && status == XM_OK; ++t) {
        params->touched[t] = like[t] == t  ? AP_TOUCHES_ALL
                             : like[t] < 0 ? AP_TOUCHES_NONE
                                           : (int8_t)(like[t] + 1);
    }
    return status;
}

static xm_status_t add_by_rule(json_reader_t *r, const json_t *object, const json_op_t *op,
                               int *results, int *made)
{
    const char *kinds[AP_OP_KIND_COUNT];
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    char sizes[AP_MAX_FACTORS * 24];
    int kind = AP_OP_CUSTOM;
    xm_status_t status;

    for (int k = 0; k < AP_OP_KIND_COUNT; ++k) {
        kinds[k] = ap_op_kind_name((ap_op_kind_t)k);
    }
    params.phase = op->phase;
    params.name = op->name;
    params.label = op->label;
    params.operand_count = op->count;
    memcpy(params.operands, op->operands, sizeof(params.operands));
    params.repeat = op->repeat;
    params.result_dtype =
        op->count > 0 ? ap_graph_tensor(r->graph, op->operands[0])->dtype : AP_DTYPE_F32;
    status = choose(r, object, "kind", kinds, AP_OP_KIND_COUNT, &kind);
    params.kind = (ap_op_kind_t)kind;
    if (status == XM_OK) {
        status = json_get_string(r, object, "rule", &params.rule);
    }
    if (status == XM_OK) {
        status = read_optional_string(r, object, "whole", &params.replicated);
    }
    if (status == XM_OK) {
        status = read_optional_string(r, object, "permuted", &params.permuted);
    }
    if (status == XM_OK) {
        status = read_sizes(r, object, sizes, sizeof(sizes));
        params.sizes = sizes;
    }
    if (status == XM_OK) {
        status = json_get_dtype(r, object, "dtype", &params.result_dtype);
    }
    if (status == XM_OK) {
        status = json_get_bool(r, object, "linear", &params.linear);
    }
    if (status == XM_OK) {
        status = read_touched(r, object, &params);
    }
    if (status == XM_OK) {
        status = read_forward(r, object, &params);
    }
    if (status == XM_OK) {
        status = read_flops(r, object, &params);
    }
    if (status == XM_OK) {
        status = ap_graph_add_op(r->graph, &params, results);
    }
    if (status == XM_OK) {
        *made = ap_graph_op(r->graph, ap_graph_ops(r->graph) - 1)->result_count;
    }
    return status;
}

static xm_status_t define_results(json_reader_t *r, const char *name, const int *results, int made)
{
    xm_status_t status = XM_OK;

    for (int i = 0; i < made && status == XM_OK; ++i) {
        char text[300];

        (void)snprintf(text, sizeof(text), i == 0 ? "%s" : "%s.%d", name, i);
        status = define(r, r->tensors, text, results[i]);
    }
    return status;
}

/* Keys of all kinds are accepted for each; what matters is that unknown ones are not. */
static xm_status_t read_op(json_reader_t *r, const json_t *ops, size_t position)
{
    static const char *const keys[] = {"name",
                                       "kind",
                                       "operands",
                                       "phase",
                                       "layer",
                                       "label",
                                       "repeat",
                                       "flops",
                                       "dtype",
                                       "rule",
                                       "whole",
                                       "permuted",
                                       "sizes",
                                       "linear",
                                       "touched",
                                       "forward",
                                       "equation",
                                       "dim",
                                       "dims",
                                       "keep",
                                       "groups",
                                       "differentiates",
                                       "parts",
                                       "shape",
                                       "order",
                                       "window",
                                       "stride",
                                       "padding",
                                       "dilation",
                                       "results",
                                       "flops_per_element"};
    static const char *const phases[] = {"forward", "backward", "update"};
    const json_t *object = json_array_get(ops, position);
    json_op_t op = {.count = 0, .repeat = 1};
    int results[AP_MAX_RESULTS + SHAPE_MAX_RESULTS], made = 0, phase = 0;
    int64_t layer = -1;
    xm_status_t status;

    if (!json_is_object(object)) {
        return json_refuse(r, NULL, "an operator must be an object");
    }
    status = json_check_keys(r, object, keys, sizeof(keys) / sizeof(keys[0]));
    if (status == XM_OK) {
        status = json_get_string(r, object, "name", &op.name);
    }
    if (status == XM_OK) {
        status = json_get_string(r, object, "kind", &op.kind);
    }
    if (status == XM_OK) {
        status = read_optional_string(r, object, "label", &op.label);
    }
    if (status == XM_OK && json_object_get(object, "phase") != NULL) {
        status = choose(r, object, "phase", phases, 3, &phase);
        op.phase = (ap_phase_t)phase;
    }
    if (status == XM_OK) {
        status = json_get_number(r, object, "repeat", &op.repeat);
    }
    if (status == XM_OK && op.repeat < 1) {
        return json_refuse(r, "repeat", "an operator runs at least once, not %g times", op.repeat);
    }
    if (status == XM_OK) {
        status = json_get_int(r, object, "layer", 0, LAYERS_MOST, &layer);
    }
    if (status == XM_OK && layer >= 0) {
        status = ap_graph_set_layer(r->graph, (int)layer);
    }
    if (status == XM_OK) {
        status = read_operands(r, ops, position, object, &op);
    }
    /* Longer names would not leave room for the numbers of results in texts of fixed size. */
    if (status == XM_OK && strlen(op.name) > 200) {
        return json_refuse(r, "name", "a name of %zu bytes is too long", strlen(op.name));
    }
    if (status == XM_OK) {
        status = json_object_get(object, "rule") != NULL
                     ? add_by_rule(r, object, &op, results, &made)
                     : json_add_by_kind(r, object, &op, results, &made);
    }
    if (status == XM_OK) {
        status = define(r, r->ops, op.name, ap_graph_ops(r->graph) - 1);
    }
    return status == XM_OK ? define_results(r, op.name, results, made) : status;
}

/* Reads every entry of a list, each with its place. */
static xm_status_t read_list(json_reader_t *r, const json_t *document, const char *key)
{
    const json_t *list = json_object_get(document, key);
    bool tensors = strcmp(key, "tensors") == 0;

    if (!json_is_array(list)) {
        return json_refuse(r, list != NULL ? key : NULL, "'%s' must be a list", key);
    }
    json_place_enter(&r->place, key);
    for (size_t i = 0; i < json_array_size(list); ++i) {
        xm_status_t status;

        json_place_enter_at(&r->place, i);
        status = tensors ? read_tensor(r, json_array_get(list, i)) : read_op(r, list, i);
        if (status != XM_OK) {
            return status;
        }
        json_place_leave(&r->place);
    }
    json_place_leave(&r->place);
    return XM_OK;
}

/* Reads pairs of tensors such as {"new_w1": "w1"}. */
static xm_status_t read_pairs(json_reader_t *r, const json_t *document, const char *key,
                              xm_status_t (*set)(ap_graph_t *graph, int tensor, int other))
{
    const json_t *pairs = json_object_get(document, key);
    const char *name;
    json_t *value;

    if (pairs == NULL) {
        return XM_OK;
    }
    if (!json_is_object(pairs)) {
        return json_refuse(r, key, "'%s' must be an object of names of tensors", key);
    }
    json_object_foreach((json_t *)pairs, name, value)
    {
        const char *other = json_string_value(value);
        int from = look_up(r->tensors, name);
        int to = other != NULL ? look_up(r->tensors, other) : -1;
        xm_status_t status;

        if (from < 0 || to < 0) {
            json_place_enter(&r->place, key);
            return json_refuse(r, name, "there is no tensor '%s'",
                               from < 0 ? name : (other != NULL ? other : "(no name)"));
        }
        status = set(r->graph, from, to);
        if (status != XM_OK) {
            json_place_enter(&r->place, key);
            json_place_enter(&r->place, name);
            return status;
        }
    }
    return XM_OK;
}

static xm_status_t read_loss(json_reader_t *r, const json_t *document)
{
    static const char *const keys[] = {"tensor", "is_gradient"};
    const json_t *loss = json_object_get(document, "loss");
    bool is_gradient = false;
    const char *name;
    xm_status_t status;

    if (loss == NULL) {
        return XM_OK;
    }
    json_place_enter(&r->place, "loss");
    if (!json_is_object(loss)) {
        return json_refuse(r, NULL, "'loss' must be an object with a tensor");
    }
    status = json_check_keys(r, loss, keys, sizeof(keys) / sizeof(keys[0]));
    if (status == XM_OK) {
        status = json_get_string(r, loss, "tensor", &name);
    }
    if (status == XM_OK) {
        status = json_get_bool(r, loss, "is_gradient", &is_gradient);
    }
    if (status == XM_OK && look_up(r->tensors, name) < 0) {
        return json_refuse(r, "tensor", "there is no tensor '%s'", name);
    }
    if (status == XM_OK) {
        status = ap_graph_set_loss(r->graph, look_up(r->tensors, name), is_gradient);
    }
    if (status == XM_OK) {
        json_place_leave(&r->place);
    }
    return status;
}

static xm_status_t check_header(json_reader_t *r, const json_t *document)
{
    static const char *const keys[] = {"format", "version", "name",    "tensors",
                                       "ops",    "loss",    "aliases", "gradients"};
    const char *format;
    int64_t version = -1;
    xm_status_t status;

    if (!json_is_object(document)) {
        return json_refuse(r, NULL, "the document is no object");
    }
    status = json_get_string(r, document, "format", &format);
    if (status == XM_OK && strcmp(format, "autopar-graph") != 0) {
        return json_refuse(r, "format", "the format is '%.60s', not 'autopar-graph'", format);
    }
    if (status == XM_OK) {
        status = json_get_int(r, document, "version", 0, INT64_MAX, &version);
    }
    if (status == XM_OK && version != AP_GRAPH_JSON_VERSION) {
        return json_refuse(r, version >= 0 ? "version" : NULL,
                           "version %" PRId64 " is not known, only %d is", version,
                           AP_GRAPH_JSON_VERSION);
    }
    return status == XM_OK ? json_check_keys(r, document, keys, sizeof(keys) / sizeof(keys[0]))
                           : status;
}

static xm_status_t build(json_reader_t *r, const json_t *document)
{
    const char *name;
    xm_status_t status = check_header(r, document);

    if (status == XM_OK) {
        status = json_get_string(r, document, "name", &name);
    }
    if (status == XM_OK) {
        status = ap_graph_create(name, &r->graph);
    }
    if (status == XM_OK) {
        status = read_list(r, document, "tensors");
    }
    if (status == XM_OK) {
        status = read_list(r, document, "ops");
    }
    if (status == XM_OK) {
        status = read_pairs(r, document, "aliases", ap_graph_set_alias);
    }
    if (status == XM_OK) {
        status = read_pairs(r, document, "gradients", ap_graph_set_gradient);
    }
    if (status == XM_OK) {
        status = read_loss(r, document);
    }
    return status == XM_OK ? ap_graph_finish(r->graph) : status;
}

/* Duplicate keys are refused, for jansson would keep the last one in silence. Only faults of the
 * file get a place; a lack of memory has none. */
xm_status_t ap_json_from_text(const char *text, size_t size, const char *name, ap_graph_t **graph)
{
    if (XM_IS_NULL(text) || XM_IS_NULL(name) || XM_IS_NULL(graph)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    json_error_t error;
    json_t *document = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    json_reader_t r = {.tensors = json_object(), .ops = json_object()};
    xm_status_t status;

    if (document == NULL) {
        status = xm_error_set(XM_ERR_PARSE, "%s: line %d, column %d: %s", name, error.line,
                              error.column, error.text);
    } else if (r.tensors == NULL || r.ops == NULL) {
        status = no_memory();
    } else {
        status = build(&r, document);
        if (status != XM_OK && xm_status_is_caller(status)) {
            int line, column;

            json_place_find(&r.place, text, size, &line, &column);
            status = xm_error_prefix(status, "%s: line %d, column %d", name, line, column);
        }
    }
    json_decref(document);
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
