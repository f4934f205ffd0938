/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file positions.h
 * A set of positions in a range, in three ways to write it down, read as runs. Private to the
 * room.
 *
 *     bits     a bit for each position of the range
 *     sorted   each position by Elias-Fano's code
 *     runs     where each run begins, and how many positions there are up to its end, both by that
 *              code
 *
 * Elias-Fano (Elias 1974, Fano 1971; Vigna, "Quasi-succinct indices", WSDM 2013, section 3): of m
 * ascending numbers below n the lowest l = log2(n / m) bits stand as they are, one number after the
 * other; the upper parts in unary code, as m bits among n / 2^l. That takes 2 + log2(n / m) bits a
 * number, half a bit more than the entropy of a random set.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/** Readers and writers touch up to so many bytes behind a code; what they do there has no effect.
 */
enum { XM_POSITIONS_SLACK = 8 };

/** A code that is being written or read. */
typedef struct xm_sorted {
    unsigned char *low, *high, *end; /* end: of the unary code */
    int bits;                        /* of a number, in `low` */
    int64_t count;                   /* numbers so far */
    uint64_t word;                   /* bits of the unary code at hand … */
    int64_t at;                      /* … and where the first of them stands */
    uint64_t lows;                   /* writer: what is not in `low` yet … */
    int fill;                        /* … and how many bits that is */
} xm_sorted_t;

/** Bytes of @p count ascending numbers below @p below. */
size_t xm_sorted_bytes(int64_t count, int64_t below);
/** Either end: the code lies at @p bytes. */
void xm_sorted_open(xm_sorted_t *sorted, void *bytes, int64_t count, int64_t below);

/** Writers: all numbers in order, between a start and an end. Both parts of the code grow in
 * registers, as a word that is read right after it was stored elsewhere waits for the store. */
void xm_sorted_start(xm_sorted_t *sorted);
static inline void xm_sorted_put(xm_sorted_t *sorted, int64_t number)
{
    const uint64_t low = (uint64_t)number & ((UINT64_C(1) << sorted->bits) - 1);
    const int64_t place = (number >> sorted->bits) + sorted->count++;

    sorted->lows |= low << sorted->fill;
    sorted->fill += sorted->bits;
    if (sorted->fill >= 64) {
        memcpy(sorted->low, &sorted->lows, 8);
        sorted->low += 8;
        sorted->fill -= 64;
        sorted->lows = sorted->fill > 0 ? low >> (sorted->bits - sorted->fill) : 0;
    }
    if (place >= sorted->at + 64) {
        memcpy(sorted->high + sorted->at / 8, &sorted->word, 8);
        sorted->word = 0;
        sorted->at = place / 64 * 64;
    }
    sorted->word |= UINT64_C(1) << (place % 64);
}
void xm_sorted_finish(xm_sorted_t *sorted);

/** The next number; -1 when the code has no more. */
int64_t xm_sorted_get(xm_sorted_t *sorted);

/** How positions are written down. */
typedef enum xm_positions_kind {
    XM_POSITIONS_BITS,
    XM_POSITIONS_SORTED,
    XM_POSITIONS_RUNS
} xm_positions_kind_t;

typedef struct xm_positions {
    xm_positions_kind_t kind;
    const unsigned char *words; /* bits */
    int64_t range, next;        /* bits: positions in all, and the next to look at */
    int64_t left;               /* numbers that have not been read */
    xm_sorted_t first, sum;
    int64_t before; /* runs: positions before this one */
} xm_positions_t;

/** Bytes of @p changed positions in @p runs runs, of a range of @p range. */
size_t xm_positions_bytes(xm_positions_kind_t kind, int64_t range, int64_t changed, int64_t runs);

/** Reads positions from that many bytes. */
void xm_positions_open(xm_positions_t *positions, xm_positions_kind_t kind, const void *bytes,
                       int64_t range, int64_t changed, int64_t runs);

/** The next run: its first position and length. False: there is none. Bytes that are no set of
 *  positions give runs all the same; only those that lie in the range may be used. */
bool xm_positions_next(xm_positions_t *positions, int64_t *first, int64_t *length);

/** Writes the positions that @p bits has, as bits or runs; sorted ones are written with their
 * values, by who has those. */
void xm_positions_write(xm_positions_kind_t kind, const uint64_t *bits, int64_t range,
                        int64_t changed, int64_t runs, void *bytes);
