/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verifier's first half: that the tasks of a plan are what source and destination tiles have
 * in common, and fill every destination tile of every tensor once.
 */
#include "resharding/plan/verify/tiles.h"

#include <inttypes.h>
#include <stdlib.h>

#include "comm/base.h"
#include "resharding/plan/plan_private.h"

/* By tensor, destination tile and source tile: the tasks of a tile come together, and
 * doubles side by side. */
static int compare_tiles(const void *a, const void *b)
{
    const xm_unit_task_t *x = a, *y = b;

    XM_ORDER_BY(x->tensor, y->tensor);
    XM_ORDER_BY(x->dst_tile, y->dst_tile);
    return xm_order(x->src_tile, y->src_tile);
}

/* Checks that the task names tiles that exist and has the elements that they have in
 * common, in chunks of at least one and at most all of them. */
static xm_status_t verify_task(const xm_plan_t *plan, int64_t index)
{
    const xm_unit_task_t one = xm_plan_task(plan, index), *task = &one;
    const xm_planned_tensor_t *tensor;
    xm_box_t src, dst, common;
    int64_t volume, chunk = xm_plan_chunk_elements(plan, index);

    if (task->tensor < 0 || task->tensor >= plan->tensor_count) {
        return xm_error_set(XM_ERR_CORRUPT, "task %" PRId64 " names tensor %d of %d", index,
                            task->tensor, plan->tensor_count);
    }
    tensor = &plan->tensors[task->tensor];
    if (task->src_tile < 0 || task->src_tile >= xm_layout_tiles(tensor->src) ||
        task->dst_tile < 0 || task->dst_tile >= xm_layout_tiles(tensor->dst)) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "task %" PRId64 " names tile %d → %d, which do not exist", index,
                            task->src_tile, task->dst_tile);
    }
    xm_layout_tile_box(tensor->src, task->src_tile, &src);
    xm_layout_tile_box(tensor->dst, task->dst_tile, &dst);
    volume = xm_box_intersect(&src, &dst, &common) ? xm_box_volume(&common) : 0;
    if (task->elements < 1 || task->elements != volume) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "task %" PRId64 " has %" PRId64
                            " elements, but source tile %d and destination tile %d have %" PRId64
                            " in common",
                            index, task->elements, task->src_tile, task->dst_tile, volume);
    }
    if (chunk < 1 || chunk > task->elements) {
        return xm_error_set(XM_ERR_CORRUPT, "task %" PRId64 " has chunks of %" PRId64 " elements",
                            index, chunk);
    }
    return XM_OK;
}

/* The plan's tasks by tile: as they come, or sorted where they do not come in order. */
typedef struct {
    const xm_plan_t *plan;
    xm_unit_task_t *sorted; /* or NULL */
    int64_t at;
    xm_unit_task_t task; /* the one at `at` */
} tasks_by_tile_t;

static void go_to(tasks_by_tile_t *tasks, int64_t at)
{
    tasks->at = at;
    if (at < tasks->plan->task_count) {
        tasks->task = tasks->sorted != NULL ? tasks->sorted[at] : xm_plan_task(tasks->plan, at);
    }
}

/*
 * Checks that the tasks of a destination tile are disjoint and fill it: each lies in
 * another source tile, source tiles are disjoint, and the volumes add up.
 */
static xm_status_t verify_tile(tasks_by_tile_t *tasks, int index, int tile)
{
    const xm_planned_tensor_t *tensor = &tasks->plan->tensors[index];
    int64_t volume = 0;
    int before = -1;
    xm_box_t box;

    while (tasks->at < tasks->plan->task_count && tasks->task.tensor == index &&
           tasks->task.dst_tile == tile) {
        volume += tasks->task.elements;
        if (before == tasks->task.src_tile) {
            return xm_error_set(XM_ERR_CORRUPT,
                                "tensor %s: destination tile %d gets source tile %d from two tasks",
                                tensor->name, tile, before);
        }
        before = tasks->task.src_tile;
        go_to(tasks, tasks->at + 1);
    }
    xm_layout_tile_box(tensor->dst, tile, &box);
    if (volume != xm_box_volume(&box)) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "tensor %s: the tasks of destination tile %d have %" PRId64
                            " elements, the tile has %" PRId64,
                            tensor->name, tile, volume, xm_box_volume(&box));
    }
    return XM_OK;
}

static bool tasks_are_sorted(const xm_plan_t *plan)
{
    xm_unit_task_t before = plan->task_count > 0 ? xm_plan_task(plan, 0) : (xm_unit_task_t){0};

    for (int64_t t = 1; t < plan->task_count; ++t) {
        const xm_unit_task_t task = xm_plan_task(plan, t);

        if (compare_tiles(&before, &task) > 0) {
            return false;
        }
        before = task;
    }
    return true;
}

/* Checks all tiles, also those without tasks, which must be empty. Plans list their tasks
 * in order, so the sort is usually skipped. */
static xm_status_t verify_tiling(const xm_plan_t *plan)
{
    tasks_by_tile_t tasks = {.plan = plan};
    xm_status_t status = XM_OK;

    if (!tasks_are_sorted(plan)) {
        tasks.sorted = malloc((size_t)plan->task_count * sizeof(*tasks.sorted));
        XM_NEED_MEMORY(tasks.sorted, "verifying %" PRId64 " tasks", plan->task_count);
        for (int64_t t = 0; t < plan->task_count; ++t) {
            tasks.sorted[t] = xm_plan_task(plan, t);
        }
        qsort(tasks.sorted, (size_t)plan->task_count, sizeof(*tasks.sorted), compare_tiles);
    }
    go_to(&tasks, 0);
    for (int t = 0; status == XM_OK && t < plan->tensor_count; ++t) {
        for (int tile = 0; status == XM_OK && tile < xm_layout_tiles(plan->tensors[t].dst);
             ++tile) {
            status = verify_tile(&tasks, t, tile);
        }
    }
    free(tasks.sorted);
    return status;
}

/*
 * Checks the tasks of a regular plan, one for each pair of tiles. As each dimension is cut on one
 * side at most, what two tiles have in common is as long in it as the tile of that side; so where
 * the first tile of either side has equally much in common with all of the other, all pairs have.
 */
static xm_status_t verify_pairs(const xm_plan_t *plan)
{
    const xm_layout_t *src = plan->tensors->src, *dst = plan->tensors->dst;
    int64_t senders = xm_layout_tiles(src), receivers = xm_layout_tiles(dst);
    bool pairs = plan->tensor_count == 1 && plan->task_count == senders * receivers;
    xm_status_t status = XM_OK;
    xm_box_t box;

    for (int d = 0; d < xm_layout_dims(src); ++d) {
        pairs = pairs && (xm_layout_parts(src, d) == 1 || xm_layout_parts(dst, d) == 1);
    }
    for (int64_t s = 0; pairs && status == XM_OK && s < senders; ++s) {
        const xm_unit_task_t task = xm_plan_task(plan, s);

        pairs = task.src_tile == s && task.dst_tile == 0;
        status = verify_task(plan, s);
    }
    for (int64_t r = 0; pairs && status == XM_OK && r < receivers; ++r) {
        const xm_unit_task_t task = xm_plan_task(plan, r * senders);

        xm_layout_tile_box(dst, (int)r, &box);
        pairs = task.src_tile == 0 && task.dst_tile == r &&
                task.elements * senders == xm_box_volume(&box);
        status = verify_task(plan, r * senders);
    }
    return pairs || status < 0
               ? status
               : xm_error_set(XM_ERR_CORRUPT, "the tasks of a regular plan are not one for each "
                                              "pair of tiles, or do not fill these");
}

xm_status_t xm_verify_tasks(const xm_plan_t *plan)
{
    xm_status_t status = XM_OK;

    if (plan->regular != NULL) {
        return verify_pairs(plan);
    }

    for (int64_t t = 0; status == XM_OK && t < plan->task_count; ++t) {
        status = verify_task(plan, t);
    }
    return status < 0 ? status : verify_tiling(plan);
}
