#include "resharding/execute_private.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comm/config.h"

enum {
    MAX_WINDOW = 64,
    MAX_CHANNEL = 255,
    RECEIVE_AHEAD = 2,            /* receives are posted this many windows ahead */
    RING_LIMIT = 8 * 1024 * 1024, /* bytes of pack buffers per peer and direction */
    DRAIN_ROUNDS = 1000000 /* progress calls a destroyed executor grants its cancelled operations */
};

static void chunk_done(xm_op_t *op, xm_status_t status)
{
    slot_t *slot = op->arg;

    slot->busy = false;
    slot->status = status;
}

static xm_status_t check_buffer(const char *what, int rank, const void *buffer, uint64_t bytes,
                                uint64_t needed)
{
    if (bytes < needed) {
        return xm_error_set(XM_ERR_BUFFER_TOO_SMALL,
                            "rank %d: the %s buffer has %" PRIu64 " bytes, its tile needs %" PRIu64,
                            rank, what, bytes, needed);
    }
    if (buffer == NULL && needed > 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "rank %d: the %s buffer is NULL", rank, what);
    }
    return XM_OK;
}

static xm_status_t check_params(const xm_executor_params_t *params, uint64_t src_needed,
                                uint64_t dst_needed)
{
    int rank = params->transport->rank;
    const char *src = params->src, *dst = params->dst;
    xm_status_t status;

    if (params->window < 0 || params->window > MAX_WINDOW || params->channel < 0 ||
        params->channel > MAX_CHANNEL) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "window %d is outside 0 … %d, or channel %d outside 0 … %d",
                            params->window, MAX_WINDOW, params->channel, MAX_CHANNEL);
    }
    status = check_buffer("source", rank, src, params->src_bytes, src_needed);
    if (status == XM_OK) {
        status = check_buffer("destination", rank, dst, params->dst_bytes, dst_needed);
    }
    if (status == XM_OK && src_needed > 0 && dst_needed > 0 && src < dst + dst_needed &&
        dst < src + src_needed) {
        status = xm_error_set(XM_ERR_INVALID_ARGUMENT,
                              "rank %d: the source and destination buffers overlap", rank);
    }
    return status;
}

/* Fills in one local transfer; `index_of` maps the plan's transfers to this rank's incoming ones.
 */
static void init_local(xm_executor_t *executor, local_t *local, int64_t index,
                       const int64_t *index_of)
{
    const xm_plan_t *plan = executor->plan;
    int64_t count;
    const xm_transfer_t *transfer = &xm_plan_transfers(plan, &count)[index];
    const xm_unit_task_t *task = &xm_plan_tasks(plan, &count)[transfer->task];
    bool outgoing = transfer->receiver != executor->transport->rank;
    xm_box_t tile;

    local->transfer = index;
    local->task = transfer->task;
    local->first_chunk = transfer->first_chunk;
    local->end_chunk = transfer->end_chunk;
    local->crosses = transfer->crosses;
    local->from_dst = outgoing && transfer->parent >= 0;
    local->parent = local->from_dst ? index_of[transfer->parent] : -1;
    if (outgoing && !local->from_dst) {
        xm_layout_tile_box(xm_plan_src(plan), task->src_tile, &tile);
    } else {
        xm_layout_tile_box(xm_plan_dst(plan), task->dst_tile, &tile);
    }
    xm_view_init(&local->view, &tile, &task->box, xm_plan_element_size(plan));
}

static xm_status_t list_locals(xm_executor_t *executor)
{
    int rank = executor->transport->rank;
    int64_t transfer_count, tasks, next = 0;
    const xm_transfer_t *transfers = xm_plan_transfers(executor->plan, &transfer_count);
    int64_t *index_of = malloc(((size_t)transfer_count + 1) * sizeof(*index_of));

    for (int64_t i = 0; i < transfer_count; ++i) {
        bool copy = transfers[i].sender == rank && transfers[i].receiver == rank;

        executor->local_count += transfers[i].sender == rank || transfers[i].receiver == rank;
        executor->copy_count += copy;
    }
    executor->locals = calloc((size_t)executor->local_count + 1, sizeof(*executor->locals));
    executor->copies = malloc(((size_t)executor->copy_count + 1) * sizeof(*executor->copies));
    executor->copy_views =
        malloc(((size_t)executor->copy_count + 1) * sizeof(*executor->copy_views));
    if (index_of == NULL || executor->locals == NULL || executor->copies == NULL ||
        executor->copy_views == NULL) {
        free(index_of);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the %" PRId64 " transfers of rank %d",
                            executor->local_count, rank);
    }
    executor->copy_count = 0;
    for (int64_t i = 0; i < transfer_count; ++i) {
        const xm_unit_task_t *task = &xm_plan_tasks(executor->plan, &tasks)[transfers[i].task];

        if (transfers[i].sender != rank && transfers[i].receiver != rank) {
            continue;
        }
        init_local(executor, &executor->locals[next], i, index_of);
        if (transfers[i].sender == transfers[i].receiver) {
            xm_box_t tile;

            xm_layout_tile_box(xm_plan_src(executor->plan), task->src_tile, &tile);
            xm_view_init(&executor->copy_views[executor->copy_count], &tile, &task->box,
                         xm_plan_element_size(executor->plan));
            executor->copies[executor->copy_count++] = next;
        }
        index_of[i] = next++;
    }
    free(index_of);
    return XM_OK;
}

/* Largest ring chunk a lane needs: 0 when all its boxes are flat in this rank's buffer. */
static int64_t ring_chunk(const xm_executor_t *executor, const lane_t *lane)
{
    int64_t largest = 0;

    for (int64_t i = 0; i < lane->item_count; ++i) {
        const local_t *local = &executor->locals[lane->items[i]];
        int64_t chunk = xm_plan_chunk_elements(executor->plan, local->task);

        if (!xm_view_is_flat(&local->view) && chunk > largest) {
            largest = chunk;
        }
    }
    return largest * xm_plan_element_size(executor->plan);
}

static xm_status_t prepare_lane(xm_executor_t *executor, lane_t *lane)
{
    int64_t chunk = ring_chunk(executor, lane);
    xm_status_t status = XM_OK;

    lane->slot_count = lane->outgoing ? executor->window : executor->window * RECEIVE_AHEAD;
    while (lane->slot_count > 1 && chunk * lane->slot_count > RING_LIMIT) {
        --lane->slot_count;
    }
    lane->slots = calloc((size_t)lane->slot_count, sizeof(*lane->slots));
    if (chunk > 0) {
        lane->ring = malloc((size_t)(chunk * lane->slot_count));
    }
    if (lane->slots == NULL || (chunk > 0 && lane->ring == NULL)) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d chunks of %" PRId64 " bytes",
                            lane->slot_count, chunk);
    }
    if (chunk > 0) {
        status =
            xm_transport_memory_register(executor->transport, lane->ring,
                                         (size_t)(chunk * lane->slot_count), &lane->ring_memory);
    }
    for (int i = 0; i < lane->slot_count; ++i) {
        slot_t *slot = &lane->slots[i];

        slot->ring = lane->ring != NULL ? lane->ring + chunk * i : NULL;
        slot->op.done = chunk_done;
        slot->op.arg = slot;
    }
    return status;
}

/* The other end of a local transfer, or −1 for a copy. */
static int other_end(const xm_executor_t *executor, const local_t *local, bool *outgoing)
{
    int64_t count;
    const xm_transfer_t *transfer = &xm_plan_transfers(executor->plan, &count)[local->transfer];

    *outgoing = transfer->sender == executor->transport->rank;
    if (transfer->sender == transfer->receiver) {
        return -1;
    }
    return *outgoing ? transfer->receiver : transfer->sender;
}

static xm_status_t make_lanes(xm_executor_t *executor)
{
    size_t ranks = (size_t)executor->transport->size;
    int *lane_of = malloc(2 * ranks * sizeof(int)); /* by peer: incoming, then outgoing */
    xm_status_t status = XM_OK;

    executor->lanes = calloc(2 * ranks, sizeof(*executor->lanes));
    if (lane_of == NULL || executor->lanes == NULL) {
        free(lane_of);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %zu peers", ranks);
    }
    memset(lane_of, -1, 2 * ranks * sizeof(int));
    for (int pass = 0; status == XM_OK && pass < 2; ++pass) {
        for (int64_t i = 0; i < executor->local_count; ++i) {
            bool outgoing;
            int peer = other_end(executor, &executor->locals[i], &outgoing), *index;
            lane_t *lane;

            if (peer < 0) {
                continue;
            }
            index = &lane_of[(outgoing ? ranks : 0) + (size_t)peer];
            if (*index < 0) {
                *index = executor->lane_count++;
                executor->lanes[*index] =
                    (lane_t){.executor = executor, .peer = peer, .outgoing = outgoing};
            }
            lane = &executor->lanes[*index];
            if (pass == 1) {
                lane->items[lane->next_item++] = i;
            } else {
                ++lane->item_count;
            }
        }
        for (int l = 0; status == XM_OK && pass == 0 && l < executor->lane_count; ++l) {
            lane_t *lane = &executor->lanes[l];

            lane->items = malloc((size_t)lane->item_count * sizeof(*lane->items));
            if (lane->items == NULL) {
                status = xm_error_set(XM_ERR_NO_MEMORY, "no memory for %" PRId64 " transfers",
                                      lane->item_count);
            }
        }
    }
    for (int l = 0; status == XM_OK && l < executor->lane_count; ++l) {
        status = prepare_lane(executor, &executor->lanes[l]);
    }
    free(lane_of);
    return status;
}

static xm_status_t register_buffers(xm_executor_t *executor, uint64_t src_bytes, uint64_t dst_bytes)
{
    xm_status_t status = XM_OK;

    if (executor->lane_count == 0) {
        return XM_OK;
    }
    if (src_bytes > 0) {
        status = xm_transport_memory_register(executor->transport, (void *)(uintptr_t)executor->src,
                                              src_bytes, &executor->src_memory);
    }
    if (status == XM_OK && dst_bytes > 0) {
        status = xm_transport_memory_register(executor->transport, executor->dst, dst_bytes,
                                              &executor->dst_memory);
    }
    return status;
}

xm_status_t xm_executor_create(const xm_executor_params_t *params, xm_executor_t **executor)
{
    const xm_plan_t *plan = params->plan;
    int rank = params->transport->rank;
    uint64_t src_needed =
        xm_layout_buffer_bytes(xm_plan_src(plan), rank, xm_plan_element_size(plan));
    uint64_t dst_needed =
        xm_layout_buffer_bytes(xm_plan_dst(plan), rank, xm_plan_element_size(plan));
    xm_executor_t *created;
    xm_status_t status;

    status = check_params(params, src_needed, dst_needed);
    if (status < 0) {
        return status;
    }
    created = calloc(1, sizeof(*created));
    if (created == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for an executor");
    }
    created->plan = plan;
    created->transport = params->transport;
    created->src = params->src;
    created->dst = params->dst;
    created->window = params->window > 0 ? params->window : xm_config_count(XM_CONFIG_WINDOW);
    created->channel = params->channel;
    status = list_locals(created);
    if (status == XM_OK) {
        status = make_lanes(created);
    }
    if (status == XM_OK) {
        status = register_buffers(created, src_needed, dst_needed);
    }
    if (status < 0) {
        xm_executor_destroy(created);
        return status;
    }
    *executor = created;
    return XM_OK;
}

static void deregister(const xm_executor_t *executor, xm_memory_t *memory)
{
    if (memory != NULL) {
        xm_transport_memory_deregister(executor->transport, memory);
    }
}

static bool drain(xm_executor_t *executor)
{
    for (int i = 0; i < DRAIN_ROUNDS; ++i) {
        if (xm_executor_advance(executor) != XM_IN_PROGRESS) {
            return true;
        }
        (void)xm_transport_progress(executor->transport);
    }
    return false;
}

void xm_executor_abandon(xm_executor_t *executor)
{
    xm_executor_cancel(executor);
    if (drain(executor)) {
        return;
    }
    for (int l = 0; l < executor->lane_count; ++l) {
        if (executor->lanes[l].in_flight > 0) {
            xm_transport_peer_failed(executor->transport, executor->lanes[l].peer);
        }
    }
    (void)drain(executor);
}

void xm_executor_destroy(xm_executor_t *executor)
{
    if (executor == NULL) {
        return;
    }
    xm_executor_abandon(executor);
    for (int l = 0; l < executor->lane_count; ++l) {
        deregister(executor, executor->lanes[l].ring_memory);
        free(executor->lanes[l].ring);
        free(executor->lanes[l].slots);
        free(executor->lanes[l].items);
    }
    deregister(executor, executor->dst_memory);
    deregister(executor, executor->src_memory);
    free(executor->lanes);
    free(executor->copy_views);
    free(executor->copies);
    free(executor->locals);
    free(executor);
}
