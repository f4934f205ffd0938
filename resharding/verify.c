#include "resharding/plan_private.h"

#include <inttypes.h>
#include <stdlib.h>

/* A stretch of chunks of a task that one receiver gets. */
typedef struct {
    int64_t task, first, end;
    int receiver;
} delivery_t;

static int compare_deliveries(const void *a, const void *b)
{
    const delivery_t *x = a, *y = b;

    if (x->task != y->task) {
        return x->task < y->task ? -1 : 1;
    }
    if (x->receiver != y->receiver) {
        return x->receiver < y->receiver ? -1 : 1;
    }
    return (x->first > y->first) - (x->first < y->first);
}

static int compare_tiles(const void *a, const void *b)
{
    const xm_unit_task_t *x = *(const xm_unit_task_t *const *)a;
    const xm_unit_task_t *y = *(const xm_unit_task_t *const *)b;

    if (x->dst_tile != y->dst_tile) {
        return x->dst_tile < y->dst_tile ? -1 : 1;
    }
    return (x->src_tile > y->src_tile) - (x->src_tile < y->src_tile);
}

/* The task's box lies in both of its tiles. */
static xm_status_t verify_task(const xm_plan_t *plan, int64_t index)
{
    const xm_unit_task_t *task = &plan->tasks[index];
    xm_box_t src_box, dst_box;
    char text[128];

    if (task->src_tile < 0 || task->src_tile >= xm_layout_tiles(plan->src) || task->dst_tile < 0 ||
        task->dst_tile >= xm_layout_tiles(plan->dst)) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "task %" PRId64 " names tile %d → %d, which do not exist", index,
                            task->src_tile, task->dst_tile);
    }
    xm_layout_tile_box(plan->src, task->src_tile, &src_box);
    xm_layout_tile_box(plan->dst, task->dst_tile, &dst_box);
    if (task->elements < 1 || task->elements != xm_box_volume(&task->box) ||
        !xm_box_contains(&src_box, &task->box) || !xm_box_contains(&dst_box, &task->box)) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "task %" PRId64 ": box %s is not inside source tile %d and destination "
                            "tile %d",
                            index, xm_box_format(&task->box, text, sizeof(text)), task->src_tile,
                            task->dst_tile);
    }
    if (plan->chunk_elements[index] < 1 || plan->chunk_elements[index] > task->elements) {
        return xm_error_set(XM_ERR_CORRUPT, "task %" PRId64 " has chunks of %" PRId64 " elements",
                            index, plan->chunk_elements[index]);
    }
    return XM_OK;
}

/*
 * The tasks of a destination tile are disjoint and fill it: each lies in another source tile
 * (source tiles are disjoint), and the volumes add up.
 */
static xm_status_t verify_tiling(const xm_plan_t *plan)
{
    const xm_unit_task_t **order = malloc((size_t)(plan->task_count + 1) * sizeof(*order));
    int64_t at = 0;
    xm_status_t status = XM_OK;

    if (order == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory to verify %" PRId64 " tasks",
                            plan->task_count);
    }
    for (int64_t i = 0; i < plan->task_count; ++i) {
        order[i] = &plan->tasks[i];
    }
    qsort(order, (size_t)plan->task_count, sizeof(*order), compare_tiles);
    for (int tile = 0; status == XM_OK && tile < xm_layout_tiles(plan->dst); ++tile) {
        int64_t volume = 0;
        xm_box_t box;

        for (; at < plan->task_count && order[at]->dst_tile == tile; ++at) {
            volume += order[at]->elements;
            if (at > 0 && order[at - 1]->dst_tile == tile &&
                order[at - 1]->src_tile == order[at]->src_tile) {
                status = xm_error_set(XM_ERR_CORRUPT,
                                      "destination tile %d gets source tile %d from two tasks",
                                      tile, order[at]->src_tile);
                break;
            }
        }
        xm_layout_tile_box(plan->dst, tile, &box);
        if (status == XM_OK && volume != xm_box_volume(&box)) {
            status = xm_error_set(XM_ERR_CORRUPT,
                                  "the tasks of destination tile %d have %" PRId64
                                  " elements, the tile has %" PRId64,
                                  tile, volume, xm_box_volume(&box));
        }
    }
    free(order);
    return status;
}

/* The sender of a transfer has its chunks by the time it must send them. */
static xm_status_t verify_source(const xm_plan_t *plan, int64_t index)
{
    const xm_transfer_t *transfer = &plan->transfers[index], *parent;
    const xm_unit_task_t *task = &plan->tasks[transfer->task];

    if (transfer->parent < 0) {
        if (xm_layout_tile_of_rank(plan->src, transfer->sender) != task->src_tile) {
            return xm_error_set(XM_ERR_CORRUPT,
                                "transfer %" PRId64 ": rank %d does not hold source tile %d", index,
                                transfer->sender, task->src_tile);
        }
        return XM_OK;
    }
    if (transfer->parent >= index) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "transfer %" PRId64 " waits for transfer %" PRId64
                            ", which comes later",
                            index, transfer->parent);
    }
    parent = &plan->transfers[transfer->parent];
    if (parent->task != transfer->task || parent->receiver != transfer->sender ||
        parent->first_chunk > transfer->first_chunk || parent->end_chunk < transfer->end_chunk) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "transfer %" PRId64 " relays what transfer %" PRId64
                            " does not bring to rank %d",
                            index, transfer->parent, transfer->sender);
    }
    return XM_OK;
}

static xm_status_t verify_transfer(const xm_plan_t *plan, int64_t index)
{
    const xm_transfer_t *transfer = &plan->transfers[index];

    if (transfer->task < 0 || transfer->task >= plan->task_count || transfer->first_chunk < 0 ||
        transfer->end_chunk <= transfer->first_chunk ||
        transfer->end_chunk > xm_plan_chunks(plan, transfer->task)) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "transfer %" PRId64 " moves chunks %" PRId64 " … %" PRId64
                            " of task %" PRId64 ", which do not exist",
                            index, transfer->first_chunk, transfer->end_chunk, transfer->task);
    }
    if (xm_layout_tile_of_rank(plan->dst, transfer->receiver) !=
        plan->tasks[transfer->task].dst_tile) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "transfer %" PRId64 " sends task %" PRId64
                            " to rank %d, which does not need it",
                            index, transfer->task, transfer->receiver);
    }
    return verify_source(plan, index);
}

/* Every receiver of every task gets chunks 0 … n, each once. */
static xm_status_t verify_deliveries(const xm_plan_t *plan)
{
    delivery_t *deliveries = malloc((size_t)(plan->transfer_count + 1) * sizeof(*deliveries));
    int64_t at = 0, expected = 0;
    xm_status_t status = XM_OK;

    if (deliveries == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory to verify %" PRId64 " transfers",
                            plan->transfer_count);
    }
    for (int64_t i = 0; i < plan->transfer_count; ++i) {
        const xm_transfer_t *t = &plan->transfers[i];

        deliveries[i] = (delivery_t){t->task, t->first_chunk, t->end_chunk, t->receiver};
    }
    qsort(deliveries, (size_t)plan->transfer_count, sizeof(*deliveries), compare_deliveries);
    while (status == XM_OK && at < plan->transfer_count) {
        const delivery_t *d = &deliveries[at];
        int64_t next = 0;

        for (; at < plan->transfer_count && deliveries[at].task == d->task &&
               deliveries[at].receiver == d->receiver && deliveries[at].first == next;
             ++at) {
            next = deliveries[at].end;
        }
        if (next != xm_plan_chunks(plan, d->task) ||
            (at < plan->transfer_count && deliveries[at].task == d->task &&
             deliveries[at].receiver == d->receiver)) {
            status = xm_error_set(
                XM_ERR_CORRUPT, "rank %d does not get every chunk of task %" PRId64 " exactly once",
                d->receiver, d->task);
        }
        ++expected;
    }
    for (int64_t t = 0; t < plan->task_count; ++t) {
        int receivers;

        (void)xm_layout_replicas(plan->dst, plan->tasks[t].dst_tile, &receivers);
        expected -= receivers;
    }
    if (status == XM_OK && expected != 0) {
        status = xm_error_set(XM_ERR_CORRUPT, "%" PRId64 " deliveries are missing", -expected);
    }
    free(deliveries);
    return status;
}

xm_status_t xm_plan_verify(const xm_plan_t *plan)
{
    xm_status_t status = XM_OK;

    for (int64_t t = 0; status == XM_OK && t < plan->task_count; ++t) {
        status = verify_task(plan, t);
    }
    if (status == XM_OK) {
        status = verify_tiling(plan);
    }
    for (int64_t i = 0; status == XM_OK && i < plan->transfer_count; ++i) {
        status = verify_transfer(plan, i);
    }
    if (status == XM_OK) {
        status = verify_deliveries(plan);
    }
    return status;
}
