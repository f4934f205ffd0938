/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Types of values as front ends see them before there is a graph: arrays, and tuples that may nest.
 * A graph has only arrays; tuples are taken apart on the way.
 */

#include "planner/rules/operand_type.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Recursion is as deep as the types are nested, which readers of files bound. Element types do not
 * matter: what is compared are the structures of loop states and calls, where conversions were
 * already refused by whoever wrote the file. */
bool operand_type_same(const operand_type_t *a, const operand_type_t *b)
{
    if (a->tuple != b->tuple || a->count != b->count || a->shape.rank != b->shape.rank) {
        return false;
    }
    for (int d = 0; d < a->shape.rank; ++d) {
        if (a->shape.dims[d] != b->shape.dims[d]) {
            return false;
        }
    }
    for (int i = 0; i < a->count; ++i) {
        if (!operand_type_same(a->elements[i], b->elements[i])) {
            return false;
        }
    }
    return true;
}

/* The buffer has OPERAND_TYPE_TEXT bytes at every caller; a longer text is cut. */
char *operand_type_format(const operand_type_t *type, char *buffer, size_t size)
{
    size_t length = 0;

    if (type->tuple) {
        (void)snprintf(buffer, size, "a tuple of %d", type->count);
        return buffer;
    }
    (void)snprintf(buffer, size, "[");
    for (int d = 0; d < type->shape.rank; ++d) {
        length = strlen(buffer);
        (void)snprintf(buffer + length, size - length, d == 0 ? "%" PRId64 : ",%" PRId64,
                       type->shape.dims[d]);
    }
    length = strlen(buffer);
    (void)snprintf(buffer + length, size - length, "]");
    return buffer;
}

/* A double, because products of dimensions are used for FLOPs, where 2^53 is precise enough. */
double operand_type_elements(const operand_type_t *type)
{
    double elements = 1;

    for (int d = 0; d < type->shape.rank; ++d) {
        elements *= (double)type->shape.dims[d];
    }
    return elements;
}
