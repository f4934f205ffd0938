/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file operand_type.h
 * Types of what an operator takes and makes: arrays and (nested) tuples of them, whatever front end
 * read them.
 */
#pragma once

#include "planner/graph.h"

enum { OPERAND_TYPE_TEXT = 128 };

typedef struct operand_type operand_type_t;

struct operand_type {
    bool tuple;
    bool empty; /**< holds no data: a token, an opaque value, a dimension of 0 */
    ap_dtype_t dtype;
    ap_shape_t shape;
    int count; /**< of a tuple */
    const operand_type_t **elements;
};

/** Same structure and dimensions; element types and layouts are not compared. */
bool operand_type_same(const operand_type_t *a, const operand_type_t *b);

/** "f32"-less text of a type for sentences: "[8,128]", "([], [2])". Returns @p buffer. */
char *operand_type_format(const operand_type_t *type, char *buffer, size_t size);

/** Number of elements of an array; 1 for a scalar. */
double operand_type_elements(const operand_type_t *type);
