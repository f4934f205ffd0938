/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inner loop of an elimination: one row of a message, that is the minimum over the values of
 * the variable that goes, for all values of the last variable of the scope at once. A row and not a
 * cell at a time, because sums and minima of a row are vector operations.
 *
 * Most values never win. A value is left out when a lower bound on all its sums is above the
 * largest minimum found so far in the row, so the result is the same as if all had been looked at,
 * ties included.
 */

#include "planner/solver/elimination/row.h"

#include <math.h>
#include <string.h>

/* One build runs everywhere, but uses wide vectors where it finds them. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

/* Tells whether a source is the same all along the row: it does not mention the row's variable. */
static bool is_level(const ap_elimination_source_t *source, const ap_elimination_row_t *row)
{
    return row->last < 0 || source->strides[row->last] == 0;
}

static const double *cells_at(const ap_elimination_source_t *source, int value)
{
    return source->values + source->offset + (size_t)value * source->stride;
}

/* Takes one value of the variable that goes into a row, and returns the largest of the row's
 * minima. Values do not come in order, so of equal sums the lower number must win explicitly.
 * `winner` holds numbers as doubles, so that the comparison stays in the vector unit; they are
 * below 2^16 and exact. */
WIDE static double take_value(const ap_elimination_source_t *sources, int source_count, int value,
                              const ap_elimination_row_t *row)
{
    int width = row->width;
    double *restrict sum = row->sum, *restrict least = row->least, *restrict winner = row->winner;
    double number = value, largest = -HUGE_VAL, same = 0.0;
    int s = 0;

    /* Terms are added in the order of the sources, with the same rounding for every value; those
     * before the first that differs along the row once for all. */
    for (; s < source_count && is_level(&sources[s], row); ++s) {
        same += *cells_at(&sources[s], value);
    }
    for (int i = 0; i < width; ++i) {
        sum[i] = same;
    }
    for (; s < source_count; ++s) {
        const double *restrict from = cells_at(&sources[s], value);

        if (is_level(&sources[s], row)) {
            same = from[0];
            for (int i = 0; i < width; ++i) {
                sum[i] += same;
            }
        } else {
            for (int i = 0; i < width; ++i) {
                sum[i] += from[i];
            }
        }
    }
#pragma omp simd reduction(max : largest)
    for (int i = 0; i < width; ++i) {
        bool less = sum[i] < least[i] || (sum[i] == least[i] && number < winner[i]);

        least[i] = less ? sum[i] : least[i];
        winner[i] = less ? number : winner[i];
        largest = least[i] > largest ? least[i] : largest;
    }
    return largest;
}

/* A lower bound on all sums of the row for a value. It is added up in the same order from terms
 * that are not larger, and rounding keeps order, so it holds for the rounded sums as well. */
static double low_of(const ap_elimination_source_t *sources, int source_count, int value,
                     const ap_elimination_row_t *row)
{
    double low = 0.0;

    for (int s = 0; s < source_count; ++s) {
        size_t at = sources[s].offset + (size_t)value * sources[s].stride;

        low += sources[s].low == NULL ? sources[s].values[at]
                                      : sources[s].low[at / (size_t)row->width];
    }
    return low;
}

/* Begins with the winners of the row before, which make `largest` small, then takes the others in
 * order as far as they can win. A value whose bound equals `largest` is looked at, since it might
 * tie with a higher number. */
void ap_elimination_minimise(const ap_elimination_source_t *sources, int source_count, int size,
                             const uint16_t *before, const ap_elimination_row_t *row)
{
    double largest = HUGE_VAL;

    for (int i = 0; i < row->width; ++i) {
        row->least[i] = HUGE_VAL;
        row->winner[i] = 0.0;
    }
    memset(row->taken, 0, (size_t)size * sizeof(*row->taken));
    for (int i = 0; before != NULL && i < row->width; ++i) {
        if (!row->taken[before[i]]) {
            row->taken[before[i]] = true;
            largest = take_value(sources, source_count, before[i], row);
        }
    }
    for (int value = 0; value < size; ++value) {
        if (!row->taken[value] && !(low_of(sources, source_count, value, row) > largest)) {
            largest = take_value(sources, source_count, value, row);
        }
    }
}
