/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of elements; halves as in IEEE 754. */
#include "resharding/collective/element.h"

#include "resharding/convert.h"

/* Elements that are widened at a time. */
enum { BLOCK = 512 };

/* The exponent's bias differs by 112; a product sets it right for small numbers, too. */
float xm_half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000U) << 16, rest = (uint32_t)(half & 0x7fffU) << 13;
    uint32_t bits =
        rest >= 0x0f800000U ? rest | 0x7f800000U : xm_bits_of(xm_float_of(rest) * 0x1p112F);

    return xm_float_of(bits | sign);
}

uint16_t xm_half_of_float(float value)
{
    uint32_t bits = xm_bits_of(value), sign = bits >> 16 & 0x8000U, rest = bits & 0x7fffffffU;

    if (rest > 0x7f800000U) {
        return (uint16_t)(sign | 0x7e00U);
    }
    if (rest >= 0x477ff000U) { /* from 65520 on */
        return (uint16_t)(sign | 0x7c00U);
    }
    if (rest < 0x38800000U) { /* below 2^-14: adding 0.5 leaves what stays in the lowest bits */
        return (uint16_t)(sign | (xm_bits_of(xm_float_of(rest) + 0.5F) - 0x3f000000U));
    }
    return (uint16_t)(sign | (rest + 0xfffU + (rest >> 13 & 1U) - 0x38000000U) >> 13);
}

static void add_float32(void *target, const void *source, int64_t count)
{
    float *to = target;

    for (int64_t i = 0; i < count; ++i) {
        to[i] += ((const float *)source)[i];
    }
}

/* Unsigned, so that sums wrap. */
static void add_int32(void *target, const void *source, int64_t count)
{
    uint32_t *to = target;

    for (int64_t i = 0; i < count; ++i) {
        to[i] += ((const uint32_t *)source)[i];
    }
}

static void add_float16(void *target, const void *source, int64_t count)
{
    uint16_t *to = target;

    for (int64_t i = 0; i < count; ++i) {
        to[i] = xm_half_of_float(xm_half_to_float(to[i]) +
                                 xm_half_to_float(((const uint16_t *)source)[i]));
    }
}

static void add_bfloat16(void *target, const void *source, int64_t count)
{
    const xm_convert_kernels_t *kernels = xm_convert_kernels(0);
    uint16_t *to = target;
    const uint16_t *from = source;
    float sum[BLOCK], other[BLOCK];

    for (int64_t done = 0, part; done < count; done += part) {
        part = count - done < BLOCK ? count - done : BLOCK;
        kernels->from_bfloat16(to + done, sum, part);
        kernels->from_bfloat16(from + done, other, part);
        add_float32(sum, other, part);
        kernels->to_bfloat16(sum, to + done, part);
    }
}

typedef float get_t(const void *data, int64_t index);
typedef void set_t(void *data, int64_t index, float value);

/* target (1 - t·s / 2 t·t) + source (1 - t·s / 2 s·s), products in float64. */
static void adasum(void *target, const void *source, int64_t count, get_t *get, set_t *set)
{
    double both = 0, own = 0, other = 0, keep, take;

    for (int64_t i = 0; i < count; ++i) {
        double t = get(target, i), s = get(source, i);

        both += t * s;
        own += t * t;
        other += s * s;
    }
    keep = own > 0 ? 1 - both / (2 * own) : 1;
    take = other > 0 ? 1 - both / (2 * other) : 1;
    for (int64_t i = 0; i < count; ++i) {
        set(target, i, (float)(keep * get(target, i) + take * get(source, i)));
    }
}

static float get_float32(const void *data, int64_t index)
{
    return ((const float *)data)[index];
}

static void set_float32(void *data, int64_t index, float value)
{
    ((float *)data)[index] = value;
}

static float get_float16(const void *data, int64_t index)
{
    return xm_half_to_float(((const uint16_t *)data)[index]);
}

static void set_float16(void *data, int64_t index, float value)
{
    ((uint16_t *)data)[index] = xm_half_of_float(value);
}

static float get_bfloat16(const void *data, int64_t index)
{
    return xm_float_of((uint32_t)((const uint16_t *)data)[index] << 16);
}

static void set_bfloat16(void *data, int64_t index, float value)
{
    xm_convert_kernels(0)->to_bfloat16(&value, (uint16_t *)data + index, 1);
}

static void adasum_float32(void *target, const void *source, int64_t count)
{
    adasum(target, source, count, get_float32, set_float32);
}

static void adasum_float16(void *target, const void *source, int64_t count)
{
    adasum(target, source, count, get_float16, set_float16);
}

static void adasum_bfloat16(void *target, const void *source, int64_t count)
{
    adasum(target, source, count, get_bfloat16, set_bfloat16);
}

static void put_float32(void *target, int value)
{
    *(float *)target = (float)value;
}

static void put_int32(void *target, int value)
{
    *(int32_t *)target = value;
}

static void put_float16(void *target, int value)
{
    *(uint16_t *)target = xm_half_of_float((float)value);
}

static void put_bfloat16(void *target, int value)
{
    *(uint16_t *)target = (uint16_t)(xm_bits_of((float)value) >> 16);
}

const xm_element_t xm_elements[XM_ELEMENTS] = {
    {"float32", 4, add_float32, adasum_float32, put_float32},
    {"bfloat16", 2, add_bfloat16, adasum_bfloat16, put_bfloat16},
    {"float16", 2, add_float16, adasum_float16, put_float16},
    {"int32", 4, add_int32, NULL, put_int32},
};
