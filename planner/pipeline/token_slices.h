/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/pipeline/token_slices.h
 * The lengths of the slices that a sequence is cut into for terapipe (Li, ICML'21), from measured
 * times of slices.
 *
 * A slice of l tokens behind c others takes a + b l + d l (c + l / 2): what a pass costs in any
 * case, what grows with the tokens, and attention to all tokens up to each. The three are fitted to
 * what was measured, by least squares of relative errors. On p stages the slices of m micro-batches
 * take m times their sum and p - 1 times the longest; the lengths with the least of that are found
 * exactly.
 *
 * Threads: no shared state. Not installed.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "comm/base.h"

typedef struct ap_token_slices {
    int stages, micro_batches; /**< that they are for */
    int count;
    double *part;                        /**< [count]: its tokens, of all */
    double *share;                       /**< [count]: its time, of that of all tokens at once */
    int *length;                         /**< [count]: tokens */
    double sum, longest, whole, seconds; /**< seconds: m sum + (p - 1) longest */
} ap_token_slices_t;

/**
 * Reads lines of "length context seconds"; '#' begins a comment. The longest sequence seen is cut,
 * into multiples of the shortest length. @p count 0: as many slices as are best, else so many equal
 * ones.
 */
xm_status_t ap_token_slices_load(const char *path, int stages, int micro_batches, int count,
                                 ap_token_slices_t *slices);

/** The best slices of so many tokens in multiples of @p unit, by these times a, b, d. The object
 * says for how many stages and micro-batches; all else in it is filled in. */
xm_status_t ap_token_slices_find(const double time[3], int tokens, int unit,
                                 ap_token_slices_t *slices);

/** NULL and an all-zero object are accepted. */
void ap_token_slices_clear(ap_token_slices_t *slices);
