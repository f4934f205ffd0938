/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file strided.h
 * What whoever executes a strided copy (memory.h) needs to know of it: its rows, and what can be
 * moved at once. Not installed.
 */
#pragma once

#include "comm/memory/memory.h"

/* Equal rows with equal distances. */
typedef struct xm_strided_rows {
    uint64_t from, to;
    int64_t bytes; /* of a row */
    int64_t rows;
    int64_t from_pitch, to_pitch; /* from one row to the next; of a single row: its bytes */
} xm_strided_rows_t;

/* A place in the rows of a copy. */
typedef struct xm_strided_cursor {
    xm_strided_copy_t copy; /* with merged dimensions */
    int64_t row_bytes;
    int64_t at, end; /* bytes of the box in row-major order */
} xm_strided_cursor_t;

/* Merges the dimensions that are contiguous on both sides, and drops those of extent 1. */
void xm_strided_merge(xm_strided_copy_t *copy);

/* The largest power of two up to 16 that all addresses, strides, rows and ends of the range are
 * multiples of: what can be moved at once. */
int xm_strided_unit(const xm_strided_copy_t *copy);

/* Walks over the copy: xm_strided_next() gives the next rows until it returns 0. */
void xm_strided_begin(xm_strided_cursor_t *cursor, const xm_strided_copy_t *copy);
int xm_strided_next(xm_strided_cursor_t *cursor, xm_strided_rows_t *rows);

/* Copies in host memory. */
void xm_strided_run(const xm_strided_copy_t *copy);
