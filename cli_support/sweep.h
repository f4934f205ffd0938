/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file sweep.h
 * Sizes from one to another by a factor, as nccl-tests' -b 8 -e 128M -f 2 has them. Where --size or
 * --shape says what is moved, no sweep is given and its `from` stays 0.
 */
#pragma once

#include "cli_support/options.h"

enum { XM_SWEEP_MOST = 64 };

typedef struct xm_sweep {
    uint64_t from, to; /**< bytes; 0: not given */
    int factor;        /**< 0: not given, 2 */
} xm_sweep_t;

/** Rows of a table of options. */
#define XM_SWEEP_OPTIONS(sweep)                                                                    \
    XM_CLI_ROW("min-bytes", 'b', XM_CLI_BYTES, &(sweep)->from, "BYTES", 0, 0,                      \
               "Smallest size of a sweep, e.g. 8 or 64K."),                                        \
        XM_CLI_ROW("max-bytes", 'e', XM_CLI_BYTES, &(sweep)->to, "BYTES", 0, 0,                    \
                   "Largest size of the sweep, e.g. 128M."),                                       \
        XM_CLI_ROW("step-factor", 'f', XM_CLI_INT, &(sweep)->factor, "N", 2, 1 << 20,              \
                   "Each size is N times the one before (default 2).")

/** True when a sweep is given. */
bool xm_sweep_given(const xm_sweep_t *sweep);

/** Writes at most XM_SWEEP_MOST sizes. Fails where the smallest or the largest is missing. */
xm_status_t xm_sweep_sizes(const xm_sweep_t *sweep, uint64_t *sizes, int *count);
