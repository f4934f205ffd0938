/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The times at which a memory limit must be checked, and who uses memory then. Private.
 *
 * A *row* is a kind of memory whose amount one choice decides; it is used over one or, where layers
 * are alike, several stretches of time. Only times at which something ends before anything new
 * begins can have the largest sum; of layers alike only those matter at which no other time has as
 * much or more of every row.
 */
#pragma once

#include <stdbool.h>

#include "comm/base.h"

typedef struct ap_shard_use {
    int row;
    int first, end; /* times [first, end) */
} ap_shard_use_t;

typedef struct ap_shard_span {
    int row, weight; /* so many uses of the row at once */
    int first, end;  /* of the times that were kept */
} ap_shard_span_t;

/*
 * `like` (two per time, or NULL): times that are likely to have as much as this one. Spans are
 * ordered by row and, within a row, by weight · length, largest first. The caller frees them.
 */
xm_status_t ap_shard_spans_find(const ap_shard_use_t *uses, int count, int rows, int times,
                                const int *like, ap_shard_span_t **spans, int *span_count);
