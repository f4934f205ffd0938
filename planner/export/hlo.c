/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes shardings into HLO text. The text is edited and not printed anew: everything that the
 * parser skipped (literals, layouts, metadata) stays byte for byte, so XLA reads the same module
 * with annotations. Edits are collected as (place, length, text), sorted by place, and applied in
 * one pass.
 *
 * A computation that is called several times has one text, so an instruction is annotated only
 * where all its calls agree; elsewhere XLA decides.
 */

#include "planner/export/hlo.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "planner/export/export_private.h"
#include "planner/export/instance.h"
#include "planner/frontend/hlo.h"

/* One instruction and the instances that look at it. */
typedef struct place {
    const hlo_computation_t *in;
    const hlo_instruction_t *of;
    const int *instances;
    int count;
} place_t;

/* Takes over `text`, also when it fails; NULL stands for memory that was short. */
xm_status_t ap_hlo_edit(ap_hlo_exporter_t *e, size_t at, size_t length, char *text)
{
    XM_NEED_MEMORY(text, "an HLO module with shardings");
    if (!XM_ARRAY_ROOM(e->edits, e->edit_room, e->edit_count)) {
        free(text);
        return XM_NO_MEMORY("an HLO module with shardings");
    }
    e->edits[e->edit_count] =
        (ap_hlo_edit_t){.at = at, .length = length, .number = e->edit_count, .text = text};
    ++e->edit_count;
    return XM_OK;
}

/* Prints a text that is made to measure; NULL without memory. */
char *ap_hlo_print(const char *format, ...)
{
    va_list args, again;
    char *text = NULL;
    int length;

    va_start(args, format);
    va_copy(again, args);
    length = vsnprintf(NULL, 0, format, args);
    if (length >= 0) {
        text = malloc((size_t)length + 1);
    }
    if (text != NULL) {
        (void)vsnprintf(text, (size_t)length + 1, format, again);
    }
    va_end(again);
    va_end(args);
    return text;
}

/* Writes or replaces the annotation of an instruction. */
xm_status_t ap_hlo_annotate(ap_hlo_exporter_t *e, const hlo_instruction_t *of, const char *sharding)
{
    for (int a = 0; a < of->attribute_count; ++a) {
        const hlo_attribute_t *attribute = &of->attributes[a];

        if (hlo_slice_is(attribute->key, "sharding")) {
            return ap_hlo_edit(e, (size_t)(attribute->value.at - e->module->text.bytes),
                               attribute->value.length, ap_hlo_print("%s", sharding));
        }
    }
    return ap_hlo_edit(e, of->end, 0, ap_hlo_print(", sharding=%s", sharding));
}

/* The sharding that all instances of an instruction agree on. What needs no data is whole
 * everywhere: every user takes its part without asking another device. */
static bool common_spec(const ap_hlo_exporter_t *e, const place_t *place, ap_spec_t *spec)
{
    for (int i = 0; i < place->count; ++i) {
        const hlo_instance_t *instance = &e->source->instances[place->instances[i]];
        ap_spec_t made = instance->tensor < 0
                             ? AP_SPEC_REPLICATED
                             : ap_export_instance_found(e->solution, e->source, instance->context,
                                                        instance->tensor);

        if (i > 0 && made != *spec) {
            return false;
        }
        *spec = made;
    }
    return place->count > 0;
}

/* Finds the instances of an instruction: one slice of the list sorted by place, found by bisection.
 */
static void find_instances(const ap_hlo_exporter_t *e, place_t *place)
{
    int low = 0;

    XM_BISECT(int, i, low, e->source->instance_count,
              e->source->instances[e->instances[i]].at < place->of->at);
    place->instances = e->instances + low;
    for (place->count = 0; low + place->count < e->source->instance_count; ++place->count) {
        if (e->source->instances[place->instances[place->count]].at != place->of->at) {
            break;
        }
    }
}

/* The names of an instruction's operands as they stand in the text. */
xm_status_t ap_hlo_operand_names(const ap_hlo_exporter_t *e, const hlo_instruction_t *of,
                                 hlo_slice_t *names)
{
    const hlo_text_t *text = &e->module->text;
    hlo_cursor_t cursor = {.text = text,
                           .at = (size_t)(of->opcode.at - text->bytes) + of->opcode.length,
                           .end = of->end};

    hlo_expect(&cursor, "(");
    for (int o = 0; o < of->operand_count && cursor.status == XM_OK; ++o) {
        hlo_slice_t value = hlo_value(&cursor);
        size_t start;

        /* An operand is "f32[2]{0} %name" or "name": its last word is the name. */
        for (start = value.length; start > 0; --start) {
            char c = value.at[start - 1];

            if (c == ' ' || c == '/') {
                break;
            }
        }
        names[o] = (hlo_slice_t){value.at + start, value.length - start};
        (void)hlo_accept(&cursor, ",");
    }
    return cursor.status;
}

/* Where an instruction begins, with the word ROOT in front of its name. */
size_t ap_hlo_start(const hlo_text_t *text, size_t at)
{
    static const char root[] = "ROOT";
    const size_t length = sizeof(root) - 1;
    size_t back = at;

    while (back > 0 && text->bytes[back - 1] == ' ') {
        --back;
    }
    return back >= length && memcmp(text->bytes + back - length, root, length) == 0 ? back - length
                                                                                    : at;
}

/* The type of an instruction as it stands in the text, layout included. */
hlo_slice_t ap_hlo_type_text(const ap_hlo_exporter_t *e, const hlo_instruction_t *of)
{
    const char *end = e->module->text.bytes + e->module->text.size;
    const char *type = memchr(of->name.at, '=', (size_t)(end - of->name.at));
    hlo_slice_t text = {type + 1, (size_t)(of->opcode.at - type) - 1};

    while (text.length > 0 && text.at[0] == ' ') {
        ++text.at;
        --text.length;
    }
    while (text.length > 0 && text.at[text.length - 1] == ' ') {
        --text.length;
    }
    return text;
}

/* Puts the steps of a resharding between an instruction and its operand, as the annotations that
 * XLA keeps: custom calls to Sharding. Each step reads the one before, and the instruction reads
 * the last; names are derived from the instruction's, so they are new. */
static xm_status_t add_steps(ap_hlo_exporter_t *e, const place_t *place, int operand,
                             const ap_spec_t *path, int count, hlo_slice_t name)
{
    const hlo_instruction_t *of = &place->in->instructions[place->of->operands[operand]];
    const hlo_text_t *text = &e->module->text;
    const hlo_slice_t type = ap_hlo_type_text(e, of), own = place->of->name;
    const char *percent = name.at[0] == '%' ? "%" : "";
    char *previous = ap_hlo_print("%.*s", (int)name.length, name.at);
    xm_status_t status = XM_OK;

    for (int s = 0; s < count && previous != NULL && status == XM_OK; ++s) {
        char sharding[AP_HLO_SHARDING_TEXT];
        char *next = ap_hlo_print("%s%.*s.operand%d.step%d", percent, (int)own.length, own.at,
                                  operand, s + 1);

        status =
            ap_hlo_edit(e, ap_hlo_start(text, place->of->at), 0,
                        ap_hlo_print("%s = %.*s custom-call(%s), custom_call_target=\"Sharding\", "
                                     "sharding=%s\n  ",
                                     next, (int)type.length, type.at, previous,
                                     ap_export_hlo_sharding(&e->mesh, path[s], of->type->shape.rank,
                                                            sharding, sizeof(sharding))));
        free(previous);
        previous = next;
    }
    XM_NEED_MEMORY(previous, "an HLO module with shardings");
    if (status != XM_OK) {
        free(previous);
        return status;
    }
    return ap_hlo_edit(e, (size_t)(name.at - text->bytes), name.length, previous);
}

/* Whether an instruction's operators are its own and not those of what it calls. */
static bool has_own_operators(const hlo_instruction_t *of)
{
    return !hlo_slice_in(of->opcode, "call fusion while conditional tuple");
}

/* XLA cuts the updates of a scatter as it finds what they go into. If that needs no data, several
 * operators may share it, so each pins it for itself. */
static bool scatters_into_constant(const ap_hlo_exporter_t *e, const place_t *place)
{
    for (int i = 0; i < place->count; ++i) {
        const hlo_instance_t *instance = &e->source->instances[place->instances[i]];

        if (instance->operand_count > 0 && instance->operands[0] >= 0) {
            return false;
        }
    }
    return hlo_slice_is(place->of->opcode, "scatter") && !place->of->type->tuple;
}

/* Adds the reshardings on the way into an instruction, where all of its instances agree. */
static xm_status_t add_reshardings(ap_hlo_exporter_t *e, const place_t *place)
{
    hlo_slice_t *names = calloc((size_t)place->of->operand_count + 1, sizeof(*names));
    xm_status_t status = names == NULL ? XM_NO_MEMORY("an HLO module with shardings")
                                       : ap_hlo_operand_names(e, place->of, names);

    for (int o = 0; o < place->of->operand_count && status == XM_OK; ++o) {
        ap_spec_t used = 0, found = 0;
        bool agree = place->count > 0;

        for (int i = 0; i < place->count && agree; ++i) {
            const hlo_instance_t *instance = &e->source->instances[place->instances[i]];
            ap_spec_t to, from;

            agree = ap_export_instance_used(e->solution, instance, o, &to);
            if (agree) {
                from = ap_export_instance_found(e->solution, e->source, instance->context,
                                                instance->operands[o]);
                agree = from != to && (i == 0 || (to == used && from == found));
                used = to;
                found = from;
            }
        }
        if (agree) {
            ap_spec_t path[AP_MAX_RESHARD_STEPS + 1];
            int count = ap_export_instance_path(
                e->solution, e->source->instances[place->instances[0]].operands[o], found, used,
                path);

            status = add_steps(e, place, o, path + 1, count - 1, names[o]);
        } else if (o == 0 && scatters_into_constant(e, place) && common_spec(e, place, &used)) {
            status = add_steps(e, place, o, &used, 1, names[o]);
        }
    }
    free(names);
    return status;
}

/* Annotates the entry's result: one sharding for each of its leaves. */
static xm_status_t annotate_root(ap_hlo_exporter_t *e, const hlo_instruction_t *root)
{
    size_t size;
    char *text = NULL, one[AP_HLO_SHARDING_TEXT];
    FILE *stream = open_memstream(&text, &size);
    xm_status_t status;

    XM_NEED_MEMORY(stream, "an HLO module with shardings");
    (void)fputs(root->type->tuple ? "{" : "", stream);
    for (int i = 0; i < e->source->result_count; ++i) {
        int tensor = e->source->results[i].tensor;
        ap_spec_t spec =
            tensor >= 0 ? ap_shard_solution_kept(e->solution, tensor) : AP_SPEC_REPLICATED;

        (void)fprintf(stream, "%s%s", i == 0 ? "" : ", ",
                      ap_export_hlo_sharding(&e->mesh, spec, e->source->results[i].shape.rank, one,
                                             sizeof(one)));
    }
    (void)fputs(root->type->tuple ? "}" : "", stream);
    status = fclose(stream) == 0 ? ap_hlo_annotate(e, root, text)
                                 : XM_NO_MEMORY("an HLO module with shardings");
    free(text);
    return status;
}

/* Reshardings come before annotations, because both may edit at one place and edits there keep
 * their order. */
static xm_status_t edit_instruction(ap_hlo_exporter_t *e, const hlo_computation_t *in,
                                    const hlo_instruction_t *of)
{
    place_t place = {.in = in, .of = of};
    char sharding[AP_HLO_SHARDING_TEXT];
    ap_spec_t spec = AP_SPEC_REPLICATED;
    bool root = in->entry && of == &in->instructions[in->root];
    xm_status_t status = XM_OK;

    find_instances(e, &place);
    if (has_own_operators(of) && place.count > 0) {
        status = add_reshardings(e, &place);
    }
    XM_TRY(status);
    if (root) {
        return annotate_root(e, of);
    }
    if (hlo_slice_is(of->opcode, "while")) {
        return ap_hlo_annotate_loop(e, in, of);
    }
    if (of->type->tuple || of->type->empty || !common_spec(e, &place, &spec)) {
        return XM_OK;
    }
    XM_TRY(ap_hlo_annotate(
        e, of,
        ap_export_hlo_sharding(&e->mesh, spec, of->type->shape.rank, sharding, sizeof(sharding))));
    return ap_hlo_pin_carried(e, in, of, spec);
}

/* Edits at one place stay in the order they were made in, which qsort() alone would not promise. */
static int by_place(const void *left, const void *right)
{
    const ap_hlo_edit_t *a = left, *b = right;

    return a->at != b->at ? xm_order((int64_t)a->at, (int64_t)b->at)
                          : xm_order(a->number, b->number);
}

typedef struct instance_key {
    size_t at;
    int instance;
} instance_key_t;

static int by_instance(const void *left, const void *right)
{
    const instance_key_t *a = left, *b = right;

    return a->at != b->at ? xm_order((int64_t)a->at, (int64_t)b->at)
                          : xm_order(a->instance, b->instance);
}

static xm_status_t sort_instances(ap_hlo_exporter_t *e)
{
    size_t count = (size_t)e->source->instance_count;
    instance_key_t *keys = calloc(count + 1, sizeof(*keys));

    e->instances = calloc(count + 1, sizeof(*e->instances));
    if (keys == NULL || e->instances == NULL) {
        free(keys);
        return XM_NO_MEMORY("an HLO module with shardings");
    }
    for (size_t i = 0; i < count; ++i) {
        keys[i] = (instance_key_t){.at = e->source->instances[i].at, .instance = (int)i};
    }
    qsort(keys, count, sizeof(*keys), by_instance);
    for (size_t i = 0; i < count; ++i) {
        e->instances[i] = keys[i].instance;
    }
    free(keys);
    return XM_OK;
}

/* Edits never overlap, so each part of the text is copied once. */
static void write_edited(const ap_hlo_exporter_t *e, FILE *stream)
{
    const hlo_text_t *text = &e->module->text;
    size_t at = 0;

    for (int i = 0; i < e->edit_count; ++i) {
        const ap_hlo_edit_t *edit = &e->edits[i];

        (void)fwrite(text->bytes + at, 1, edit->at - at, stream);
        (void)fputs(edit->text, stream);
        at = edit->at + edit->length;
    }
    (void)fwrite(text->bytes + at, 1, text->size - at, stream);
}

/* The text is parsed a second time: the front end keeps no text, and parsing is quick. */
xm_status_t ap_export_hlo(const ap_shard_solution_t *solution, const ap_frontend_notes_t *notes,
                          const char *text, size_t size, const char *name, FILE *stream)
{
    const hlo_text_t source = {.name = name, .bytes = text, .size = size};
    ap_hlo_exporter_t e = {.solution = solution,
                           .source = ap_frontend_notes_source(notes),
                           .mesh = ap_export_mesh_of(solution->mesh)};
    hlo_module_t *module;
    xm_status_t status;

    XM_TRY(hlo_module_parse(&source, &module));
    e.module = module;
    status = sort_instances(&e);
    for (int c = 0; c < module->count; ++c) {
        const hlo_computation_t *in = &module->computations[c];

        for (int i = 0; i < in->count && status == XM_OK; ++i) {
            status = edit_instruction(&e, in, &in->instructions[i]);
        }
    }
    if (status == XM_OK) {
        if (e.edit_count > 0) {
            qsort(e.edits, (size_t)e.edit_count, sizeof(*e.edits), by_place);
        }
        write_edited(&e, stream);
    }
    for (int i = 0; i < e.edit_count; ++i) {
        free(e.edits[i].text);
    }
    free(e.edits);
    free(e.instances);
    hlo_module_destroy(module);
    return status;
}

xm_status_t ap_export_hlo_file(const ap_shard_solution_t *solution,
                               const ap_frontend_notes_t *notes, const char *path, FILE *stream)
{
    ap_frontend_file_t file;
    xm_status_t status;

    XM_TRY(ap_frontend_file_map(path, "HLO text", &file));
    status = ap_export_hlo(solution, notes, file.bytes, file.size, path, stream);
    ap_frontend_file_unmap(&file);
    return status;
}
