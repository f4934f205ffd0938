/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conversions are written once, as loops without branches over the bits of floats, and compiled
 * for each width of vectors. What they do with an element is in arithmetic.h. Products may not be
 * fused with additions (the build says -ffp-contract=off), as their own rounding is part of
 * the definition.
 */
#include "resharding/convert/kernels.h"

#include "resharding/convert/arithmetic.h"

/* Elements of a group: loops of a constant length become vectors without a prologue. */
enum { GROUP = 32 };

/* The bits of a wide element as those of a float. */
XM_CONVERT_INLINE uint32_t wide_bits(const void *wide, bool float32, int64_t i)
{
    return float32 ? ((const uint32_t *)wide)[i] : (uint32_t)((const uint16_t *)wide)[i] << 16;
}

XM_CONVERT_INLINE void put(void *wide, bool float32, int64_t i, float value)
{
    if (float32) {
        ((float *)wide)[i] = value;
    } else {
        ((uint16_t *)wide)[i] = bfloat16_of(xm_bits_of(value));
    }
}

/* Runs a body for groups, and for the rest one by one. */
#define FOR_GROUPS(first, end, body)                                                               \
    {                                                                                              \
        int64_t at = (first);                                                                      \
        for (; at + GROUP <= (end); at += GROUP) {                                                 \
            for (int64_t i = at; i < at + GROUP; ++i) {                                            \
                body;                                                                              \
            }                                                                                      \
        }                                                                                          \
        for (int64_t i = at; i < (end); ++i) {                                                     \
            body;                                                                                  \
        }                                                                                          \
    }

/* The same for each block, with its factor; of blocks that are groups the length is a constant. */
#define FOR_BLOCKS(body)                                                                           \
    int64_t first = 0;                                                                             \
    for (; block == GROUP && first + GROUP <= count; first += GROUP) {                             \
        const float factor = *factors++;                                                           \
        for (int64_t i = first; i < first + GROUP; ++i) {                                          \
            body;                                                                                  \
        }                                                                                          \
    }                                                                                              \
    for (; first < count; first += block) {                                                        \
        const int64_t end = count - first < block ? count : first + block;                         \
        const float factor = *factors++;                                                           \
        FOR_GROUPS(first, end, body)                                                               \
    }

/* One place of a group each, so that maxima are compared across only once, by halves. */
#define DEFINE_MAXIMUM(name, type, mask)                                                           \
    XM_CONVERT_INLINE uint32_t name(const type *wide, int64_t count)                               \
    {                                                                                              \
        type lanes[GROUP] = {0};                                                                   \
        int64_t at = 0;                                                                            \
                                                                                                   \
        for (; at + GROUP <= count; at += GROUP) {                                                 \
            for (int i = 0; i < GROUP; ++i) {                                                      \
                const type value = wide[at + i] & (mask);                                          \
                lanes[i] = value > lanes[i] ? value : lanes[i];                                    \
            }                                                                                      \
        }                                                                                          \
        for (int i = 0; at + i < count; ++i) {                                                     \
            const type value = wide[at + i] & (mask);                                              \
            lanes[i] = value > lanes[i] ? value : lanes[i];                                        \
        }                                                                                          \
        type found = 0;                                                                            \
        for (int i = 0; i < GROUP; ++i) {                                                          \
            found = lanes[i] > found ? lanes[i] : found;                                           \
        }                                                                                          \
        return (uint32_t)found;                                                                    \
    }
DEFINE_MAXIMUM(maximum16, int16_t, 0x7fff)
DEFINE_MAXIMUM(maximum32, int32_t, 0x7fffffff)

/* The bits of the float. */
XM_CONVERT_INLINE uint32_t maximum(const void *wide, bool float32, int64_t first, int64_t count)
{
    return float32 ? maximum32((const int32_t *)wide + first, count)
                   : maximum16((const int16_t *)wide + first, count) << 16;
}

/* Attributes and statements cannot stand in parentheses. NOLINTBEGIN(bugprone-macro-parentheses) */
/* The type of the wide elements is a constant in each copy of a loop. */
#define WIDE_LOOPS(attributes, suffix, name, parameters, body)                                     \
    attributes static void name##_##suffix parameters                                              \
    {                                                                                              \
        if (float32) {                                                                             \
            const bool is_float32 = true;                                                          \
            FOR_BLOCKS(body)                                                                       \
        } else {                                                                                   \
            const bool is_float32 = false;                                                         \
            FOR_BLOCKS(body)                                                                       \
        }                                                                                          \
    }
#define NARROW                                                                                     \
    (const void *restrict wide, bool float32, const float *restrict factors,                       \
     uint8_t *restrict narrow, int64_t block, int64_t count)
#define WIDEN                                                                                      \
    (const uint8_t *restrict narrow, const float *restrict factors, void *restrict wide,           \
     bool float32, int64_t block, int64_t count)

#define DEFINE_KERNELS(suffix, words, attributes)                                                  \
    attributes static void maxima_##suffix(const void *wide, bool float32, uint32_t *maxima,       \
                                           int64_t block, int64_t count)                           \
    {                                                                                              \
        int64_t first = 0;                                                                         \
                                                                                                   \
        for (; block == GROUP && first + GROUP <= count; first += GROUP, ++maxima) {               \
            *maxima = most(*maxima, maximum(wide, float32, first, GROUP));                         \
        }                                                                                          \
        for (; first < count; first += block, ++maxima) {                                          \
            const int64_t length = count - first < block ? count - first : block;                  \
                                                                                                   \
            *maxima = most(*maxima, maximum(wide, float32, first, length));                        \
        }                                                                                          \
    }                                                                                              \
    attributes static void to_bfloat16_##suffix(                                                   \
        const void *restrict wide, uint16_t *restrict narrow, int64_t count){FOR_GROUPS(           \
        0, count, narrow[i] = bfloat16_of(((const uint32_t *)wide)[i]))} attributes static void    \
        from_bfloat16_##suffix(const uint16_t *restrict narrow, void *restrict wide,               \
                               int64_t count){FOR_GROUPS(                                          \
            0, count,                                                                              \
            ((uint32_t *)wide)[i] =                                                                \
                (uint32_t)narrow[i]                                                                \
                << 16)} WIDE_LOOPS(attributes, suffix, to_fp8, NARROW,                             \
                                   narrow[i] = fp8_of(wide_bits(wide, is_float32, i), factor))     \
            WIDE_LOOPS(attributes, suffix, to_int8, NARROW,                                        \
                       narrow[i] = int8_of(wide_bits(wide, is_float32, i), factor))                \
                WIDE_LOOPS(attributes, suffix, from_fp8, WIDEN,                                    \
                           put(wide, is_float32, i, fp8_value(narrow[i]) * factor))                \
                    WIDE_LOOPS(                                                                    \
                        attributes, suffix, from_int8, WIDEN,                                      \
                        put(wide, is_float32, i,                                                   \
                            (float)(int8_t)narrow[i] *                                             \
                                factor)) static const xm_convert_kernels_t kernels_##suffix = {    \
                        words,                                                                     \
                        maxima_##suffix,                                                           \
                        to_bfloat16_##suffix,                                                      \
                        to_fp8_##suffix,                                                           \
                        to_int8_##suffix,                                                          \
                        from_bfloat16_##suffix,                                                    \
                        from_fp8_##suffix,                                                         \
                        from_int8_##suffix};

/* NOLINTEND(bugprone-macro-parentheses) */

DEFINE_KERNELS(portable, "portable", )

#ifdef __x86_64__
DEFINE_KERNELS(avx2, "AVX2", __attribute__((target("avx2"))))
#ifdef __clang__
#define WIDEST "avx512f,avx512bw,avx512vl,avx512dq"
#else
#define WIDEST "avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512"
#endif
DEFINE_KERNELS(avx512, "AVX-512", __attribute__((target(WIDEST))))

const xm_convert_kernels_t *xm_convert_kernels(int number)
{
    const xm_convert_kernels_t *found[4] = {NULL};
    int count = 0;

    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq")) {
        found[count++] = &kernels_avx512;
    }
    if (__builtin_cpu_supports("avx2")) {
        found[count++] = &kernels_avx2;
    }
    found[count++] = &kernels_portable;
    return number >= 0 && number < count ? found[number] : NULL;
}
#else
const xm_convert_kernels_t *xm_convert_kernels(int number)
{
    return number == 0 ? &kernels_portable : NULL;
}
#endif
