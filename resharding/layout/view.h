/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file view.h
 * A box seen inside the buffer of a tile: where its elements lie, and how to pack, unpack and copy
 * ranges of them. Not installed.
 *
 * The elements of the box are numbered row-major from 0; a range [first, first + count) of them is
 * what a chunk is. Dimensions that are contiguous in the tile are merged, so the innermost extent
 * is the longest run of bytes that can be moved at once.
 */
#pragma once

#include <stdbool.h>
#include <string.h>

#include "comm/memory.h"
#include "resharding/layout/box.h"

typedef struct xm_view {
    int dims;                    /* at least 1; the last has stride 1 element */
    int64_t extent[XM_MAX_DIMS]; /* of the box, after merging */
    int64_t stride[XM_MAX_DIMS]; /* in the tile, bytes */
    int64_t origin;              /* byte offset of the box's first element in the tile's buffer */
    int64_t element_size;
} xm_view_t;

/** A position in a box, for walks along its runs: what lies in one piece in the tile. */
typedef struct xm_cursor {
    const xm_view_t *view;
    int64_t index[XM_MAX_DIMS];
    int64_t offset; /* of the current element in the tile's buffer, bytes */
} xm_cursor_t;

/** The position of an element by its number in the box, row-major. */
void xm_cursor_set(xm_cursor_t *cursor, const xm_view_t *view, int64_t first);

/** The number of elements from here to the end of the innermost run. */
static inline int64_t xm_cursor_run(const xm_cursor_t *cursor)
{
    int last = cursor->view->dims - 1;

    return cursor->view->extent[last] - cursor->index[last];
}

/** Moves forward by at most the rest of the run. */
void xm_cursor_advance(xm_cursor_t *cursor, int64_t count);

/** Copies a run. Short ones get constant sizes here, so that the compiler makes plain loads and
 * stores of them instead of calls; columns of single elements are the case that matters. */
static inline void xm_copy_run(char *to, const char *from, int64_t bytes)
{
    switch (bytes) {
    case 1:
        *to = *from;
        break;
    case 2:
        memcpy(to, from, 2);
        break;
    case 4:
        memcpy(to, from, 4);
        break;
    case 8:
        memcpy(to, from, 8);
        break;
    case 16:
        memcpy(to, from, 16);
        break;
    default:
        memcpy(to, from, (size_t)bytes);
        break;
    }
}

/** Describes non-empty @p box inside @p tile, which contains it. */
void xm_view_init(xm_view_t *view, const xm_box_t *tile, const xm_box_t *box, int64_t element_size);

/** True when the range lies in one piece in the tile; then *offset is its byte offset in the
 * buffer. */
bool xm_view_contiguous(const xm_view_t *view, int64_t first, int64_t count, int64_t *offset);

/** True when every range of the box is in one piece. */
bool xm_view_is_flat(const xm_view_t *view);

/**
 * True when every chunk is in one piece of a box's range that starts at element @p first and is cut
 * into pieces of @p chunk elements.
 */
bool xm_view_chunks_contiguous(const xm_view_t *view, int64_t first, int64_t chunk);

/** Copies a range of the box from the tile's buffer to @p packed (count × element_size bytes). */
void xm_view_pack(const xm_view_t *view, const void *buffer, int64_t first, int64_t count,
                  void *packed);

/** Copies a packed range into the tile's buffer. */
void xm_view_unpack(const xm_view_t *view, void *buffer, int64_t first, int64_t count,
                    const void *packed);

/** Copies a range of the same box from one tile's buffer to another's. */
void xm_view_copy(const xm_view_t *from, const void *from_buffer, const xm_view_t *to,
                  void *to_buffer, int64_t first, int64_t count);

/** The same for a part of what is too long for any cache (stream_copy.h). */
void xm_view_stream(const xm_view_t *from, const void *from_buffer, const xm_view_t *to,
                    void *to_buffer, int64_t first, int64_t count);

/**
 * The same three as copies that whoever has the memory executes. @p from and @p to are the
 * addresses of the tiles' buffers or of the packed range.
 */
void xm_view_pack_copy(const xm_view_t *view, uint64_t from, int64_t first, int64_t count,
                       uint64_t to, xm_strided_copy_t *copy);
void xm_view_unpack_copy(const xm_view_t *view, uint64_t to, int64_t first, int64_t count,
                         uint64_t from, xm_strided_copy_t *copy);
void xm_view_tile_copy(const xm_view_t *from_view, uint64_t from, const xm_view_t *to_view,
                       uint64_t to, int64_t first, int64_t count, xm_strided_copy_t *copy);
