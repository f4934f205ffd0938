/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file element.h
 * The types of elements that reductions add.
 */
#pragma once

#include <stdint.h>

#include "comm/base.h"

typedef struct xm_element {
    const char *name;
    size_t size;
    /** target[i] += source[i]; float16 and bfloat16 are added as float32 and rounded to the
     * nearest, ties to even. */
    void (*add)(void *target, const void *source, int64_t count);
    /** Adasum (Maleki, MLSys'21) of both instead: what is parallel counts once, what is orthogonal
     * is added; NULL: whole numbers have none. Not associative. */
    void (*adasum)(void *target, const void *source, int64_t count);
    /** A whole number that the type has, as its element. */
    void (*put)(void *target, int value);
} xm_element_t;

enum { XM_ELEMENTS = 4 };

/** float32, bfloat16, float16, int32. */
extern const xm_element_t xm_elements[XM_ELEMENTS];

float xm_half_to_float(uint16_t half);
uint16_t xm_half_of_float(float value);
