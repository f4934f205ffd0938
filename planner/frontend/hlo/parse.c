/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parser of HLO text: header, computations, instructions. The grammar is that of XLA's printer,
 * in the long form with types of operands and in the short one without. Attributes and literals are
 * skipped as balanced text, so unknown ones do no harm.
 *
 * XLA prints computations before their callers and operands before their users; the parser insists
 * on the latter, so later passes can go through the instructions in one direction.
 */

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "planner/frontend/hlo/module.h"

enum { MAX_PARAMETERS = 1 << 20 };

typedef struct parser {
    hlo_cursor_t cursor;
    hlo_module_t *module;
    xm_index_t names; /* of one computation's instructions */
} parser_t;

static int printable(hlo_slice_t slice)
{
    return (int)(slice.length > 80 ? 80 : slice.length);
}

/* Doubles an array of the arena when it is full; the old one stays where it is. */
static void *grow(xm_arena_t *arena, const void *array, int count, int *room, size_t size)
{
    void *grown;

    *room = *room == 0 ? 16 : 2 * *room;
    grown = xm_arena_get(arena, (size_t)*room, size);
    if (grown != NULL && count > 0) {
        memcpy(grown, array, (size_t)count * size);
    }
    return grown;
}

static uint64_t hash_name(hlo_slice_t name)
{
    return XXH64(name.at, name.length, 0);
}

/* The instruction of a name; −1: there is none yet. */
static int64_t find_name(const xm_index_t *names, const hlo_computation_t *in, hlo_slice_t name)
{
    size_t step = 0;
    int64_t i;

    do {
        i = xm_index_next(names, hash_name(name), &step);
    } while (i >= 0 && !hlo_slice_equal(in->instructions[i].name, name));
    return i;
}

static xm_status_t add_name(parser_t *p, const hlo_computation_t *in, int instruction)
{
    const hlo_instruction_t *of = &in->instructions[instruction];

    if (find_name(&p->names, in, of->name) >= 0) {
        return hlo_error(p->cursor.text, of->at, "'%.*s' is defined twice", printable(of->name),
                         of->name.at);
    }
    XM_NEED_MEMORY(xm_index_enter(&p->names, hash_name(of->name), instruction), "an HLO module");
    return XM_OK;
}

/* ", key=value" as often as it comes. */
static xm_status_t parse_attributes(parser_t *p, int *count, hlo_attribute_t **list)
{
    int room = 0;

    while (hlo_accept(&p->cursor, ",")) {
        hlo_attribute_t made = {.key = hlo_word(&p->cursor)};

        if (made.key.length == 0) {
            return hlo_fail(&p->cursor, p->cursor.at, "the name of an attribute is expected");
        }
        hlo_expect(&p->cursor, "=");
        made.value = hlo_value(&p->cursor);
        if (*count == room) {
            *list = grow(&p->module->arena, *list, *count, &room, sizeof(**list));
            XM_NEED_MEMORY(*list, "an HLO module");
        }
        (*list)[(*count)++] = made;
    }
    return p->cursor.status;
}

/* Reads one operand: "%name" or "f32[2]{0} %name". Both begin with a word; a bracket behind it
 * tells that it was a type, and the cursor goes back. */
static xm_status_t parse_operand(parser_t *p, const hlo_computation_t *in, int *operand)
{
    hlo_cursor_t back;
    hlo_slice_t name = {0};
    int64_t found;

    (void)hlo_peek(&p->cursor);
    back = p->cursor;
    if (hlo_peek(&p->cursor) != '(') {
        name = hlo_word(&p->cursor);
    }
    if (name.length == 0 || hlo_peek(&p->cursor) == '[') {
        const operand_type_t *type;

        p->cursor = back;
        XM_TRY(hlo_type_parse(&p->cursor, &p->module->arena, &type));
        (void)hlo_peek(&p->cursor);
        back = p->cursor;
        name = hlo_word(&p->cursor);
    }
    found = name.length == 0 ? -1 : find_name(&p->names, in, name);
    if (found < 0) {
        return hlo_fail(&p->cursor, back.at, "operand '%.*s' is not defined before it is used here",
                        printable(name), name.at);
    }
    *operand = (int)found;
    return XM_OK;
}

static xm_status_t parse_operands(parser_t *p, const hlo_computation_t *in, hlo_instruction_t *made)
{
    int room = 0;

    hlo_expect(&p->cursor, "(");
    while (hlo_more(&p->cursor, made->operand_count, ")")) {
        if (made->operand_count == room) {
            made->operands = grow(&p->module->arena, made->operands, made->operand_count, &room,
                                  sizeof(*made->operands));
            XM_NEED_MEMORY(made->operands, "an HLO module");
        }
        XM_TRY(parse_operand(p, in, &made->operands[made->operand_count++]));
    }
    return p->cursor.status;
}

static xm_status_t parse_parameter(parser_t *p, hlo_instruction_t *made)
{
    size_t at;

    hlo_expect(&p->cursor, "(");
    at = p->cursor.at;
    made->number = hlo_integer(&p->cursor);
    if (made->number < 0 || made->number >= MAX_PARAMETERS) {
        (void)hlo_fail(&p->cursor, at, "a parameter's number is 0 to %d", MAX_PARAMETERS - 1);
    }
    hlo_expect(&p->cursor, ")");
    return p->cursor.status;
}

/* Reads "[ROOT] name = type opcode(operands), attributes". The literal of a constant is skipped as
 * balanced text, however long it is. */
static xm_status_t parse_instruction(parser_t *p, hlo_computation_t *in)
{
    hlo_instruction_t made = {0};
    bool root = false;
    xm_status_t status = XM_OK;

    (void)hlo_peek(&p->cursor);
    made.at = p->cursor.at;
    made.name = hlo_word(&p->cursor);
    if (hlo_slice_is(made.name, "ROOT")) {
        root = true;
        (void)hlo_peek(&p->cursor);
        made.at = p->cursor.at;
        made.name = hlo_word(&p->cursor);
    }
    if (made.name.length == 0) {
        return hlo_fail(&p->cursor, made.at, "an instruction is expected here");
    }
    hlo_expect(&p->cursor, "=");
    XM_TRY(hlo_type_parse(&p->cursor, &p->module->arena, &made.type));
    made.opcode = hlo_word(&p->cursor);
    if (made.opcode.length == 0) {
        return hlo_fail(&p->cursor, p->cursor.at, "an opcode is expected here");
    }
    if (hlo_slice_is(made.opcode, "parameter")) {
        status = parse_parameter(p, &made);
    } else if (hlo_slice_is(made.opcode, "constant")) {
        if (hlo_peek(&p->cursor) == '(') {
            made.literal = hlo_balanced(&p->cursor);
        } else {
            hlo_expect(&p->cursor, "(");
        }
        status = p->cursor.status;
    } else {
        status = parse_operands(p, in, &made);
    }
    /* The end of the last attribute, not of the line: annotations are written there. */
    made.end = p->cursor.at;
    XM_THEN(status, parse_attributes(p, &made.attribute_count, &made.attributes));
    XM_TRY(status);
    if (made.attribute_count > 0) {
        hlo_slice_t last = made.attributes[made.attribute_count - 1].value;

        made.end = (size_t)(last.at - p->cursor.text->bytes) + last.length;
    }
    if (in->count == in->room) {
        in->instructions =
            grow(&p->module->arena, in->instructions, in->count, &in->room, sizeof(made));
        XM_NEED_MEMORY(in->instructions, "an HLO module");
    }
    in->instructions[in->count] = made;
    in->root = root ? in->count : in->root;
    return add_name(p, in, in->count++);
}

/* Numbers the parameters and marks what the root needs, backwards from the root. Without a ROOT the
 * last instruction is the root, as in XLA. Parameters must be numbered from 0 without a gap, so a
 * call can pass arguments by number. */
static xm_status_t finish_computation(parser_t *p, hlo_computation_t *in)
{
    if (in->count == 0) {
        return hlo_error(p->cursor.text, in->at, "the computation '%.*s' is empty",
                         printable(in->name), in->name.at);
    }
    in->root = in->root < 0 ? in->count - 1 : in->root;
    for (int i = 0; i < in->count; ++i) {
        in->parameter_count += hlo_slice_is(in->instructions[i].opcode, "parameter");
    }
    in->parameters = xm_arena_get(&p->module->arena, (size_t)in->parameter_count, sizeof(int));
    XM_NEED_MEMORY(in->parameters, "an HLO module");
    for (int i = 0; i < in->parameter_count; ++i) {
        in->parameters[i] = -1;
    }
    for (int i = 0; i < in->count; ++i) {
        const hlo_instruction_t *of = &in->instructions[i];

        if (!hlo_slice_is(of->opcode, "parameter")) {
            continue;
        }
        if (of->number >= in->parameter_count || in->parameters[of->number] >= 0) {
            return hlo_error(p->cursor.text, of->at,
                             "the numbers of the %d parameters of '%.*s' are not 0 to %d",
                             in->parameter_count, printable(in->name), in->name.at,
                             in->parameter_count - 1);
        }
        in->parameters[of->number] = i;
    }
    in->instructions[in->root].needed = true;
    for (int i = in->root; i >= 0; --i) {
        const hlo_instruction_t *of = &in->instructions[i];

        for (int o = 0; o < of->operand_count && of->needed; ++o) {
            in->instructions[of->operands[o]].needed = true;
        }
    }
    return XM_OK;
}

/* Reads "[ENTRY] name [(parameters) -> type] { instructions }". The signature repeats what the
 * instructions say, and is skipped. */
static xm_status_t parse_computation(parser_t *p, hlo_computation_t *made)
{
    hlo_attribute_t *attributes = NULL;
    int count = 0;
    const operand_type_t *type;
    xm_status_t status;

    made->root = -1;
    made->at = p->cursor.at;
    made->name = hlo_word(&p->cursor);
    if (hlo_slice_is(made->name, "ENTRY")) {
        made->entry = true;
        made->name = hlo_word(&p->cursor);
    }
    if (made->name.length == 0) {
        return hlo_fail(&p->cursor, p->cursor.at, "a computation is expected here");
    }
    if (hlo_peek(&p->cursor) == '(') {
        (void)hlo_balanced(&p->cursor);
        hlo_expect(&p->cursor, "->");
        status = hlo_type_parse(&p->cursor, &p->module->arena, &type);
        XM_TRY(status);
    }
    hlo_expect(&p->cursor, "{");
    status = p->cursor.status;
    xm_index_clear(&p->names);
    while (status == XM_OK && hlo_peek(&p->cursor) != '}' && hlo_peek(&p->cursor) != '\0') {
        status = parse_instruction(p, made);
    }
    if (status == XM_OK) {
        hlo_expect(&p->cursor, "}");
        status = parse_attributes(p, &count, &attributes);
    }
    return status == XM_OK ? finish_computation(p, made) : status;
}

/* Skips the tables of stack frames that newer versions of XLA print: up to an empty line. */
static bool skip_table(hlo_cursor_t *cursor)
{
    hlo_cursor_t ahead = *cursor;

    if (!hlo_slice_in(hlo_word(&ahead), "FileNames FunctionNames FileLocations StackFrames")) {
        return false;
    }
    while (ahead.at < ahead.end &&
           !(ahead.text->bytes[ahead.at] == '\n' && ahead.at + 1 < ahead.end &&
             ahead.text->bytes[ahead.at + 1] == '\n')) {
        ++ahead.at;
    }
    *cursor = ahead;
    return true;
}

static xm_status_t parse_module(parser_t *p)
{
    hlo_module_t *module = p->module;
    xm_status_t status;

    hlo_expect(&p->cursor, "HloModule");
    module->name = hlo_word(&p->cursor);
    status = parse_attributes(p, &module->attribute_count, &module->attributes);
    while (status == XM_OK && hlo_peek(&p->cursor) != '\0') {
        hlo_computation_t made = {0};

        if (skip_table(&p->cursor)) {
            continue;
        }
        status = parse_computation(p, &made);
        XM_TRY(status);
        if (hlo_module_find(module, made.name) >= 0) {
            return hlo_error(&module->text, made.at, "the computation '%.*s' is defined twice",
                             printable(made.name), made.name.at);
        }
        if (made.entry && module->entry >= 0) {
            return hlo_error(&module->text, made.at, "this is the second ENTRY computation");
        }
        if (module->count == module->room) {
            module->computations = grow(&module->arena, module->computations, module->count,
                                        &module->room, sizeof(made));
            XM_NEED_MEMORY(module->computations, "an HLO module");
        }
        module->entry = made.entry ? module->count : module->entry;
        module->computations[module->count++] = made;
    }
    if (status == XM_OK && module->entry < 0) {
        return hlo_error(&module->text, p->cursor.at, "the module has no ENTRY computation");
    }
    return status;
}

/* On failure everything goes with the arena. */
xm_status_t hlo_module_parse(const hlo_text_t *text, hlo_module_t **module)
{
    hlo_module_t *made = calloc(1, sizeof(*made));
    parser_t p = {.module = made};
    xm_status_t status;

    XM_NEED_MEMORY(made, "an HLO module");
    made->text = *text;
    made->entry = -1;
    p.cursor = (hlo_cursor_t){.text = &made->text, .end = text->size};
    status = parse_module(&p);
    xm_index_clear(&p.names);
    if (status != XM_OK) {
        hlo_module_destroy(made);
        return status;
    }
    *module = made;
    return XM_OK;
}

/* A linear search: there are few computations, and each call or loop asks once. */
int hlo_module_find(const hlo_module_t *module, hlo_slice_t name)
{
    if (name.length > 0 && name.at[0] == '%') {
        ++name.at;
        --name.length;
    }
    for (int c = 0; c < module->count; ++c) {
        if (hlo_slice_equal(module->computations[c].name, name)) {
            return c;
        }
    }
    return -1;
}

void hlo_module_destroy(hlo_module_t *module)
{
    if (module != NULL) {
        xm_arena_clear(&module->arena);
        free(module);
    }
}
