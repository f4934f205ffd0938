/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one generator of pseudo-random numbers, and the one way to mix hashes.
 *
 * The generator is SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
 * generators", OOPSLA 2014): a counter that advances by the odd number next to 2^64 divided by the
 * golden ratio, and a function that scatters the counter's bits. Any seed is as good as any other,
 * zero included; equal seeds give equal numbers on every machine, which plans rely on: all ranks
 * search with the same seed and must find the same plan. It is not for secrets.
 *
 * Hashes are for tables in memory. Whatever ranks compare or files keep must name its own hash.
 *
 * Internal, not installed. Threads: one per generator.
 */
#pragma once

#include <stdint.h>

/* 2^64 divided by the golden ratio. */
#define XM_GOLDEN UINT64_C(0x9e3779b97f4a7c15)

/* A generator; {seed} makes one. */
typedef struct {
    uint64_t state;
} xm_random_t;

/* The number that a generator gives first with this seed. Every bit of the seed changes about half
 * of its bits, so it also is a good and fast scatterer of indices. */
static inline uint64_t xm_random_of(uint64_t seed)
{
    uint64_t z = seed + XM_GOLDEN;

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* The next number; each of the 2^64 comes once in a period. */
static inline uint64_t xm_random_next(xm_random_t *random)
{
    uint64_t next = xm_random_of(random->state);

    random->state += XM_GOLDEN;
    return next;
}

/* A number of [0, limit), limit > 0. The remainder favours small numbers by less than limit / 2^64
 * of a chance, which no search notices. */
static inline uint64_t xm_random_below(xm_random_t *random, uint64_t limit)
{
    return xm_random_next(random) % limit;
}

/* What 64 random bits of any generator are as a double of [0, 1): the upper 53 of them. */
static inline double xm_random_unit(uint64_t bits)
{
    return (double)(bits >> 11) * 0x1p-53;
}

/* Multiplicative hashing (Knuth, TAOCP vol. 3, 6.4): the upper bits of the result are spread well,
 * so tables take these. The cheapest hash there is. */
static inline uint64_t xm_hash_spread(uint64_t value)
{
    return value * XM_GOLDEN;
}

/* Takes one more value into a hash. The upper half is folded onto the lower one, so any bits of
 * the result may be taken. */
static inline uint64_t xm_hash_mix(uint64_t hash, uint64_t value)
{
    hash = xm_hash_spread(hash ^ value);
    return hash ^ (hash >> 32);
}

/* Of two numbers that are not negative, in this order. */
static inline uint64_t xm_hash_pair(int first, int second)
{
    return xm_hash_mix(0, (uint64_t)(uint32_t)first << 32 | (uint32_t)second);
}

/* Takes a list of numbers into a hash, 0 for none yet. */
static inline uint64_t xm_hash_list(uint64_t hash, const int *list, int count)
{
    hash ^= (uint64_t)count;
    for (int i = 0; i < count; ++i) {
        hash = xm_hash_mix(hash, (uint64_t)list[i]);
    }
    return hash;
}
