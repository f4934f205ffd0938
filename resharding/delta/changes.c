/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares a tile with its shadow, 64 elements at a time, for a word of bits. Between two steps of
 * training most elements are what they were, but at a few per cent most words have one that is
 * not: so a word's comparison may not cost more when it finds something, and it is made without
 * branches, by the widest vectors that the processor has. Reading both tiles is what then takes the
 * time.
 */
#include "resharding/delta/changes.h"

#include <stdbool.h>
#include <string.h>

/* BLOCK: elements of a word. AHEAD: bytes; two streams are more than a processor foresees alone. */
enum { BLOCK = 64, LINE = 64, AHEAD = 1024 };

/* Bit i: byte i is not 0, of bytes that are 0 or 1. The product brings the lowest bit of each of
 * eight bytes into the highest byte. */
static inline uint64_t gather_bits(const unsigned char *flags)
{
    uint64_t bits = 0;

    for (int group = 0; group < BLOCK / 8; ++group) {
        uint64_t eight;

        memcpy(&eight, flags + (size_t)group * 8, sizeof(eight));
        bits |= (eight * UINT64_C(0x0102040810204080) >> 56) << (group * 8);
    }
    return bits;
}

/* Compiled for each width of elements, as loops that any compiler makes vectors of. */
#define DEFINE_DIFFER(type)                                                                        \
    static inline uint64_t differ_##type(const char *now, const char *shadow)                      \
    {                                                                                              \
        unsigned char flags[BLOCK];                                                                \
        type one[BLOCK], other[BLOCK];                                                             \
                                                                                                   \
        memcpy(one, now, sizeof(one));                                                             \
        memcpy(other, shadow, sizeof(other));                                                      \
        for (int i = 0; i < BLOCK; ++i) {                                                          \
            flags[i] = one[i] != other[i];                                                         \
        }                                                                                          \
        return gather_bits(flags);                                                                 \
    }
DEFINE_DIFFER(uint8_t)
DEFINE_DIFFER(uint16_t)
DEFINE_DIFFER(uint32_t)
DEFINE_DIFFER(uint64_t)

/* The rest of a tile, and elements of other sizes. */
static uint64_t differ_slowly(const char *now, const char *shadow, int64_t count, size_t size)
{
    uint64_t bits = 0;

    for (int64_t i = 0; i < count; ++i) {
        bits |= (uint64_t)(memcmp(now + (size_t)i * size, shadow + (size_t)i * size, size) != 0)
                << i;
    }
    return bits;
}

static inline uint64_t differ_portably(const char *now, const char *shadow, size_t size)
{
    switch (size) {
    case 1:
        return differ_uint8_t(now, shadow);
    case 2:
        return differ_uint16_t(now, shadow);
    case 4:
        return differ_uint32_t(now, shadow);
    case 8:
        return differ_uint64_t(now, shadow);
    default:
        return differ_slowly(now, shadow, BLOCK, size);
    }
}

typedef uint64_t (*differ_t)(const char *now, const char *shadow, size_t size);

/* Inlined into the loop of each kind of vectors. The shadow is written whether something differs or
 * not: a branch on that is mispredicted at one per cent as often as a coin's, which costs more. */
static inline int64_t find_blocks(const char *now, char *shadow, int64_t blocks, size_t size,
                                  uint64_t *changed, differ_t differ)
{
    int64_t found = 0;

    for (int64_t b = 0; b < blocks; ++b) {
        const size_t at = (size_t)b * BLOCK * size;
        uint64_t bits;

        for (size_t line = 0; line < BLOCK * size; line += LINE) {
            __builtin_prefetch(now + at + line + AHEAD);
            __builtin_prefetch(shadow + at + line + AHEAD);
        }
        bits = differ(now + at, shadow + at, size);
        changed[b] |= bits;
        found += __builtin_popcountll(bits);
        memcpy(shadow + at, now + at, BLOCK * size);
    }
    return found;
}

static int64_t find_portably(const char *now, char *shadow, int64_t blocks, size_t size,
                             uint64_t *changed)
{
    return find_blocks(now, shadow, blocks, size, changed, differ_portably);
}

#ifdef __x86_64__
#include <immintrin.h>

/* Vectors of 512 bits compare right into bits. */
#define WIDE __attribute__((target("avx512f,avx512bw,popcnt")))

WIDE static inline uint64_t differ_wide(const char *now, const char *shadow, size_t size)
{
    uint64_t bits = 0;

    if (size != 1 && size != 2 && size != 4 && size != 8) {
        return differ_slowly(now, shadow, BLOCK, size);
    }
    for (size_t v = 0; v < size; ++v) {
        const __m512i one = _mm512_loadu_si512(now + v * 64);
        const __m512i other = _mm512_loadu_si512(shadow + v * 64);

        switch (size) {
        case 1:
            bits = _mm512_cmpneq_epi8_mask(one, other);
            break;
        case 2:
            bits |= (uint64_t)_mm512_cmpneq_epi16_mask(one, other) << (v * 32);
            break;
        case 4:
            bits |= (uint64_t)_mm512_cmpneq_epi32_mask(one, other) << (v * 16);
            break;
        default:
            bits |= (uint64_t)_mm512_cmpneq_epi64_mask(one, other) << (v * 8);
            break;
        }
    }
    return bits;
}

/* Constants unroll the loop over vectors. */
#define FIND(differ)                                                                               \
    (size == 1   ? find_blocks(now, shadow, blocks, 1, changed, differ)                            \
     : size == 2 ? find_blocks(now, shadow, blocks, 2, changed, differ)                            \
     : size == 4 ? find_blocks(now, shadow, blocks, 4, changed, differ)                            \
                 : find_blocks(now, shadow, blocks, size, changed, differ))

WIDE static int64_t find_wide(const char *now, char *shadow, int64_t blocks, size_t size,
                              uint64_t *changed)
{
    return FIND(differ_wide);
}

/* Vectors of 256 bits compare into bytes, whose signs are gathered. */
#define HALF __attribute__((target("avx2,popcnt")))

HALF static inline __m256i equal_half(const char *now, const char *shadow, size_t size)
{
    const __m256i one = _mm256_loadu_si256((const __m256i *)now);
    const __m256i other = _mm256_loadu_si256((const __m256i *)shadow);

    switch (size) {
    case 1:
        return _mm256_cmpeq_epi8(one, other);
    case 2:
        return _mm256_cmpeq_epi16(one, other);
    case 4:
        return _mm256_cmpeq_epi32(one, other);
    default:
        return _mm256_cmpeq_epi64(one, other);
    }
}

HALF static inline uint64_t differ_half(const char *now, const char *shadow, size_t size)
{
    uint64_t equal = 0;

    if (size != 1 && size != 2 && size != 4 && size != 8) {
        return differ_slowly(now, shadow, BLOCK, size);
    }
    for (size_t v = 0; v < 2 * size; v += size == 2 ? 2 : 1) {
        const __m256i found = equal_half(now + v * 32, shadow + v * 32, size);
        const unsigned at = (unsigned)(v * 32 / size);

        if (size == 1) {
            equal |= (uint64_t)(uint32_t)_mm256_movemask_epi8(found) << at;
        } else if (size == 2) { /* two vectors at a time, whose lanes are packed in turn */
            const __m256i next = equal_half(now + v * 32 + 32, shadow + v * 32 + 32, size);
            const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi16(found, next), 0xd8);

            equal |= (uint64_t)(uint32_t)_mm256_movemask_epi8(both) << at;
        } else if (size == 4) {
            equal |= (uint64_t)_mm256_movemask_ps(_mm256_castsi256_ps(found)) << at;
        } else {
            equal |= (uint64_t)_mm256_movemask_pd(_mm256_castsi256_pd(found)) << at;
        }
    }
    return ~equal;
}

HALF static int64_t find_half(const char *now, char *shadow, int64_t blocks, size_t size,
                              uint64_t *changed)
{
    return FIND(differ_half);
}

static int64_t find_here(const char *now, char *shadow, int64_t blocks, size_t size,
                         uint64_t *changed)
{
    if (__builtin_cpu_supports("avx512bw")) {
        return find_wide(now, shadow, blocks, size, changed);
    }
    if (__builtin_cpu_supports("avx2")) {
        return find_half(now, shadow, blocks, size, changed);
    }
    return find_portably(now, shadow, blocks, size, changed);
}
#else
static int64_t find_here(const char *now, char *shadow, int64_t blocks, size_t size,
                         uint64_t *changed)
{
    return find_portably(now, shadow, blocks, size, changed);
}
#endif

int64_t xm_changes_find(const void *now, void *shadow, int64_t elements, int64_t element_size,
                        uint64_t *changed)
{
    const size_t size = (size_t)element_size;
    const int64_t blocks = elements / BLOCK, rest = elements % BLOCK;
    const size_t at = (size_t)blocks * BLOCK * size;
    int64_t found = find_here(now, shadow, blocks, size, changed);

    if (rest > 0) {
        uint64_t bits =
            differ_slowly((const char *)now + at, (const char *)shadow + at, rest, size);

        changed[blocks] |= bits;
        found += __builtin_popcountll(bits);
        memcpy((char *)shadow + at, (const char *)now + at, (size_t)rest * size);
    }
    return found;
}
