/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions on the device: a thread converts units of a row, one after the other, with the
 * arithmetic of the host's loops. Neighbouring threads have neighbouring units. See
 * comm/memory/cuda_kernel.h for the language.
 */
#include "resharding/convert/arithmetic.h"
#include "resharding/convert/convert_kernel.h"

/* The part of a unit that is in the tile. */
typedef struct {
    long long row, begin, end, block; /* in the tile; the block's number */
} xm_unit_part_t;

XM_KERNEL_INLINE xm_unit_part_t unit_part(const xm_convert_args_t *args, long long item)
{
    const long long row = item / args->units;
    const long long at = (args->first + item % args->units) * XM_CONVERT_STRIP - args->column;
    xm_unit_part_t part;

    part.row = row;
    part.begin = at < 0 ? 0 : at;
    part.end = at + XM_CONVERT_STRIP < args->columns ? at + XM_CONVERT_STRIP : args->columns;
    part.block = (args->row + row) / args->block_rows * args->scale_stride +
                 (args->column + part.begin) / args->block_columns;
    return part;
}

XM_KERNEL_INLINE uint32_t wide_at(const xm_convert_args_t *args, long long at)
{
    return args->float32
               ? XM_KERNEL_LOAD(uint32_t, args->wide + 4ULL * (unsigned long long)at)
               : (uint32_t)XM_KERNEL_LOAD(uint16_t, args->wide + 2ULL * (unsigned long long)at)
                     << 16;
}

XM_KERNEL_INLINE float factor_at(const xm_convert_args_t *args, long long block, bool widens)
{
    if (args->byte_scale) {
        return e8m0_factor(XM_KERNEL_LOAD(uint8_t, args->scales + (unsigned long long)block),
                           widens);
    }
    return float_factor(
        xm_float_of(XM_KERNEL_LOAD(uint32_t, args->scales + 4ULL * (unsigned long long)block)),
        widens);
}

/* Most units find a maximum that is as large already, and are done. */
XM_KERNEL_INLINE void raise_maximum(const xm_convert_args_t *args, long long item)
{
    const xm_unit_part_t part = unit_part(args, item);
    const unsigned long long maximum = args->maxima + 4ULL * (unsigned long long)part.block;
    uint32_t largest = 0;

    for (long long c = part.begin; c < part.end; ++c) {
        largest = most(largest, wide_at(args, part.row * args->wide_stride + c) & XM_MAGNITUDE);
    }
    if (largest > XM_KERNEL_LOAD(uint32_t, maximum)) {
        XM_KERNEL_RAISE(maximum, largest);
    }
}

XM_KERNEL_INLINE void set_scale(const xm_convert_args_t *args, long long item)
{
    const unsigned long long block =
        (unsigned long long)((args->row / args->block_rows + item / args->units) *
                                 args->scale_stride +
                             args->first + item % args->units);
    const uint32_t maximum = XM_KERNEL_LOAD(uint32_t, args->maxima + 4 * block);

    if (args->byte_scale) {
        XM_KERNEL_STORE(uint8_t, args->scales + block, e8m0_of(maximum));
    } else {
        XM_KERNEL_STORE(uint32_t, args->scales + 4 * block,
                        xm_bits_of(scale_of(args->int8, xm_float_of(maximum))));
    }
}

XM_KERNEL_INLINE void narrow_unit(const xm_convert_args_t *args, long long item)
{
    const xm_unit_part_t part = unit_part(args, item);
    const float factor = args->scaled ? factor_at(args, part.block, false) : 0;

    for (long long c = part.begin; c < part.end; ++c) {
        const uint32_t bits = wide_at(args, part.row * args->wide_stride + c);
        const unsigned long long at = (unsigned long long)(part.row * args->narrow_stride + c);

        if (!args->scaled) {
            XM_KERNEL_STORE(uint16_t, args->narrow + 2 * at, bfloat16_of(bits));
        } else {
            XM_KERNEL_STORE(uint8_t, args->narrow + at,
                            args->int8 ? int8_of(bits, factor) : fp8_of(bits, factor));
        }
    }
}

XM_KERNEL_INLINE void widen_unit(const xm_convert_args_t *args, long long item)
{
    const xm_unit_part_t part = unit_part(args, item);
    const float factor = args->scaled ? factor_at(args, part.block, true) : 0;

    for (long long c = part.begin; c < part.end; ++c) {
        const unsigned long long at = (unsigned long long)(part.row * args->narrow_stride + c);
        const unsigned long long to = (unsigned long long)(part.row * args->wide_stride + c);
        uint32_t bits;

        if (!args->scaled) {
            bits = (uint32_t)XM_KERNEL_LOAD(uint16_t, args->narrow + 2 * at) << 16;
        } else {
            const uint8_t narrow = XM_KERNEL_LOAD(uint8_t, args->narrow + at);

            bits =
                xm_bits_of((args->int8 ? (float)(signed char)narrow : fp8_value(narrow)) * factor);
        }
        if (args->float32) {
            XM_KERNEL_STORE(uint32_t, args->wide + 4 * to, bits);
        } else {
            XM_KERNEL_STORE(uint16_t, args->wide + 2 * to, bfloat16_of(bits));
        }
    }
}

#define XM_CONVERT_LOOP(unit)                                                                      \
    for (long long item = xm_kernel_thread(); item < args->items; item += xm_kernel_threads()) {   \
        unit(args, item);                                                                          \
    }
XM_KERNEL_ENTRY(xm_convert_maxima, xm_convert_args_t, XM_CONVERT_LOOP(raise_maximum))
XM_KERNEL_ENTRY(xm_convert_scales, xm_convert_args_t, XM_CONVERT_LOOP(set_scale))
XM_KERNEL_ENTRY(xm_convert_narrow, xm_convert_args_t, XM_CONVERT_LOOP(narrow_unit))
XM_KERNEL_ENTRY(xm_convert_widen, xm_convert_args_t, XM_CONVERT_LOOP(widen_unit))
