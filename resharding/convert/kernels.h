/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file kernels.h
 * Conversions of elements that follow each other, by the widest vectors that the processor has. Not
 * installed.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/** Of the elements of a row, @p count in blocks of @p block; the last may be shorter. */
typedef struct xm_convert_kernels {
    const char *name; /**< "AVX-512" */
    /** Raises a maximum a block to the largest absolute value, as the bits of a float; NaN is more
     * than all. */
    void (*maxima)(const void *wide, bool float32, uint32_t *maxima, int64_t block, int64_t count);
    void (*to_bfloat16)(const void *wide, uint16_t *narrow, int64_t count);
    void (*to_fp8)(const void *wide, bool float32, const float *factors, uint8_t *narrow,
                   int64_t block, int64_t count);
    void (*to_int8)(const void *wide, bool float32, const float *factors, uint8_t *narrow,
                    int64_t block, int64_t count);
    void (*from_bfloat16)(const uint16_t *narrow, void *wide, int64_t count);
    void (*from_fp8)(const uint8_t *narrow, const float *factors, void *wide, bool float32,
                     int64_t block, int64_t count);
    void (*from_int8)(const uint8_t *narrow, const float *factors, void *wide, bool float32,
                      int64_t block, int64_t count);
} xm_convert_kernels_t;

/** Those of this processor: number 0 is the best, further ones are for tests and benchmarks; NULL
 * where there are no more. */
const xm_convert_kernels_t *xm_convert_kernels(int number);
