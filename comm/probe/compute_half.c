/* SPDX-License-Identifier: Apache-2.0 */
/* Products of one core on numbers of 16 and 8 bits. A processor that multiplies them does so here;
 * another widens what it loads to 32 bits first, which is what its libraries do as well, or has no
 * rate for the type. This file is compiled like compute.c, with -O3 in every build type. */
#include "comm/probe/compute.h"

#ifdef __x86_64__
#include <immintrin.h>

/* As in compute.c: independent chains hide the latency of an operation. */
enum { CHAINS = 10, ROUNDS = 20000 };

/* Sums start at what the compiler cannot know, so that it computes them. */
static volatile const float origin = 2;

/* 0.75 and 0.25 of each type; a chain of 0.75 x + 0.25 converges to 1. */
enum { BFLOAT16_FACTOR = 0x3F40, FLOAT16_FACTOR = 0x3A00, FLOAT16_ADDEND = 0x3400 };

/* A loop for the products of a type: `sum` is what a chain holds, of which `add` makes one number;
 * `step` is the operation on chain s with what `constants` declare. */
#define PRODUCTS(name, features, sum, start, constants, step, add)                                 \
    __attribute__((target(features))) static float name(void)                                      \
    {                                                                                              \
        constants;                                                                                 \
        sum chain[CHAINS];                                                                         \
        float all = 0;                                                                             \
                                                                                                   \
        for (int c = 0; c < CHAINS; ++c) {                                                         \
            chain[c] = start(origin + (float)c);                                                   \
        }                                                                                          \
        for (int round = 0; round < ROUNDS; ++round) {                                             \
            for (int c = 0; c < CHAINS; ++c) {                                                     \
                sum s = chain[c];                                                                  \
                                                                                                   \
                chain[c] = step;                                                                   \
            }                                                                                      \
        }                                                                                          \
        for (int c = 0; c < CHAINS; ++c) {                                                         \
            all += (float)add(chain[c]);                                                           \
        }                                                                                          \
        return all;                                                                                \
    }

#define WHOLE(x) _mm512_set1_epi32((int)(x))
#define HALF(x)  _mm512_set1_ph((_Float16)(x))

PRODUCTS(bfloat16_products, "avx512f,avx512bf16", __m512, _mm512_set1_ps,
         const __m512bh factor = (__m512bh)_mm512_set1_epi16(BFLOAT16_FACTOR),
         _mm512_dpbf16_ps(s, factor, factor), _mm512_reduce_add_ps)
PRODUCTS(int8_products, "avx512f,avx512vnni", __m512i, WHOLE, const __m512i factor = WHOLE(origin),
         _mm512_dpbusd_epi32(s, factor, factor), _mm512_reduce_add_epi32)

/* Clang knows the type in functions of their own target from version 15 on. */
#if !defined(__clang__) || __clang_major__ >= 15
PRODUCTS(float16_products, "avx512f,avx512bw,avx512fp16", __m512h, HALF,
         const __m512h factor = (__m512h)_mm512_set1_epi16(FLOAT16_FACTOR);
         const __m512h addend = (__m512h)_mm512_set1_epi16(FLOAT16_ADDEND),
         _mm512_fmadd_ph(s, factor, addend), _mm512_reduce_add_ph)

static bool multiplies_float16(void)
{
    return __builtin_cpu_supports("avx512fp16");
}
#else
static float float16_products(void)
{
    return 0;
}

static bool multiplies_float16(void)
{
    return false;
}
#endif

/* Eight numbers of a row that the compiler must load anew in every round. */
__attribute__((target("avx2,fma,f16c"))) static float widened(const __m128i *row, bool half)
{
    const __m256 addend = _mm256_set1_ps(0.25F);
    __m256 chain[CHAINS], all = _mm256_setzero_ps();
    float lanes[8];

    for (int c = 0; c < CHAINS; ++c) {
        chain[c] = _mm256_set1_ps(origin + (float)c);
    }
    for (int round = 0; round < ROUNDS; ++round) {
        __asm__ volatile("" : : "r"(row) : "memory");
        for (int c = 0; c < CHAINS; ++c) {
            __m128i packed = _mm_load_si128(&row[c]);
            __m256 factor =
                half ? _mm256_cvtph_ps(packed)
                     : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(packed), 16));

            chain[c] = _mm256_fmadd_ps(chain[c], factor, addend);
        }
    }
    for (int c = 0; c < CHAINS; ++c) {
        all = _mm256_add_ps(all, chain[c]);
    }
    _mm256_storeu_ps(lanes, all);
    return lanes[0];
}

static float bfloat16_widened(void)
{
    __m128i row[CHAINS];

    for (int c = 0; c < CHAINS; ++c) {
        row[c] = _mm_set1_epi16(BFLOAT16_FACTOR);
    }
    return widened(row, false);
}

static float float16_widened(void)
{
    __m128i row[CHAINS];

    for (int c = 0; c < CHAINS; ++c) {
        row[c] = _mm_set1_epi16(FLOAT16_FACTOR);
    }
    return widened(row, true);
}

xm_probe_kernel_t xm_probe_narrow_kernel(xm_number_t number)
{
    /* Every processor that has AVX2 has F16C, of which not all compilers can ask. */
    bool wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");

    if (number == XM_NUMBER_INT8) {
        bool known = __builtin_cpu_supports("avx512vnni");

        return (xm_probe_kernel_t){known ? int8_products : NULL, 64};
    }
    if (number == XM_NUMBER_BFLOAT16 && __builtin_cpu_supports("avx512bf16")) {
        return (xm_probe_kernel_t){bfloat16_products, 32};
    }
    if (number == XM_NUMBER_FLOAT16 && multiplies_float16()) {
        return (xm_probe_kernel_t){float16_products, 32};
    }
    return (xm_probe_kernel_t){!wide                          ? NULL
                               : number == XM_NUMBER_BFLOAT16 ? bfloat16_widened
                                                              : float16_widened,
                               8};
}
#else
xm_probe_kernel_t xm_probe_narrow_kernel(xm_number_t number)
{
    (void)number;
    return (xm_probe_kernel_t){NULL, 0};
}
#endif
