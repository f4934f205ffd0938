/**
 * @file token_slices.h
 * How to cut a sequence of tokens into slices for a terapipe schedule (Li et al., "TeraPipe:
 * Token-Level Pipeline Parallelism for Training Large-Scale Language Models", ICML'21,
 * section 3.3).
 *
 * A slice of l tokens after c others takes t(l, c) on each of K equal stages: later slices of one
 * length take longer, since attention looks at all tokens before. One sequence takes
 *
 *     T = sum t_i + (K - 1) max t_i
 *
 * The optimum is found exactly: for a limit on the longest slice a dynamic programme over the
 * tokens done finds the smallest sum; the next limit is just below the longest slice found, until
 * the smallest sum with the smallest possible longest slice cannot beat the best T.
 *
 * Units: nanoseconds. Threads: no shared state.
 */
#ifndef AP_PLANNER_TOKEN_SLICES_H
#define AP_PLANNER_TOKEN_SLICES_H

#include <stdint.h>

#include "comm/status.h"

/** Nanoseconds of a slice of @p length tokens after @p context others; not negative. */
typedef int64_t (*ap_slice_time_fn)(void *arg, int length, int context);

typedef struct ap_token_slices {
    int64_t latency_ns; /**< T */
    int64_t longest_ns; /**< largest t_i */
    int count;
    int *lengths; /**< tokens of each slice, in order; they add up to the sequence */
} ap_token_slices_t;

/**
 * The best slices of @p tokens tokens, each a multiple of @p granularity, which must divide them.
 */
xm_status_t ap_token_slices_find(int tokens, int granularity, int stages, ap_slice_time_fn time,
                                 void *arg, ap_token_slices_t *slices);

/** Frees what it owns. NULL and all-zero are accepted. */
void ap_token_slices_clear(ap_token_slices_t *slices);

#endif
