/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of positions as bits, as sorted numbers and as runs (positions.h has the codes). Numbers are
 * read and written through words of 64 bits that need not be aligned, least significant bits first;
 * both machines have the same order of bytes, as the tensors' elements must have.
 */
#include "resharding/delta/positions.h"

#include <string.h>

static inline uint64_t load(const unsigned char *bytes)
{
    uint64_t word;

    memcpy(&word, bytes, sizeof(word));
    return word;
}

/* The bits that a number has in `low`. */
static int low_bits(int64_t count, int64_t below)
{
    return count > 0 && below > count ? 63 - __builtin_clzll((uint64_t)(below / count)) : 0;
}

static size_t bytes_of(int64_t bits)
{
    return (size_t)(bits + 7) / 8;
}

size_t xm_sorted_bytes(int64_t count, int64_t below)
{
    int bits = low_bits(count, below);

    return bytes_of(count * bits) + bytes_of(count + (below >> bits) + 1);
}

void xm_sorted_open(xm_sorted_t *sorted, void *bytes, int64_t count, int64_t below)
{
    *sorted = (xm_sorted_t){.low = bytes, .bits = low_bits(count, below), .at = -64};
    sorted->high = sorted->low + bytes_of(count * sorted->bits);
    sorted->end = sorted->high + bytes_of(count + (below >> sorted->bits) + 1);
}

void xm_sorted_start(xm_sorted_t *sorted)
{
    memset(sorted->high, 0, (size_t)(sorted->end - sorted->high));
    sorted->at = 0;
}

/* What is left in the registers; not a byte more, as something else follows each part. */
void xm_sorted_finish(xm_sorted_t *sorted)
{
    size_t left = (size_t)(sorted->end - sorted->high) - (size_t)sorted->at / 8;

    memcpy(sorted->low, &sorted->lows, bytes_of(sorted->fill));
    memcpy(sorted->high + sorted->at / 8, &sorted->word, left < 8 ? left : 8);
}

int64_t xm_sorted_get(xm_sorted_t *sorted)
{
    uint64_t mask = (UINT64_C(1) << sorted->bits) - 1;
    int64_t place, at = sorted->count * sorted->bits;

    while (sorted->word == 0) {
        sorted->at += 64;
        if (sorted->high + sorted->at / 8 >= sorted->end) {
            return -1;
        }
        sorted->word = load(sorted->high + sorted->at / 8);
    }
    place = sorted->at + __builtin_ctzll(sorted->word);
    sorted->word &= sorted->word - 1;
    return ((place - sorted->count++) << sorted->bits) |
           (int64_t)(load(sorted->low + at / 8) >> (at % 8) & mask);
}

size_t xm_positions_bytes(xm_positions_kind_t kind, int64_t range, int64_t changed, int64_t runs)
{
    switch (kind) {
    case XM_POSITIONS_BITS:
        return bytes_of(range);
    case XM_POSITIONS_SORTED:
        return xm_sorted_bytes(changed, range);
    default:
        return xm_sorted_bytes(runs, range) + xm_sorted_bytes(runs, changed + 1);
    }
}

/* Opens the codes of sorted numbers that a kind has, for either end. */
static void open_codes(xm_positions_t *positions, xm_positions_kind_t kind, unsigned char *bytes,
                       int64_t range, int64_t changed, int64_t runs)
{
    *positions = (xm_positions_t){.kind = kind, .words = bytes, .range = range, .left = changed};
    if (kind == XM_POSITIONS_SORTED) {
        xm_sorted_open(&positions->first, bytes, changed, range);
    } else if (kind == XM_POSITIONS_RUNS) {
        positions->left = runs;
        xm_sorted_open(&positions->first, bytes, runs, range);
        xm_sorted_open(&positions->sum, bytes + xm_sorted_bytes(runs, range), runs, changed + 1);
    }
}

void xm_positions_open(xm_positions_t *positions, xm_positions_kind_t kind, const void *bytes,
                       int64_t range, int64_t changed, int64_t runs)
{
    open_codes(positions, kind, (unsigned char *)(uintptr_t)bytes, range, changed, runs);
}

/* The first position from `at` on whose bit is `set`; the range's end when there is none. */
static int64_t find_bit(const xm_positions_t *positions, int64_t at, bool set)
{
    while (at < positions->range) {
        uint64_t word = load(positions->words + at / 8);

        word = (set ? word : ~word) >> (at % 8);
        if (word != 0) {
            at += __builtin_ctzll(word);
            return at < positions->range ? at : positions->range;
        }
        at += 64 - at % 8;
    }
    return positions->range;
}

bool xm_positions_next(xm_positions_t *positions, int64_t *first, int64_t *length)
{
    int64_t sum;

    if (positions->kind == XM_POSITIONS_BITS) {
        *first = find_bit(positions, positions->next, true);
        positions->next = find_bit(positions, *first, false);
        *length = positions->next - *first;
        return *length > 0;
    }
    if (positions->left-- == 0) {
        return false;
    }
    *first = xm_sorted_get(&positions->first);
    *length = 1;
    if (positions->kind == XM_POSITIONS_RUNS) {
        sum = xm_sorted_get(&positions->sum);
        *length = sum - positions->before;
        positions->before = sum;
    }
    return *first >= 0 && *length > 0;
}

void xm_positions_write(xm_positions_kind_t kind, const uint64_t *bits, int64_t range,
                        int64_t changed, int64_t runs, void *bytes)
{
    xm_positions_t from, to;
    int64_t first, length, sum = 0;

    if (kind == XM_POSITIONS_BITS) {
        memcpy(bytes, bits, bytes_of(range));
        return;
    }
    xm_positions_open(&from, XM_POSITIONS_BITS, bits, range, changed, runs);
    open_codes(&to, kind, bytes, range, changed, runs);
    xm_sorted_start(&to.first);
    xm_sorted_start(&to.sum);
    while (xm_positions_next(&from, &first, &length)) {
        sum += length;
        xm_sorted_put(&to.first, first);
        xm_sorted_put(&to.sum, sum);
    }
    xm_sorted_finish(&to.first);
    xm_sorted_finish(&to.sum);
}
