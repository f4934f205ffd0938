/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file encoding.h
 * What has changed in a range of a box, as bytes: positions in the range and values. A receiver
 * has the same range in a tile of its own, where it writes the values. Not installed.
 *
 *     u8   kind: nothing, all values, or how positions are written (positions.h)
 *     u8   unused, 0; three times
 *     u32  elements that have changed
 *     u32  runs of them
 *     u8[] positions
 *     …    values, in the order of the range
 *
 * The kind is whichever takes the fewest bytes, so the whole never takes more than the range and
 * the 12 bytes before it; but an encoding that is cut out of others has no unchanged values, and
 * may take a bit an element besides. Integers are as the machine has them, as elements are.
 */
#pragma once

#include "resharding/layout.h"

/** Bytes that the encoding of so many elements may take, and those that writing and reading it may
 *  touch besides: what a buffer must have. */
size_t xm_encoding_limit(int64_t elements, int64_t element_size);

/** Bytes of an encoding in which so many elements have changed, in so many runs. */
size_t xm_encoding_bytes(int64_t elements, int64_t changed, int64_t runs, int64_t element_size);

/**
 * Writes what of the range [first, first + count) of a box has changed, and returns the bytes that
 * it takes. @p changed: a bit for each element of the tile, in the order of its buffer; NULL: all
 * have. @p scratch: room for xm_encoding_scratch() bytes, aligned as a word.
 */
size_t xm_encoding_write(const xm_view_t *view, const void *tile, const uint64_t *changed,
                         int64_t first, int64_t count, void *scratch, void *bytes);
size_t xm_encoding_scratch(int64_t elements);

/**
 * Writes the values into a tile. False: the bytes are no encoding of such a range; the tile then
 * holds a part of it, and nothing beyond the range has been written.
 */
bool xm_encoding_apply(const xm_view_t *view, void *tile, int64_t first, int64_t count,
                       const void *bytes, size_t length);

/** Sets the bits of the elements of a tile that applying an encoding has written. */
void xm_encoding_mark(const xm_view_t *view, int64_t first, int64_t count, const void *bytes,
                      size_t length, uint64_t *bits);

/** An encoding of the range [first, first + count) of a box. */
typedef struct xm_encoded_range {
    const void *bytes;
    size_t length;
    int64_t first, count;
} xm_encoded_range_t;

/**
 * Writes the encoding of a range [first, first + count) that others cover, which follow each other,
 * and returns its bytes; 0: one of them is none. @p scratch as for xm_encoding_write().
 */
size_t xm_encoding_cut(const xm_encoded_range_t *ranges, int64_t first, int64_t count,
                       int64_t element_size, void *scratch, void *bytes);

/** Elements that an encoding changes; -1: it is none of so many elements of that size. */
int64_t xm_encoding_changed(const void *bytes, size_t length, int64_t count, int64_t element_size);
