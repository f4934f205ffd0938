/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file arithmetic.h
 * What conversions do with one element and with one scale: for the loops of the host (kernels.c)
 * and for the kernels of devices (convert_kernel.cu), which so give the same bits. Plain C that is
 * also CUDA. Private to the room.
 *
 * Rounding to the nearest, ties to even, is left to the addition of floats: a value plus one whose
 * last place is the narrow type's last place.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "comm/memory.h"

#ifdef __CUDA__
#define XM_CONVERT_INLINE XM_KERNEL_INLINE
#else
#define XM_CONVERT_INLINE static inline __attribute__((always_inline, unused))
#endif

#define XM_MAGNITUDE 0x7fffffffU
#define XM_INFINITY  0x7f800000U

/* A float of its bits, and its bits; always inlined, as each width of vectors has its own code. */
XM_CONVERT_INLINE float xm_float_of(uint32_t bits)
{
    float value;

    __builtin_memcpy(&value, &bits, sizeof(value));
    return value;
}

XM_CONVERT_INLINE uint32_t xm_bits_of(float value)
{
    uint32_t bits;

    __builtin_memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* Magnitudes are compared as signed numbers, which all vectors can. */
XM_CONVERT_INLINE uint32_t least(uint32_t a, uint32_t b)
{
    return (int32_t)a < (int32_t)b ? a : b;
}

XM_CONVERT_INLINE uint32_t most(uint32_t a, uint32_t b)
{
    return (int32_t)a > (int32_t)b ? a : b;
}

/* All bits where the magnitude is that of a NaN. */
XM_CONVERT_INLINE uint32_t nan_mask(uint32_t bits)
{
    return (uint32_t) - (int32_t)((int32_t)bits > (int32_t)XM_INFINITY);
}

XM_CONVERT_INLINE uint16_t bfloat16_of(uint32_t bits)
{
    const uint32_t rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;

    /* The sign of a NaN stays, and its payload does not. */
    const uint32_t nan = nan_mask(bits & XM_MAGNITUDE);

    return (uint16_t)((rounded & ~nan) | (((bits >> 16 & 0x8000U) | 0x7fc0U) & nan));
}

/* e4m3 of a product. A value of the exponent e has the last place 2^(e - 3), one below 2^-6 that of
 * 2^-6: so adding 2^(e + 20) leaves the places that stay in the sum's lowest bits. What exceeds 448
 * becomes 448. */
XM_CONVERT_INLINE uint8_t fp8_of(uint32_t bits, float factor)
{
    const uint32_t product = xm_bits_of(xm_float_of(bits) * factor) & XM_MAGNITUDE;
    const uint32_t value = least(product, 0x43e00000U);
    const uint32_t exponent = most(value, 0x3c800000U) & XM_INFINITY;
    const uint32_t adder = exponent + (20U << 23);
    const uint32_t places = xm_bits_of(xm_float_of(value) + xm_float_of(adder)) - adder;
    const uint32_t narrow = (exponent >> 20) - 121U * 8U + places;

    const uint32_t top = narrow << 24 | (nan_mask(product) & 0x7f000000U) | (bits & ~XM_MAGNITUDE);

    /* Made in the highest byte, where the sign is: compilers would else narrow each part early. */
    return (uint8_t)(top >> 24);
}

/* A whole number of a product: the lowest bits of its sum with 1.5 * 2^23. NaN becomes 0. */
XM_CONVERT_INLINE uint8_t int8_of(uint32_t bits, float factor)
{
    const uint32_t product = xm_bits_of(xm_float_of(bits) * factor) & XM_MAGNITUDE;
    const uint32_t value = least(product, 0x42fe0000U) | (bits & ~XM_MAGNITUDE);
    const uint32_t narrow = xm_bits_of(xm_float_of(value) + 12582912.0F);

    return (uint8_t)(narrow & ~nan_mask(product));
}

XM_CONVERT_INLINE float fp8_value(uint8_t narrow)
{
    const uint32_t exponent_and_mantissa = narrow & 0x7fU, sign = (uint32_t)(narrow & 0x80U) << 24;
    /* A float whose exponent is 120 less: the product gives that back, to denormals as well. */
    const uint32_t scaled = xm_bits_of(xm_float_of(exponent_and_mantissa << 20) * 0x1p120F);

    return xm_float_of(scaled |
                       (0x7fc00000U & nan_mask((exponent_and_mantissa << 24) + 0x900000U)) | sign);
}

/* The exponent of the least power of two that is at least the maximum / 448, as E8M0 has it.
 * 448 is 1.75 * 2^8. */
XM_CONVERT_INLINE uint8_t e8m0_of(uint32_t bits)
{
    const int exponent = (int)(bits >> 23) - 8 + ((bits & 0x7fffffU) > 0x600000U ? 1 : 0);

    if (bits >= 0x7f800000U) {
        return bits > 0x7f800000U ? 255 : 254;
    }
    return (uint8_t)(exponent < 0 ? 0 : exponent);
}

/* 2^(byte - 127), of 255 NaN. */
XM_CONVERT_INLINE float e8m0_value(uint32_t byte)
{
    return xm_float_of(byte == 255 ? 0x7fc00000U : byte == 0 ? 0x00400000U : byte << 23);
}

/* What elements are multiplied by on their way, of a scale that is a byte and of one that is not.
 */
XM_CONVERT_INLINE float e8m0_factor(uint32_t byte, bool widens)
{
    return e8m0_value(byte == 255 || widens ? byte : 254 - byte);
}

XM_CONVERT_INLINE float float_factor(float scale, bool widens)
{
    return widens ? scale : 1.0F / scale;
}

XM_CONVERT_INLINE float scale_of(bool int8, float maximum)
{
    if (!int8) {
        return (maximum < 1e-4F ? 1e-4F : maximum) / 448.0F;
    }
    maximum /= 127.0F;
    return maximum < 0x1p-23F ? 0x1p-23F : maximum;
}
