/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a graph as JSON, every operator with its rule: whoever reads it back gets the same
 * operators and costs, whatever front end the graph came from. Names are the only thing that may
 * change: a graph allows equal names, JSON refers by name, so doubles get a number.
 *
 * A failure to allocate sticks in `failed` and is told once at the end; jansson's functions accept
 * NULL and fail, so nothing has to be checked in between.
 */

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/frontend/json.h"

enum { LONGEST_NAME = 180, NAME_TEXT = 300 };

typedef struct json_writer {
    const ap_graph_t *graph;
    json_t *taken;         /* names, with the number last put behind them */
    const char **op_names; /* unique; keys of `taken` */
    bool failed;
} json_writer_t;

static void append(json_writer_t *w, json_t *list, json_t *value)
{
    if (list == NULL || value == NULL || json_array_append_new(list, value) != 0) {
        w->failed = true;
    }
}

static void set(json_writer_t *w, json_t *object, const char *key, json_t *value)
{
    if (object == NULL || value == NULL || json_object_set_new(object, key, value) != 0) {
        w->failed = true;
    }
}

/* Whether a name, and with `results` the names of results that follow from it, are all free. */
static bool is_free(const json_writer_t *w, const char *name, int results)
{
    char text[NAME_TEXT + 16];

    for (int r = 0; r < results; ++r) {
        (void)snprintf(text, sizeof(text), r == 0 ? "%s" : "%s.%d", name, r);
        if (json_object_get(w->taken, text) != NULL) {
            return false;
        }
    }
    return true;
}

/* Takes the name, or where it is taken the name with a number behind it; returns the copy, which
 * lives as long as the table. The last number is kept per name, so a thousand equal names take a
 * thousand steps and not half a million. */
static const char *take_name(json_writer_t *w, const char *wanted, int results)
{
    char name[NAME_TEXT], base[LONGEST_NAME + 1], text[NAME_TEXT + 16];
    json_int_t count;
    void *iterator;

    (void)xm_text_copy(wanted, base, sizeof(base)); /* cut between characters */
    (void)snprintf(name, sizeof(name), "%s", base);
    count = json_integer_value(json_object_get(w->taken, base));
    while (!is_free(w, name, results)) {
        (void)snprintf(name, sizeof(name), "%s~%" JSON_INTEGER_FORMAT, base, ++count);
    }
    for (int r = results - 1; r >= 0; --r) {
        (void)snprintf(text, sizeof(text), r == 0 ? "%s" : "%s.%d", name, r);
        set(w, w->taken, text, json_integer(1));
    }
    if (count > 1) { /* the next of this name goes on from here */
        set(w, w->taken, base, json_integer(count));
    }
    iterator = json_object_iter_at(w->taken, name);
    w->failed = w->failed || iterator == NULL;
    return iterator != NULL ? json_object_iter_key(iterator) : "";
}

/* Names of tensors that no operator makes; results are called after their operators. */
typedef struct names {
    const char **tensor; /* of inputs and parameters */
} names_t;

static json_t *tensor_name(const json_writer_t *w, const names_t *names, int tensor)
{
    const ap_tensor_t *t = ap_graph_tensor(w->graph, tensor);
    char text[NAME_TEXT + 16];

    if (t->producer < 0) {
        return json_string(names->tensor[tensor]);
    }
    for (int r = 1; r < ap_graph_op(w->graph, t->producer)->result_count; ++r) {
        if (ap_graph_op(w->graph, t->producer)->results[r] == tensor) {
            (void)snprintf(text, sizeof(text), "%s.%d", w->op_names[t->producer], r);
            return json_string(text);
        }
    }
    return json_string(w->op_names[t->producer]);
}

static json_t *tensors_json(json_writer_t *w, const names_t *names)
{
    json_t *list = json_array();

    for (int t = 0; t < ap_graph_tensors(w->graph); ++t) {
        const ap_tensor_t *tensor = ap_graph_tensor(w->graph, t);
        json_t *shape;

        if (tensor->producer >= 0) {
            continue;
        }
        shape = json_array();
        for (int d = 0; d < tensor->shape.rank; ++d) {
            append(w, shape, json_integer(tensor->shape.dims[d]));
        }
        append(w, list,
               json_pack("{s:o, s:s, s:o, s:s}", "name", json_string(names->tensor[t]), "kind",
                         tensor->kind == AP_TENSOR_INPUT ? "input" : "parameter", "shape", shape,
                         "dtype", ap_dtype_name(tensor->dtype)));
    }
    return list;
}

/* Letters of the factors of one kind, when there are any. */
static void set_letters(json_writer_t *w, json_t *op, const ap_sharding_rule_t *rule,
                        ap_factor_kind_t kind, const char *key)
{
    char name[AP_FACTOR_TEXT], *letters;
    size_t length = 0, room = (size_t)rule->factors * AP_FACTOR_TEXT + 1;

    letters = calloc(1, room);
    for (int f = 0; f < rule->factors && letters != NULL; ++f) {
        if (rule->factor[f].kind == kind) {
            length += (size_t)snprintf(letters + length, room - length, "%s",
                                       ap_factor_name(&rule->factor[f], name, sizeof(name)));
        }
    }
    if (letters == NULL || length > 0) {
        set(w, op, key, letters != NULL ? json_string(letters) : NULL);
    }
    free(letters);
}

static json_t *sizes_json(json_writer_t *w, const ap_sharding_rule_t *rule)
{
    json_t *sizes = json_object();

    for (int f = 0; f < rule->factors; ++f) {
        char name[AP_FACTOR_TEXT];

        set(w, sizes, ap_factor_name(&rule->factor[f], name, sizeof(name)),
            json_integer(rule->factor[f].size));
    }
    return sizes;
}

static void set_backward(json_writer_t *w, json_t *object, const ap_op_t *op)
{
    json_t *list = json_array();

    set(w, object, "forward", json_string(w->op_names[op->forward]));
    for (int r = 0; r < op->result_count; ++r) {
        append(w, list, json_integer(op->differentiates[r]));
    }
    set(w, object, "differentiates", list);
}

/* For each term, the term that it is touched like: itself for all of it, -1 for nothing. Written
 * only where some term is not touched whole. */
static void set_touched(json_writer_t *w, json_t *object, const ap_op_t *op)
{
    json_t *list = json_array();
    bool whole = true;

    for (int t = 0; t < op->operand_count + op->result_count; ++t) {
        append(w, list,
               json_integer(op->touched[t] == AP_TOUCHES_ALL ? t
                            : op->touched[t] < 0             ? -1
                                                             : op->touched[t] - 1));
        whole = whole && op->touched[t] == AP_TOUCHES_ALL;
    }
    if (whole) {
        json_decref(list);
    } else {
        set(w, object, "touched", list);
    }
}

static json_t *op_json(json_writer_t *w, const names_t *names, int o)
{
    static const char *const phases[] = {"forward", "backward", "update"};
    const ap_op_t *op = ap_graph_op(w->graph, o);
    json_t *object = json_object(), *operands = json_array();

    set(w, object, "name", json_string(w->op_names[o]));
    set(w, object, "kind", json_string(ap_op_kind_name(op->kind)));
    for (int i = 0; i < op->operand_count; ++i) {
        append(w, operands, tensor_name(w, names, op->operands[i]));
    }
    set(w, object, "operands", operands);
    set(w, object, "rule", json_string(op->rule.text));
    set_letters(w, object, &op->rule, AP_FACTOR_NEED_REPLICATION, "whole");
    set_letters(w, object, &op->rule, AP_FACTOR_PERMUTATION, "permuted");
    set(w, object, "sizes", sizes_json(w, &op->rule));
    if (op->result_count > 0) {
        set(w, object, "dtype",
            json_string(ap_dtype_name(ap_graph_tensor(w->graph, op->results[0])->dtype)));
    }
    /* FLOPs of one run, as they are read back. */
    set(w, object, "flops", json_real(op->flops / op->repeat));
    set_touched(w, object, op);
    if (op->repeat != 1) {
        set(w, object, "repeat", json_real(op->repeat));
    }
    if (op->linear) {
        set(w, object, "linear", json_true());
    }
    if (op->phase != AP_PHASE_FORWARD) {
        set(w, object, "phase", json_string(phases[op->phase]));
    }
    set(w, object, "layer", json_integer(op->layer));
    if (op->label != NULL) {
        set(w, object, "label", json_string(op->label));
    }
    if (op->forward >= 0) {
        set_backward(w, object, op);
    }
    return object;
}

/* Writes the pairs of tensors that a field of the first of them names. */
static void set_pairs(json_writer_t *w, const names_t *names, json_t *document, const char *key,
                      bool aliases)
{
    json_t *pairs = json_object();

    for (int t = 0; t < ap_graph_tensors(w->graph); ++t) {
        const ap_tensor_t *tensor = ap_graph_tensor(w->graph, t);
        int other = aliases ? tensor->alias_of : tensor->gradient_of;
        json_t *name = other >= 0 ? tensor_name(w, names, t) : NULL;

        if (name != NULL) {
            set(w, pairs, json_string_value(name), tensor_name(w, names, other));
            json_decref(name);
        }
    }
    if (json_object_size(pairs) > 0) {
        set(w, document, key, pairs);
    } else {
        json_decref(pairs);
    }
}

static json_t *document_json(json_writer_t *w, const names_t *names)
{
    json_t *document = json_object(), *ops = json_array();
    bool is_gradient;
    int loss = ap_graph_loss(w->graph, &is_gradient);

    set(w, document, "format", json_string("autopar-graph"));
    set(w, document, "version", json_integer(AP_GRAPH_JSON_VERSION));
    set(w, document, "name", json_string(ap_graph_name(w->graph)));
    set(w, document, "tensors", tensors_json(w, names));
    for (int o = 0; o < ap_graph_ops(w->graph); ++o) {
        append(w, ops, op_json(w, names, o));
    }
    set(w, document, "ops", ops);
    set_pairs(w, names, document, "aliases", true);
    set_pairs(w, names, document, "gradients", false);
    if (loss >= 0) {
        json_t *of = json_object();

        set(w, of, "tensor", tensor_name(w, names, loss));
        if (is_gradient) {
            set(w, of, "is_gradient", json_true());
        }
        set(w, document, "loss", of);
    }
    return document;
}

char *ap_json_text(const ap_graph_t *graph)
{
    if (XM_IS_NULL(graph)) {
        return NULL;
    }
    json_writer_t w = {.graph = graph, .taken = json_object()};
    names_t names = {.tensor = calloc((size_t)ap_graph_tensors(graph) + 1, sizeof(char *))};
    json_t *document = NULL;
    char *text = NULL;

    w.op_names = calloc((size_t)ap_graph_ops(graph) + 1, sizeof(char *));
    if (w.taken == NULL || names.tensor == NULL || w.op_names == NULL) {
        goto release;
    }
    for (int t = 0; t < ap_graph_tensors(graph); ++t) {
        if (ap_graph_tensor(graph, t)->producer < 0) {
            names.tensor[t] = take_name(&w, ap_graph_tensor(graph, t)->name, 1);
        }
    }
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        w.op_names[o] =
            take_name(&w, ap_graph_op(graph, o)->name, ap_graph_op(graph, o)->result_count);
    }
    document = document_json(&w, &names);
    /* 17 digits bring every double back as it was. */
    text = w.failed ? NULL : json_dumps(document, JSON_INDENT(1) | JSON_REAL_PRECISION(17));

release:
    json_decref(document);
    json_decref(w.taken);
    free(w.op_names);
    free(names.tensor);
    return text;
}

xm_status_t ap_json_save(const ap_graph_t *graph, const char *path)
{
    char *text = ap_json_text(graph);
    xm_status_t status;

    XM_NEED_MEMORY(text, "the text of the graph '%s'", ap_graph_name(graph));
    status = xm_text_save(path, text);
    free(text);
    return status;
}
