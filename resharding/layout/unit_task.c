/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The decomposition of a resharding into unit tasks (MLSys'23, section 3.1): along each
 * dimension the cut points of source and destination are merged, and each box between
 * merged cuts has one source tile and one destination tile. Empty intervals are dropped
 * first, so the work is proportional to the tasks that exist and never to source tiles ×
 * destination tiles.
 */
#include "resharding/layout/unit_task.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* One interval of a dimension's merged cuts. */
typedef struct {
    int64_t lo, hi;
    int src_part, dst_part;
} interval_t;

typedef struct {
    interval_t *intervals;
    int count;
    int *first; /* of each destination part, in intervals; parts + 1 entries */
} axis_t;

/*
 * Merges the cuts of one dimension, dropping empty intervals. Both lists ascend, so one
 * pass is enough; the intervals of a destination part stand together, and `first` says
 * where.
 */
static xm_status_t refine(const xm_layout_t *src, const xm_layout_t *dst, int dim, axis_t *axis)
{
    int src_parts = xm_layout_parts(src, dim), dst_parts = xm_layout_parts(dst, dim);
    const int64_t *src_cuts = xm_layout_cuts(src, dim), *dst_cuts = xm_layout_cuts(dst, dim);
    int s = 0;

    axis->count = 0;
    axis->intervals = malloc((size_t)(src_parts + dst_parts) * sizeof(*axis->intervals));
    axis->first = malloc(((size_t)dst_parts + 1) * sizeof(*axis->first));
    XM_NEED_MEMORY(axis->intervals != NULL && axis->first != NULL, "refining dimension %d", dim);
    for (int d = 0; d < dst_parts; ++d) {
        int64_t at = dst_cuts[d];

        axis->first[d] = axis->count;
        while (at < dst_cuts[d + 1]) {
            int64_t end;

            /* Empty source parts end where they begin and are passed over here. */
            while (src_cuts[s + 1] <= at) {
                ++s;
            }
            end = src_cuts[s + 1] < dst_cuts[d + 1] ? src_cuts[s + 1] : dst_cuts[d + 1];
            axis->intervals[axis->count++] = (interval_t){at, end, s, d};
            at = end;
        }
    }
    axis->first[dst_parts] = axis->count;
    return XM_OK;
}

/* Layouts of different tensors are the most likely mistake of a caller, so the sentence
 * names dimension and extents. */
static xm_status_t check_same_tensor(const xm_layout_t *src, const xm_layout_t *dst)
{
    int dims = xm_layout_dims(src);

    if (dims != xm_layout_dims(dst)) {
        return XM_MISMATCH("the source layout is of a tensor with %d dimensions, the destination "
                           "layout of one with %d",
                           dims, xm_layout_dims(dst));
    }
    for (int d = 0; d < dims; ++d) {
        int64_t from = xm_layout_shape(src)[d], to = xm_layout_shape(dst)[d];

        if (from != to) {
            return XM_MISMATCH("dimension %d has %" PRId64
                               " elements in the source layout and %" PRId64
                               " in the destination layout",
                               d, from, to);
        }
    }
    return XM_OK;
}

/*
 * Lists the slices of one destination tile, source slices row-major. The intervals of
 * each dimension form an odometer; the volume and the source tile follow from the current
 * digits.
 */
static void list_tile(const xm_layout_t *src, const axis_t *axes, int dims, int tensor,
                      int dst_tile, const int *dst_part, xm_unit_task_t **next)
{
    int index[XM_MAX_DIMS];

    for (int d = 0; d < dims; ++d) {
        index[d] = axes[d].first[dst_part[d]];
        if (index[d] == axes[d].first[dst_part[d] + 1]) {
            return; /* an empty tile */
        }
    }
    for (;;) {
        xm_unit_task_t *task = (*next)++;
        int d;

        *task = (xm_unit_task_t){.tensor = tensor, .dst_tile = dst_tile, .elements = 1};
        for (d = 0; d < dims; ++d) {
            const interval_t *interval = &axes[d].intervals[index[d]];

            task->elements *= interval->hi - interval->lo;
            task->src_tile = task->src_tile * xm_layout_parts(src, d) + interval->src_part;
        }
        for (d = dims - 1; d >= 0; --d) {
            if (++index[d] < axes[d].first[dst_part[d] + 1]) {
                break;
            }
            index[d] = axes[d].first[dst_part[d]];
        }
        if (d < 0) {
            return;
        }
    }
}

/* Destination tiles in their order, which makes the list the paper's. */
static void list_all(const xm_layout_t *src, const xm_layout_t *dst, const axis_t *axes, int tensor,
                     xm_unit_task_t *tasks)
{
    int dims = xm_layout_dims(dst), dst_part[XM_MAX_DIMS];
    xm_unit_task_t *next = tasks;

    for (int tile = 0; tile < xm_layout_tiles(dst); ++tile) {
        for (int d = dims - 1, rest = tile; d >= 0; --d) {
            dst_part[d] = rest % xm_layout_parts(dst, d);
            rest /= xm_layout_parts(dst, d);
        }
        list_tile(src, axes, dims, tensor, tile, dst_part, &next);
    }
}

/* A task stores tiles and not its box; the box is their common part. */
void xm_unit_task_box(const xm_layout_t *src, const xm_layout_t *dst, const xm_unit_task_t *task,
                      xm_box_t *box)
{
    xm_box_t src_box, dst_box;

    xm_layout_tile_box(src, task->src_tile, &src_box);
    xm_layout_tile_box(dst, task->dst_tile, &dst_box);
    (void)xm_box_intersect(&src_box, &dst_box, box);
}

/* The count is known before anything is listed: the product of the intervals' numbers. An
 * empty tensor has no tasks and no array. */
xm_status_t xm_unit_tasks_create(const xm_layout_t *src, const xm_layout_t *dst, int tensor,
                                 xm_unit_task_t **tasks, int64_t *count)
{
    axis_t axes[XM_MAX_DIMS];
    int dims = xm_layout_dims(src);
    int64_t total = 1;
    xm_unit_task_t *created = NULL;
    xm_status_t status = XM_OK;

    XM_TRY(check_same_tensor(src, dst));
    memset(axes, 0, sizeof(axes));
    for (int d = 0; status == XM_OK && d < dims; ++d) {
        status = refine(src, dst, d, &axes[d]);
        total *= axes[d].count;
    }
    if (status == XM_OK && total > 0) {
        created = malloc((size_t)total * sizeof(*created));
        if (created == NULL) {
            status = XM_NO_MEMORY("%" PRId64 " unit tasks", total);
        }
    }
    if (status == XM_OK) {
        if (created != NULL) {
            list_all(src, dst, axes, tensor, created);
        }
        *tasks = created;
        *count = total;
    }
    for (int d = 0; d < dims; ++d) {
        free(axes[d].intervals);
        free(axes[d].first);
    }
    return status;
}
