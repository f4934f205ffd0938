/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From HLO text to a graph: the parameters and results of the entry computation, and which of them
 * share storage. What lies between is evaluated by planner/frontend/hlo/build.c.
 *
 * A whole training step has no mark that tells a weight from data. But a step that is meant to be
 * repeated donates the buffers of its state to its results; so donated parameters are the model's,
 * all others are inputs, and an aliased result is the new value of its parameter, which a plan must
 * store in the same sharding.
 */

#include "planner/frontend/hlo/hlo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/frontend/hlo/build.h"

enum { NAME_LENGTH = 100 };

/* One entry of input_output_alias or buffer_donor. */
typedef struct donation {
    hlo_list_t output, path;
    int64_t parameter;
    bool aliased; /* with the result at `output` */
} donation_t;

typedef struct donations {
    int count;
    size_t room;
    donation_t *list;
} donations_t;

/* Reads a path such as "{0, 1}": a place in nested tuples. */
static void read_path(hlo_cursor_t *cursor, hlo_list_t *path)
{
    hlo_expect(cursor, "{");
    path->count = 0;
    while (hlo_more(cursor, path->count, "}")) {
        if (path->count == OPERATOR_MAX_LIST) {
            (void)hlo_fail(cursor, cursor->at, "tuples are nested too deep here");
            return;
        }
        path->values[path->count++] = hlo_integer(cursor);
    }
}

/* Reads a donor such as "(0, {}, may-alias)". */
static void read_donor(hlo_cursor_t *cursor, donation_t *donation)
{
    hlo_expect(cursor, "(");
    donation->parameter = hlo_integer(cursor);
    hlo_expect(cursor, ",");
    read_path(cursor, &donation->path);
    if (hlo_accept(cursor, ",")) {
        (void)hlo_word(cursor);
    }
    hlo_expect(cursor, ")");
}

static xm_status_t read_donations(const hlo_module_t *module, const char *key, donations_t *all)
{
    const hlo_instruction_t header = {.attributes = module->attributes,
                                      .attribute_count = module->attribute_count};
    hlo_cursor_t cursor = hlo_cursor_of(&module->text, hlo_attribute(&header, key));
    bool aliased = strcmp(key, "input_output_alias") == 0;

    if (!hlo_accept(&cursor, "{")) {
        return XM_OK;
    }
    for (int done = 0; hlo_more(&cursor, done, "}"); ++done) {
        donation_t made = {.aliased = aliased};

        if (made.aliased) {
            read_path(&cursor, &made.output);
            hlo_expect(&cursor, ":");
        }
        read_donor(&cursor, &made);
        if (!XM_ARRAY_ROOM(all->list, all->room, all->count)) {
            return hlo_no_memory();
        }
        all->list[all->count++] = made;
    }
    return cursor.status;
}

/* The value at a place in a tuple, or NULL when there is no such place. */
static hlo_value_t *value_at(hlo_value_t *value, const hlo_list_t *path)
{
    for (int i = 0; i < path->count; ++i) {
        if (value->kind != HLO_VALUE_TUPLE || path->values[i] < 0 ||
            path->values[i] >= value->count) {
            return NULL;
        }
        value = value->elements[path->values[i]];
    }
    return value;
}

/* Which of the array leaves of a value, in order, is the one at a place that exists. */
static int leaf_index(const hlo_value_t *value, const hlo_list_t *path)
{
    int index = 0;

    for (int i = 0; i < path->count; ++i) {
        for (int e = 0; e < path->values[i]; ++e) {
            index += hlo_value_leaves(value->elements[e], NULL, 0);
        }
        value = value->elements[path->values[i]];
    }
    return index;
}

static bool same_path(const hlo_list_t *a, const hlo_list_t *b)
{
    return a->count == b->count &&
           memcmp(a->values, b->values, (size_t)a->count * sizeof(a->values[0])) == 0;
}

static bool is_donated(const donations_t *donations, int64_t parameter, const hlo_list_t *path)
{
    for (int i = 0; i < donations->count; ++i) {
        if (donations->list[i].parameter == parameter &&
            same_path(&donations->list[i].path, path)) {
            return true;
        }
    }
    return false;
}

/* One character of a quoted text, with its escapes as XLA writes them undone; moves *at on. Octal
 * escapes are bytes of UTF-8, so names in any script survive. */
static char unescaped(hlo_slice_t text, size_t *at)
{
    static const char letters[] = "ntr", meant[] = "\n\t\r";
    char c = text.at[(*at)++];
    const char *letter;
    int code = 0, digits = 0;

    if (c != '\\' || *at == text.length) {
        return c;
    }
    while (digits < 3 && *at < text.length && text.at[*at] >= '0' && text.at[*at] <= '7') {
        code = 8 * code + (text.at[(*at)++] - '0');
        ++digits;
    }
    if (digits > 0) {
        return (char)(unsigned char)code;
    }
    c = text.at[(*at)++];
    letter = strchr(letters, c);
    return c != '\0' && letter != NULL ? meant[letter - letters] : c;
}

/* The name for people: what JAX calls the argument, else the instruction's name; leaves of a tuple
 * are numbered. */
static void name_of(const hlo_module_t *module, const hlo_instruction_t *of, const hlo_list_t *path,
                    char *name, size_t size)
{
    hlo_slice_t text = hlo_metadata(module, of, "op_name");
    char raw[NAME_LENGTH + 4];
    size_t length = 0;

    text = text.length == 0 ? of->name : text;
    for (size_t i = 0; i < text.length && length < NAME_LENGTH;) {
        char c = unescaped(text, &i);

        if (c != '\0') {
            raw[length++] = c;
        }
    }
    raw[length] = '\0';
    (void)xm_text_copy(raw, name, size);
    for (int i = 0; i < path->count; ++i) {
        length = strlen(name);
        (void)snprintf(name + length, size - length, ".%d", (int)path->values[i]);
    }
}

/* Makes the tensors of one entry parameter, leaf by leaf. A parameter that nothing needs gets no
 * tensor but keeps its place in the list, because exports annotate every parameter. Types are
 * limited in depth. NOLINTNEXTLINE(misc-no-recursion) */
static xm_status_t add_parameter(hlo_build_t *b, const hlo_instruction_t *of,
                                 const donations_t *donations, hlo_list_t *path, hlo_value_t *value)
{
    char name[256];

    if (value->kind == HLO_VALUE_TUPLE) {
        for (int i = 0; i < value->count; ++i) {
            xm_status_t status;

            if (path->count == OPERATOR_MAX_LIST) {
                return hlo_error(&b->module->text, of->at, "this parameter is nested too deep");
            }
            path->values[path->count++] = i;
            status = add_parameter(b, of, donations, path, value->elements[i]);
            --path->count;
            XM_TRY(status);
        }
        return XM_OK;
    }
    if (value->type->empty) {
        return XM_OK;
    }
    name_of(b->module, of, path, name, sizeof(name));
    if (of->needed) {
        xm_status_t status;

        value->kind = HLO_VALUE_TENSOR;
        status = ap_graph_add_tensor(b->graph, name,
                                     is_donated(donations, of->number, path) ? AP_TENSOR_PARAMETER
                                                                             : AP_TENSOR_INPUT,
                                     &value->type->shape, value->type->dtype, &value->tensor);
        XM_THEN(status, hlo_build_demand(b, of, value->tensor));
        XM_TRY(status);
    }
    return hlo_source_add_port(b->source, name, value->type,
                               of->needed ? value->tensor : HLO_INSTANCE_NONE);
}

static xm_status_t add_parameters(hlo_build_t *b, const hlo_computation_t *entry,
                                  const donations_t *donations, hlo_value_t **arguments)
{
    for (int p = 0; p < entry->parameter_count; ++p) {
        const hlo_instruction_t *of = &entry->instructions[entry->parameters[p]];
        hlo_list_t path = {0};

        arguments[p] = hlo_value_free(b, of->type);
        if (arguments[p] == NULL) {
            return hlo_no_memory();
        }
        XM_TRY(add_parameter(b, of, donations, &path, arguments[p]));
    }
    return XM_OK;
}

/* The leaves of the result, and which of them take over the storage of a parameter. */
typedef struct outputs {
    hlo_value_t **leaf;
    bool *taken;
    int count;
} outputs_t;

static xm_status_t list_outputs(hlo_build_t *b, hlo_value_t *result, outputs_t *outputs)
{
    xm_arena_t *arena = &b->module->arena;
    size_t count;

    outputs->count = hlo_value_leaves(result, NULL, 0);
    count = (size_t)outputs->count;
    outputs->leaf = xm_arena_get(arena, count, sizeof(hlo_value_t *));
    outputs->taken = xm_arena_get(arena, count, sizeof(bool));
    if (outputs->leaf == NULL || outputs->taken == NULL) {
        return hlo_no_memory();
    }
    memset(outputs->taken, 0, count * sizeof(bool));
    (void)hlo_value_leaves(result, outputs->leaf, outputs->count);
    return XM_OK;
}

/* The result that a donated buffer is used for, where the header leaves that to the compiler, as it
 * does for steps with shardings: the first one of its type that is not taken, as XLA pairs them.
 * Both lists are in the order of the same tree. */
static int donated_output(const outputs_t *outputs, const hlo_value_t *input)
{
    for (int i = 0; i < outputs->count; ++i) {
        if (!outputs->taken[i] && outputs->leaf[i]->kind == HLO_VALUE_TENSOR &&
            operand_type_same(outputs->leaf[i]->type, input->type)) {
            return i;
        }
    }
    return -1;
}

/* Declares that leaf number `leaf` of the result takes over the storage of a parameter. */
static xm_status_t add_alias(hlo_build_t *b, const hlo_computation_t *entry,
                             const hlo_value_t *input, const outputs_t *outputs, int leaf)
{
    const hlo_value_t *output = outputs->leaf[leaf];
    const ap_tensor_t *made;
    int tensor = output->tensor;

    outputs->taken[leaf] = true;
    if (output->kind != HLO_VALUE_TENSOR || input->kind != HLO_VALUE_TENSOR ||
        tensor == input->tensor || !operand_type_same(output->type, input->type)) {
        return XM_OK;
    }
    made = ap_graph_tensor(b->graph, tensor);
    /* An alias ties the sharding of its producer to that of the parameter. Where the producer is
     * not elementwise, a copy in between keeps the two apart. */
    if (made->producer < 0 || made->alias_of >= 0 ||
        ap_graph_op(b->graph, made->producer)->kind != AP_OP_ELEMENTWISE ||
        ap_op_passes_on(ap_graph_op(b->graph, made->producer))) {
        /* The copy can have any sharding, whatever the operator behind it can do. */
        XM_TRY(hlo_emit_alike(b, &entry->instructions[entry->root], output->type, &output->tensor,
                              1, false, &tensor));
    }
    b->source->results[leaf].tensor = tensor;
    return ap_graph_set_alias(b->graph, tensor, input->tensor);
}

/* Declares the results that take over the storage of parameters. The header comes from a file, so
 * parameters and results that it names may not be there. Aliases come before donations in the
 * list, so what the header says is taken when the rest is paired. */
static xm_status_t add_aliases(hlo_build_t *b, const hlo_computation_t *entry,
                               const donations_t *donations, hlo_value_t *const *arguments,
                               hlo_value_t *result)
{
    outputs_t outputs;
    XM_TRY(list_outputs(b, result, &outputs));

    for (int i = 0; i < donations->count; ++i) {
        const donation_t *of = &donations->list[i];
        hlo_value_t *input = NULL;
        int leaf;

        if (of->parameter >= 0 && of->parameter < entry->parameter_count) {
            input = value_at(arguments[of->parameter], &of->path);
        }
        if (input == NULL || (of->aliased && value_at(result, &of->output) == NULL)) {
            return hlo_error(&b->module->text, 0,
                             "the header aliases or donates parameter %lld, which, or whose "
                             "result, is not there",
                             (long long)of->parameter);
        }
        leaf = of->aliased ? leaf_index(result, &of->output) : donated_output(&outputs, input);
        if (leaf >= 0) {
            XM_TRY(add_alias(b, entry, input, &outputs, leaf));
        }
    }
    return XM_OK;
}

/* The leaves of the result, in order. */
static xm_status_t add_results(hlo_build_t *b, hlo_value_t *result)
{
    int count = hlo_value_leaves(result, NULL, 0);
    hlo_value_t **leaves = xm_arena_get(&b->module->arena, (size_t)count, sizeof(hlo_value_t *));
    xm_status_t status = XM_OK;

    if (leaves == NULL) {
        return hlo_no_memory();
    }
    (void)hlo_value_leaves(result, leaves, count);
    for (int i = 0; i < count && status == XM_OK; ++i) {
        status = hlo_source_add_port(b->source, NULL, leaves[i]->type,
                                     leaves[i]->kind == HLO_VALUE_TENSOR ? leaves[i]->tensor
                                                                         : HLO_INSTANCE_NONE);
    }
    return status;
}

/* Donations are read before the parameters are made, because they tell which of them are trained;
 * aliases are declared last, when both ends exist. */
static xm_status_t build(hlo_build_t *b)
{
    const hlo_computation_t *entry = &b->module->computations[b->module->entry];
    hlo_value_t **arguments =
        xm_arena_get(&b->module->arena, (size_t)entry->parameter_count, sizeof(hlo_value_t *));
    donations_t donations = {0};
    hlo_value_t *result;
    xm_status_t status = arguments == NULL ? hlo_no_memory() : XM_OK;

    XM_THEN(status, read_donations(b->module, "input_output_alias", &donations));
    XM_THEN(status, read_donations(b->module, "buffer_donor", &donations));
    XM_THEN(status, add_parameters(b, entry, &donations, arguments));
    XM_THEN(status, hlo_build_computation(b, b->module->entry, arguments, entry->parameter_count,
                                          entry->at, &result));
    XM_THEN(status, add_results(b, result));
    XM_THEN(status, add_aliases(b, entry, &donations, arguments, result));
    free(donations.list);
    if (status == XM_OK && ap_graph_ops(b->graph) == 0) {
        return hlo_error(&b->module->text, entry->at,
                         "the module computes nothing from its inputs");
    }
    return status == XM_OK ? ap_graph_finish(b->graph) : status;
}

/* Notes exist even when the caller does not ask for them, because building counts into them; they
 * are then destroyed at the end. Destroying NULL does nothing, so one path frees all on failure. */
xm_status_t ap_hlo_from_text(const char *text, size_t size, const char *name, ap_graph_t **graph,
                             ap_frontend_notes_t **notes)
{
    XM_NEED_ARGUMENTS(text, name, graph);
    const hlo_text_t source = {.name = name, .bytes = text, .size = size};
    hlo_build_t b = {.repeat = 1, .context = HLO_INSTANCE_NONE};
    char title[100];
    xm_status_t status = ap_frontend_notes_create(&b.notes);

    if (status == XM_OK) {
        b.source = calloc(1, sizeof(*b.source));
        if (b.source == NULL) {
            status = hlo_no_memory();
        } else {
            ap_frontend_notes_keep(b.notes, b.source, hlo_source_destroy);
        }
    }
    XM_THEN(status, hlo_module_parse(&source, &b.module));
    if (status == XM_OK) {
        (void)snprintf(title, sizeof(title), "%.*s",
                       (int)(b.module->name.length > 90 ? 90 : b.module->name.length),
                       b.module->name.at);
        status = ap_graph_create(title, &b.graph);
    }
    XM_THEN(status, build(&b));
    hlo_module_destroy(b.module);
    if (status != XM_OK) {
        ap_graph_destroy(b.graph);
        ap_frontend_notes_destroy(b.notes);
        return status;
    }
    *graph = b.graph;
    if (notes != NULL) {
        *notes = b.notes;
    } else {
        ap_frontend_notes_destroy(b.notes);
    }
    return XM_OK;
}

xm_status_t ap_hlo_from_file(const char *path, ap_graph_t **graph, ap_frontend_notes_t **notes)
{
    ap_frontend_file_t file;
    xm_status_t status;

    XM_TRY(ap_frontend_file_map(path, "HLO text", &file));
    status = ap_hlo_from_text(file.bytes, file.size, path, graph, notes);
    ap_frontend_file_unmap(&file);
    return status;
}
