/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves ranges of a box in and out of a tile's buffer. A view merges the dimensions that
 * are contiguous in the tile, so the innermost extent is the longest run that one copy
 * can move, and a box that is whole rows costs one memcpy(). Two views of one box, in
 * different tiles, are walked side by side to copy from tile to tile without packing.
 */
#include "resharding/layout/view.h"

#include <string.h>

#include "resharding/layout/stream_copy.h"

/* Shorter runs have too many ends for their length to be streamed. */
enum { STREAM_LEAST = 4096 };

/* Extents of 1 are dropped, since they never move the cursor, and a dimension joins the
 * one outside it when that one's stride is just its length. */
void xm_view_init(xm_view_t *view, const xm_box_t *tile, const xm_box_t *box, int64_t element_size)
{
    int64_t extent[XM_MAX_DIMS], stride[XM_MAX_DIMS], step = element_size;

    memset(view, 0, sizeof(*view));
    view->element_size = element_size;
    for (int d = box->dims - 1; d >= 0; --d) {
        extent[d] = box->hi[d] - box->lo[d];
        stride[d] = step;
        view->origin += (box->lo[d] - tile->lo[d]) * step;
        step *= tile->hi[d] - tile->lo[d];
    }
    for (int d = 0; d < box->dims; ++d) {
        int last = view->dims - 1;

        if (extent[d] == 1) {
            continue;
        }
        if (last >= 0 && view->stride[last] == stride[d] * extent[d]) {
            view->extent[last] *= extent[d];
            view->stride[last] = stride[d];
        } else {
            view->extent[view->dims] = extent[d];
            view->stride[view->dims++] = stride[d];
        }
    }
    if (view->dims == 0 || view->stride[view->dims - 1] != element_size) {
        /* A single element, or a column: rows of one element. */
        view->extent[view->dims] = 1;
        view->stride[view->dims++] = element_size;
    }
}

void xm_cursor_set(xm_cursor_t *cursor, const xm_view_t *view, int64_t first)
{
    cursor->view = view;
    cursor->offset = view->origin;
    for (int d = view->dims - 1; d >= 0; --d) {
        cursor->index[d] = first % view->extent[d];
        first /= view->extent[d];
        cursor->offset += cursor->index[d] * view->stride[d];
    }
}

/* Carries into the outer dimensions where a run ends. */
void xm_cursor_advance(xm_cursor_t *cursor, int64_t count)
{
    const xm_view_t *view = cursor->view;
    int d = view->dims - 1;

    cursor->index[d] += count;
    cursor->offset += count * view->stride[d];
    while (d > 0 && cursor->index[d] == view->extent[d]) {
        cursor->offset += view->stride[d - 1] - view->extent[d] * view->stride[d];
        cursor->index[d--] = 0;
        ++cursor->index[d];
    }
}

/* One dimension means one run. */
bool xm_view_is_flat(const xm_view_t *view)
{
    return view->dims == 1;
}

bool xm_view_contiguous(const xm_view_t *view, int64_t first, int64_t count, int64_t *offset)
{
    xm_cursor_t cursor;

    xm_cursor_set(&cursor, view, first);
    *offset = cursor.offset;
    return count <= xm_cursor_run(&cursor);
}

/* Sufficient, not exact: chunks that divide the run and start on a multiple never cross
 * its end. */
bool xm_view_chunks_contiguous(const xm_view_t *view, int64_t first, int64_t chunk)
{
    int64_t run = view->extent[view->dims - 1];

    return view->dims == 1 || (run % chunk == 0 && first % chunk == 0);
}

static int64_t min2(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void xm_view_pack(const xm_view_t *view, const void *buffer, int64_t first, int64_t count,
                  void *packed)
{
    xm_cursor_t cursor;
    char *to = packed;

    xm_cursor_set(&cursor, view, first);
    while (count > 0) {
        int64_t run = min2(xm_cursor_run(&cursor), count);

        xm_copy_run(to, (const char *)buffer + cursor.offset, run * view->element_size);
        to += run * view->element_size;
        count -= run;
        xm_cursor_advance(&cursor, run);
    }
}

void xm_view_unpack(const xm_view_t *view, void *buffer, int64_t first, int64_t count,
                    const void *packed)
{
    xm_cursor_t cursor;
    const char *from = packed;

    xm_cursor_set(&cursor, view, first);
    while (count > 0) {
        int64_t run = min2(xm_cursor_run(&cursor), count);

        xm_copy_run((char *)buffer + cursor.offset, from, run * view->element_size);
        from += run * view->element_size;
        count -= run;
        xm_cursor_advance(&cursor, run);
    }
}

/* Inlined into both callers so that `stream` is a constant in each. A run ends where
 * either side's does. */
static inline void copy_range(const xm_view_t *from, const void *from_buffer, const xm_view_t *to,
                              void *to_buffer, int64_t first, int64_t count, bool stream)
{
    xm_cursor_t source, target;

    xm_cursor_set(&source, from, first);
    xm_cursor_set(&target, to, first);
    while (count > 0) {
        int64_t run = min2(min2(xm_cursor_run(&source), xm_cursor_run(&target)), count);
        int64_t bytes = run * from->element_size;
        char *into = (char *)to_buffer + target.offset;
        const char *out_of = (const char *)from_buffer + source.offset;

        if (stream && bytes >= STREAM_LEAST) {
            xm_stream_copy(into, out_of, (size_t)bytes);
        } else {
            xm_copy_run(into, out_of, bytes);
        }
        count -= run;
        xm_cursor_advance(&source, run);
        xm_cursor_advance(&target, run);
    }
}

void xm_view_copy(const xm_view_t *from, const void *from_buffer, const xm_view_t *to,
                  void *to_buffer, int64_t first, int64_t count)
{
    copy_range(from, from_buffer, to, to_buffer, first, count, false);
}

void xm_view_stream(const xm_view_t *from, const void *from_buffer, const xm_view_t *to,
                    void *to_buffer, int64_t first, int64_t count)
{
    copy_range(from, from_buffer, to, to_buffer, first, count, true);
}

_Static_assert((int)XM_STRIDED_DIMS >= (int)XM_MAX_DIMS, "a view has too many dimensions to copy");

/*
 * Describes a view as a strided copy to a dense range; the caller sets the two addresses.
 * Packed data are numbered from the range's first element, hence the shift of the packed
 * address.
 */
static void describe(const xm_view_t *view, int64_t first, int64_t count, xm_strided_copy_t *copy)
{
    int64_t dense = view->element_size;

    *copy = (xm_strided_copy_t){
        .dims = view->dims, .element_size = view->element_size, .first = first, .count = count};
    for (int d = view->dims - 1; d >= 0; --d) {
        copy->extent[d] = view->extent[d];
        copy->from_stride[d] = view->stride[d];
        copy->to_stride[d] = dense;
        dense *= view->extent[d];
    }
}

void xm_view_pack_copy(const xm_view_t *view, uint64_t from, int64_t first, int64_t count,
                       uint64_t to, xm_strided_copy_t *copy)
{
    describe(view, first, count, copy);
    copy->from = from + (uint64_t)view->origin;
    copy->to = to - (uint64_t)(first * view->element_size);
}

/* The same with the two sides exchanged. */
void xm_view_unpack_copy(const xm_view_t *view, uint64_t to, int64_t first, int64_t count,
                         uint64_t from, xm_strided_copy_t *copy)
{
    describe(view, first, count, copy);
    for (int d = 0; d < copy->dims; ++d) {
        int64_t dense = copy->to_stride[d];

        copy->to_stride[d] = copy->from_stride[d];
        copy->from_stride[d] = dense;
    }
    copy->from = from - (uint64_t)(first * view->element_size);
    copy->to = to + (uint64_t)view->origin;
}

/* A walk over a view's dimensions from the innermost on. */
typedef struct {
    const xm_view_t *view;
    int d;
    int64_t left, stride; /* of the current dimension: what is not taken yet, and its stride */
} walk_t;

/* Goes on to the next dimension outwards when nothing of the current one is left. */
static void skip_ended(walk_t *walk)
{
    while (walk->left == 1 && walk->d > 0) {
        --walk->d;
        walk->left = walk->view->extent[walk->d];
        walk->stride = walk->view->stride[walk->d];
    }
}

static walk_t start_walk(const xm_view_t *view)
{
    int last = view->dims - 1;
    walk_t walk = {view, last, view->extent[last], view->stride[last]};

    skip_ended(&walk);
    return walk;
}

/* Takes the inner `extent` steps of the current dimension; what is left of it is strided
 * by them. */
static void take(walk_t *walk, int64_t extent)
{
    walk->left /= extent;
    walk->stride *= extent;
    skip_ended(walk);
}

/* Describes a copy between two tiles as common dimensions. Both views merge dimensions of
 * one box, so of two merged extents that begin at the same place one divides the other. */
void xm_view_tile_copy(const xm_view_t *from_view, uint64_t from, const xm_view_t *to_view,
                       uint64_t to, int64_t first, int64_t count, xm_strided_copy_t *copy)
{
    walk_t source = start_walk(from_view), target = start_walk(to_view);
    int64_t size = from_view->element_size, extent[XM_MAX_DIMS], strides[XM_MAX_DIMS][2];
    int dims = 0;

    /* One side has no run of elements, so the innermost dimension is single elements. */
    if (source.stride != size || target.stride != size) {
        extent[0] = 1;
        strides[0][0] = strides[0][1] = size;
        ++dims;
    }
    while (source.left > 1 && target.left > 1) {
        extent[dims] = min2(source.left, target.left);
        strides[dims][0] = source.stride;
        strides[dims][1] = target.stride;
        take(&source, extent[dims]);
        take(&target, extent[dims++]);
    }
    if (dims == 0) {
        extent[0] = 1;
        strides[0][0] = strides[0][1] = size;
        ++dims;
    }
    *copy = (xm_strided_copy_t){.from = from + (uint64_t)from_view->origin,
                                .to = to + (uint64_t)to_view->origin,
                                .dims = dims,
                                .element_size = size,
                                .first = first,
                                .count = count};
    for (int i = 0; i < dims; ++i) {
        copy->extent[dims - 1 - i] = extent[i];
        copy->from_stride[dims - 1 - i] = strides[i][0];
        copy->to_stride[dims - 1 - i] = strides[i][1];
    }
}
