/**
 * @file hlo_type.h
 * Types of HLO values: arrays and (nested) tuples of them.
 */
#ifndef AP_PLANNER_HLO_TYPE_H
#define AP_PLANNER_HLO_TYPE_H

#include "planner/graph.h"
#include "planner/hlo_arena.h"
#include "planner/hlo_lexer.h"

enum { HLO_TYPE_TEXT = 128 };

typedef struct hlo_type hlo_type_t;

struct hlo_type {
    bool tuple;
    bool empty; /**< holds no data: a token, an opaque value, a dimension of 0 */
    ap_dtype_t dtype;
    ap_shape_t shape;
    int count; /**< of a tuple */
    const hlo_type_t **elements;
};

/** Reads a type with its layouts: `f32[8,128]{1,0:T(8,128)}`, `(s32[], (f32[2], pred[]))`. */
xm_status_t hlo_type_parse(hlo_cursor_t *cursor, hlo_arena_t *arena, const hlo_type_t **type);

/** Same structure and dimensions; element types and layouts are not compared. */
bool hlo_type_same(const hlo_type_t *a, const hlo_type_t *b);

/** "f32"-less text of a type for sentences: "[8,128]", "([], [2])". Returns @p buffer. */
char *hlo_type_format(const hlo_type_t *type, char *buffer, size_t size);

/** Number of elements of an array; 1 for a scalar. */
double hlo_type_elements(const hlo_type_t *type);

#endif
