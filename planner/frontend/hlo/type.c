/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the types of HLO values: element type, dimensions, layout, and tuples of them. Layouts are
 * skipped, because the planner decides about devices and not about memory order. Types come from
 * files, so depth, tuple size, rank and the number of elements are all bounded before anything is
 * computed with them.
 */

#include "planner/frontend/hlo/type.h"

#include <string.h>

enum { MAX_DEPTH = 32, MAX_TUPLE = 1 << 16 };

/* Element types by name and what they are stored as. What counts is their size: numbers of fewer
 * than 8 bits take a byte here, and a complex number of two floats is as large as a double. */
static const struct {
    const char *name;
    ap_dtype_t dtype;
} dtypes[] = {{"f32", AP_DTYPE_F32},       {"bf16", AP_DTYPE_BF16},
              {"f16", AP_DTYPE_F16},       {"f64", AP_DTYPE_F64},
              {"pred", AP_DTYPE_I8},       {"s32", AP_DTYPE_I32},
              {"u32", AP_DTYPE_I32},       {"s64", AP_DTYPE_I64},
              {"u64", AP_DTYPE_I64},       {"s16", AP_DTYPE_I16},
              {"u16", AP_DTYPE_I16},       {"s8", AP_DTYPE_I8},
              {"u8", AP_DTYPE_I8},         {"s4", AP_DTYPE_I8},
              {"u4", AP_DTYPE_I8},         {"s2", AP_DTYPE_I8},
              {"u2", AP_DTYPE_I8},         {"s1", AP_DTYPE_I8},
              {"u1", AP_DTYPE_I8},         {"c64", AP_DTYPE_F64},
              {"c128", AP_DTYPE_C128},     {"f8e5m2", AP_DTYPE_I8},
              {"f8e4m3", AP_DTYPE_I8},     {"f8e4m3fn", AP_DTYPE_I8},
              {"f8e5m2fnuz", AP_DTYPE_I8}, {"f8e4m3fnuz", AP_DTYPE_I8},
              {"f8e3m4", AP_DTYPE_I8},     {"f8e4m3b11fnuz", AP_DTYPE_I8},
              {"f8e8m0fnu", AP_DTYPE_I8},  {"f4e2m1fn", AP_DTYPE_I8}};

/* The number of elements is bounded by a division, for a product might not fit 64 bits. A dimension
 * of 0 is allowed and makes the value empty. */
static void parse_dimensions(hlo_cursor_t *cursor, operand_type_t *type)
{
    int64_t elements = 1;

    for (int done = 0; hlo_more(cursor, done, "]"); ++done) {
        size_t at = cursor->at;
        int64_t extent;

        (void)hlo_accept(cursor, "<="); /* the bound of a dynamic dimension */
        extent = hlo_integer(cursor);
        if (type->shape.rank == AP_MAX_RANK) {
            (void)hlo_fail(cursor, at, "a tensor of more than %d dimensions is not handled",
                           AP_MAX_RANK);
            return;
        }
        if (extent < 0) {
            (void)hlo_fail(cursor, at, "dimension %d is negative", type->shape.rank);
        } else if (extent > AP_MOST_ELEMENTS ||
                   (extent > 0 && elements > AP_MOST_ELEMENTS / extent)) {
            (void)hlo_fail(cursor, at, "this type has more than 2^48 elements");
            return;
        }
        elements *= extent > 0 ? extent : 1;
        type->empty = type->empty || extent == 0;
        type->shape.dims[type->shape.rank++] = extent;
    }
}

static void parse_array(hlo_cursor_t *cursor, operand_type_t *type)
{
    size_t start;
    hlo_slice_t word;

    (void)hlo_peek(cursor);
    start = cursor->at;
    word = hlo_word(cursor);
    type->empty = hlo_slice_is(word, "token") || hlo_slice_is(word, "opaque");
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]) && !type->empty; ++i) {
        if (hlo_slice_is(word, dtypes[i].name)) {
            type->dtype = dtypes[i].dtype;
            break;
        }
        if (i + 1 == sizeof(dtypes) / sizeof(dtypes[0])) {
            (void)hlo_fail(cursor, start, "'%.*s' is not an element type",
                           (int)(word.length > 40 ? 40 : word.length), word.at);
        }
    }
    hlo_expect(cursor, "[");
    parse_dimensions(cursor, type);
    /* A layout follows without a blank. */
    if (cursor->at < cursor->end && cursor->text->bytes[cursor->at] == '{') {
        (void)hlo_balanced(cursor);
    }
}

static xm_status_t parse_type(hlo_cursor_t *cursor, xm_arena_t *arena, int depth,
                              const operand_type_t **type);

/* The list of elements doubles within the arena; what it outgrows stays there until the module is
 * freed. */
static xm_status_t parse_tuple(hlo_cursor_t *cursor, xm_arena_t *arena, int depth,
                               operand_type_t *type)
{
    const operand_type_t *element;
    int room = 0;

    type->tuple = true;
    while (hlo_more(cursor, type->count, ")")) {
        XM_TRY(parse_type(cursor, arena, depth + 1, &element));
        if (type->count == MAX_TUPLE) {
            return hlo_fail(cursor, cursor->at, "a tuple of more than %d elements", MAX_TUPLE);
        }
        if (type->count == room) {
            const operand_type_t **grown;

            room = room == 0 ? 8 : 2 * room;
            grown = xm_arena_get(arena, (size_t)room, sizeof(const operand_type_t *));
            XM_NEED_MEMORY(grown, "a tuple type");
            if (type->count > 0) {
                memcpy(grown, type->elements, (size_t)type->count * sizeof(const operand_type_t *));
            }
            type->elements = grown;
        }
        type->elements[type->count++] = element;
    }
    return cursor->status;
}

/* Types nest, but only MAX_DEPTH deep. NOLINTNEXTLINE(misc-no-recursion) */
static xm_status_t parse_type(hlo_cursor_t *cursor, xm_arena_t *arena, int depth,
                              const operand_type_t **type)
{
    operand_type_t *made = xm_arena_get(arena, 1, sizeof(*made));

    XM_NEED_MEMORY(made, "a type");
    *type = made;
    if (depth > MAX_DEPTH) {
        return hlo_fail(cursor, cursor->at, "tuples are nested deeper than %d", MAX_DEPTH);
    }
    if (hlo_accept(cursor, "(")) {
        return parse_tuple(cursor, arena, depth, made);
    }
    parse_array(cursor, made);
    return cursor->status;
}

xm_status_t hlo_type_parse(hlo_cursor_t *cursor, xm_arena_t *arena, const operand_type_t **type)
{
    return parse_type(cursor, arena, 0, type);
}
