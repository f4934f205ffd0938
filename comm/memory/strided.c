/* SPDX-License-Identifier: Apache-2.0 */
/* Strided copies: boxes of arrays with any strides, cut into rows of contiguous bytes.
 * Dimensions are merged first, so that what is contiguous on both sides becomes one row,
 * whatever shape the arrays have. A cursor hands out rows in order, and can begin and end
 * anywhere, because chunks of a transfer are ranges of elements that end in the middle of rows. */
#include "comm/memory/strided.h"

#include <string.h>

/* Merges neighbouring dimensions that are contiguous on both sides, and drops those of extent
 * 1. Afterwards the last dimension is always one of adjacent elements. */
void xm_strided_merge(xm_strided_copy_t *copy)
{
    int dims = 0;

    for (int d = 0; d < copy->dims; ++d) {
        int64_t extent = copy->extent[d];

        if (extent == 1) {
            continue;
        }
        if (dims > 0 && copy->from_stride[dims - 1] == copy->from_stride[d] * extent &&
            copy->to_stride[dims - 1] == copy->to_stride[d] * extent) {
            --dims;
            extent *= copy->extent[dims];
        }
        copy->extent[dims] = extent;
        copy->from_stride[dims] = copy->from_stride[d];
        copy->to_stride[dims++] = copy->to_stride[d];
    }
    if (dims == 0 || copy->from_stride[dims - 1] != copy->element_size ||
        copy->to_stride[dims - 1] != copy->element_size) {
        /* A single element, or a column on one side: rows of one element. */
        copy->extent[dims] = 1;
        copy->from_stride[dims] = copy->to_stride[dims] = copy->element_size;
        ++dims;
    }
    copy->dims = dims;
}

/* The largest power of two, up to 16 bytes, by which every address and length of the copy is
 * divisible: the unit in which a kernel can copy. */
int xm_strided_unit(const xm_strided_copy_t *copy)
{
    int last = copy->dims - 1;
    uint64_t bits = 16 | copy->from | copy->to;

    bits |= (uint64_t)(copy->extent[last] * copy->element_size);
    bits |= (uint64_t)(copy->first * copy->element_size);
    bits |= (uint64_t)(copy->count * copy->element_size);
    for (int d = 0; d < last; ++d) {
        bits |= (uint64_t)copy->from_stride[d] | (uint64_t)copy->to_stride[d];
    }
    return (int)(bits & -bits);
}

/* The range is given in elements; positions are bytes from here on. */
void xm_strided_begin(xm_strided_cursor_t *cursor, const xm_strided_copy_t *copy)
{
    cursor->copy = *copy;
    xm_strided_merge(&cursor->copy);
    cursor->row_bytes = cursor->copy.extent[cursor->copy.dims - 1] * copy->element_size;
    cursor->at = copy->first * copy->element_size;
    cursor->end = cursor->at + copy->count * copy->element_size;
}

/* Hands out the next rows: as many whole rows of equal distance as there are, or a part of one.
 * Returns 0 at the end. */
int xm_strided_next(xm_strided_cursor_t *cursor, xm_strided_rows_t *rows)
{
    const xm_strided_copy_t *copy = &cursor->copy;
    int64_t length = cursor->row_bytes, row = cursor->at / length, inside = cursor->at % length;
    int64_t left = cursor->end - cursor->at;
    int d = copy->dims - 2;

    if (left <= 0) {
        return 0;
    }
    rows->from = copy->from + (uint64_t)inside;
    rows->to = copy->to + (uint64_t)inside;
    rows->rows = 1;
    rows->bytes = length - inside < left ? length - inside : left;
    rows->from_pitch = rows->to_pitch = rows->bytes;
    if (rows->bytes == length && d >= 0) {
        int64_t whole = left / length, beside = copy->extent[d] - row % copy->extent[d];

        rows->rows = whole < beside ? whole : beside;
        if (rows->rows > 1) {
            rows->from_pitch = copy->from_stride[d];
            rows->to_pitch = copy->to_stride[d];
        }
    }
    for (; d >= 0; --d) {
        int64_t index = row % copy->extent[d];

        rows->from += (uint64_t)(index * copy->from_stride[d]);
        rows->to += (uint64_t)(index * copy->to_stride[d]);
        row /= copy->extent[d];
    }
    cursor->at += rows->bytes * rows->rows;
    return 1;
}

/* Copies on the host, row by row; memcpy() is fastest on long rows, which merging provides. */
void xm_strided_run(const xm_strided_copy_t *copy)
{
    xm_strided_cursor_t cursor;
    xm_strided_rows_t rows;

    xm_strided_begin(&cursor, copy);
    while (xm_strided_next(&cursor, &rows)) {
        for (int64_t r = 0; r < rows.rows; ++r) {
            memcpy((char *)(uintptr_t)rows.to + r * rows.to_pitch,
                   (const char *)(uintptr_t)rows.from + r * rows.from_pitch, (size_t)rows.bytes);
        }
    }
}
