/*
 * Tiles in the memory of a CUDA device (execute.h).
 *
 * A slot's chunk is packed before it is sent, or unpacked after it has come, by a copy in one of
 * the executor's queues, with a mark behind it. Such slots are pending until polling finds their
 * marks reached; nothing waits. There are three queues, so that neither direction nor the copies
 * inside the rank hold up another.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "comm/config.h"
#include "comm/log.h"
#include "resharding/execute_private.h"

enum {
    COPIES = 16,         /* of whole boxes inside the device, in its queue at a time */
    BOUNCE = 1024 * 1024 /* bytes between host and device at a time */
};

typedef enum { QUEUE_OUT, QUEUE_IN, QUEUE_COPY, QUEUES } queue_t;

/* A copy inside the rank that concerns the device. */
typedef struct {
    int64_t hop;
    xm_view_t from;
} device_copy_t;

struct device {
    xm_memory_space_t *space;
    bool direct; /* the transport takes device memory */
    bool only;   /* no tile is in host memory */
    xm_memory_queue_t *queues[QUEUES];
    xm_memory_mark_t *start;  /* of the user's stream */
    bool follows, started;    /* in this run: it has a start, which has been reached */
    xm_memory_mark_t **marks; /* of all slots */
    int mark_count;
    slot_t *pending; /* list: being packed or unpacked */
    void *staging;
    device_copy_t *copies;
    int64_t copy_count;
    int64_t copies_begun, copies_ended; /* in this run */
    int64_t element;                    /* of the oldest copy by way of the host: done so far */
    int64_t element_end;                /* …, in the bounce buffer */
    xm_memory_mark_t *copy_marks[COPIES];
    char *bounce; /* pinned */
    int64_t bounce_bytes;
};

/* ---- creation ---------------------------------------------------------------------------------
 */

static uint64_t number_of(const void *address)
{
    return (uint64_t)(uintptr_t)address;
}

/* The sentence of a failure names the rank. */
static xm_status_t on_rank(const xm_executor_t *executor, xm_status_t status)
{
    return status < 0 ? xm_error_prefix(status, "rank %d", executor->transport->rank) : status;
}

/* The buffers of all tensors, sources and destinations in turn; NULL where this rank has no tile.
 */
static void list_buffers(const xm_executor_t *executor, const void **buffers)
{
    int rank = executor->transport->rank;

    for (int t = 0; t < executor->tensor_count; ++t) {
        const tensor_t *tensor = &executor->tensors[t];
        const xm_layout_t *src = xm_plan_tensor_src(executor->plan, t);
        const xm_layout_t *dst = xm_plan_tensor_dst(executor->plan, t);

        buffers[2 * t] =
            xm_layout_buffer_bytes(src, rank, tensor->element_size) > 0 ? tensor->src : NULL;
        buffers[2 * t + 1] =
            xm_layout_buffer_bytes(dst, rank, tensor->element_size) > 0 ? tensor->dst : NULL;
    }
}

/* Where the tiles of a rank are. */
typedef struct {
    xm_memory_place_t place; /* of the first one on a device */
    int holder;              /* its tensor; -1: none is */
    bool only;               /* no other is the host's */
} whereabouts_t;

static xm_status_t note_places(xm_executor_t *executor, const void *const *buffers,
                               const xm_memory_place_t *places, whereabouts_t *found)
{
    *found = (whereabouts_t){.holder = -1, .only = true};
    for (int i = 0; i < 2 * executor->tensor_count; ++i) {
        tensor_t *tensor = &executor->tensors[i / 2];

        if (places[i].kind != XM_MEMORY_CUDA) {
            found->only = found->only && buffers[i] == NULL;
            continue;
        }
        if (i % 2 == 0) {
            tensor->src_on_device = true;
        } else {
            tensor->dst_on_device = true;
        }
        if (found->holder < 0) {
            found->place = places[i];
            found->holder = i / 2;
        } else if (places[i].device != found->place.device) {
            return xm_error_set(
                XM_ERR_UNSUPPORTED,
                "rank %d: a tile of tensor %s is on CUDA device %d, one of tensor "
                "%s on device %d: all must be on one",
                executor->transport->rank, xm_plan_tensor_name(executor->plan, found->holder),
                found->place.device, xm_plan_tensor_name(executor->plan, i / 2), places[i].device);
        }
    }
    return XM_OK;
}

static xm_status_t find_tiles(xm_executor_t *executor, whereabouts_t *found)
{
    size_t count = 2 * (size_t)executor->tensor_count;
    const void **buffers = malloc((count + 1) * sizeof(*buffers));
    xm_memory_place_t *places = malloc((count + 1) * sizeof(*places));
    xm_status_t status;

    if (buffers == NULL || places == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "no memory for the places of %zu tiles", count);
    } else {
        list_buffers(executor, buffers);
        xm_memory_recognise(buffers, count, places);
        status = note_places(executor, buffers, places, found);
    }
    free(places);
    free(buffers);
    return status;
}

/* Takes copies with a side on the device out of the executor's list. */
static xm_status_t take_copies(xm_executor_t *executor, device_t *device)
{
    int64_t kept = 0;

    device->copies = malloc(((size_t)executor->copy_count + 1) * sizeof(*device->copies));
    if (device->copies == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %" PRId64 " copies",
                            executor->copy_count);
    }
    for (int64_t i = 0; i < executor->copy_count; ++i) {
        int64_t hop = executor->copies[i];
        const tensor_t *tensor = &executor->tensors[executor->hops[hop].tensor];

        if (tensor->src_on_device || tensor->dst_on_device) {
            device->copies[device->copy_count++] = (device_copy_t){hop, executor->copy_views[i]};
        } else {
            executor->copies[kept] = hop;
            executor->copy_views[kept++] = executor->copy_views[i];
        }
    }
    executor->copy_count = kept;
    return XM_OK;
}

static void mark_hops(xm_executor_t *executor, const device_t *device)
{
    for (int64_t i = 0; i < executor->hop_count; ++i) {
        hop_t *hop = &executor->hops[i];
        const tensor_t *tensor = &executor->tensors[hop->tensor];
        bool sends = hop->lane >= 0 && lane_sends(&executor->lanes[hop->lane]);

        if (hop->lane < 0) {
            continue;
        }
        hop->on_device = sends && hop->feed < 0 ? tensor->src_on_device : tensor->dst_on_device;
        hop->staged = hop->on_device && !device->direct;
        hop->packs = hop->packs || hop->staged;
    }
}

static xm_status_t make_queues(device_t *device)
{
    xm_status_t status = xm_memory_mark_create(device->space, &device->start);

    for (int q = 0; q < QUEUES && status == XM_OK; ++q) {
        status = xm_memory_queue_create(device->space, &device->queues[q]);
    }
    for (int c = 0; c < COPIES && status == XM_OK && c < device->copy_count; ++c) {
        status = xm_memory_mark_create(device->space, &device->copy_marks[c]);
    }
    return status;
}

static xm_status_t make_marks(xm_executor_t *executor, device_t *device)
{
    int count = 0;
    xm_status_t status = XM_OK;

    for (int l = 0; l < executor->lane_count; ++l) {
        count += executor->lanes[l].slot_count;
    }
    device->marks = calloc((size_t)count + 1, sizeof(*device->marks));
    if (device->marks == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d marks", count);
    }
    for (int l = 0; l < executor->lane_count; ++l) {
        for (int s = 0; s < executor->lanes[l].slot_count && status == XM_OK; ++s) {
            xm_memory_mark_t **mark = &device->marks[device->mark_count];

            status = xm_memory_mark_create(device->space, mark);
            executor->lanes[l].slots[s].mark = *mark;
            device->mark_count += status == XM_OK;
        }
    }
    return status;
}

static xm_status_t need_bounce(device_t *device, int64_t element_size)
{
    int64_t bytes = element_size > BOUNCE ? element_size : BOUNCE;
    void *made = NULL;
    xm_status_t status = XM_OK;

    if (device->bounce_bytes < bytes) {
        status = xm_memory_allocate_pinned(device->space, (size_t)bytes, &made);
        if (status == XM_OK) {
            xm_memory_release_pinned(device->space, device->bounce);
            device->bounce = made;
            device->bounce_bytes = bytes;
        }
    }
    return status;
}

/* Copies between host and device go by a buffer. */
static xm_status_t make_bounce(const xm_executor_t *executor, device_t *device)
{
    xm_status_t status = XM_OK;

    for (int64_t i = 0; i < device->copy_count && status == XM_OK; ++i) {
        const tensor_t *tensor = &executor->tensors[executor->hops[device->copies[i].hop].tensor];

        if (tensor->src_on_device != tensor->dst_on_device) {
            status = need_bounce(device, tensor->element_size);
        }
    }
    return status;
}

xm_status_t xm_executor_find_device(xm_executor_t *executor)
{
    whereabouts_t found;
    device_t *device;
    xm_status_t status;

    if (executor->no_copy || xm_config_choice(XM_CONFIG_CUDA) == XM_CUDA_OFF) {
        return XM_OK;
    }
    status = find_tiles(executor, &found);
    if (status < 0 || found.holder < 0) {
        return status;
    }
    device = calloc(1, sizeof(*device));
    if (device == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a device's queues");
    }
    executor->device = device; /* freed with the executor */
    device->only = found.only;
    device->direct = executor->transport->cuda && xm_config_choice(XM_CONFIG_CUDA) == XM_CUDA_AUTO;
    status = xm_memory_cuda_of(&found.place, &device->space);
    if (status == XM_OK) {
        status = take_copies(executor, device);
    }
    if (status == XM_OK) {
        status = make_queues(device);
    }
    if (status == XM_OK) {
        status = make_marks(executor, device);
    }
    if (status == XM_OK) {
        status = make_bounce(executor, device);
    }
    if (status == XM_OK) {
        mark_hops(executor, device);
        xm_log_debug("rank %d: CUDA device %d: %s", executor->transport->rank,
                     device->space->device, xm_executor_device_path(executor));
    }
    return on_rank(executor, status);
}

xm_status_t xm_executor_device_staging(xm_executor_t *executor, size_t bytes, char **memory)
{
    device_t *device = executor->device;
    xm_status_t status;

    *memory = NULL;
    if (device == NULL) {
        return XM_OK;
    }
    /* Where tiles in host memory are packed too, the host must reach the buffers. */
    status = device->direct && device->only
                 ? xm_memory_allocate(device->space, bytes, &device->staging)
                 : xm_memory_allocate_pinned(device->space, bytes, &device->staging);
    *memory = device->staging;
    return on_rank(executor, status);
}

const char *xm_executor_device_path(const xm_executor_t *executor)
{
    static const char *const paths[2][2] = {
        {"pinned buffers, packed by the driver's copies", "pinned buffers, packed by kernels"},
        {"direct, packed by the driver's copies", "direct, packed by kernels"}};
    const device_t *device = executor->device;

    return device != NULL ? paths[device->direct][device->space->kernels] : "";
}

void xm_executor_free_device(xm_executor_t *executor, bool keeps)
{
    device_t *device = executor->device;

    if (device == NULL) {
        return;
    }
    for (int q = 0; q < QUEUES; ++q) {
        xm_memory_queue_destroy(device->queues[q]);
    }
    for (int c = 0; c < COPIES; ++c) {
        xm_memory_mark_destroy(device->copy_marks[c]);
    }
    for (int m = 0; m < device->mark_count; ++m) {
        xm_memory_mark_destroy(device->marks[m]);
    }
    xm_memory_mark_destroy(device->start);
    if (device->staging != NULL && !keeps) {
        if (device->direct && device->only) {
            xm_memory_release(device->space, device->staging);
        } else {
            xm_memory_release_pinned(device->space, device->staging);
        }
    }
    if (device->bounce != NULL) {
        xm_memory_release_pinned(device->space, device->bounce);
    }
    if (keeps) {
        xm_keep_for_ever(device->space); /* which the buffers belong to */
    } else {
        xm_memory_space_destroy(device->space);
    }
    free(device->marks);
    free(device->copies);
    free(device);
    executor->device = NULL;
}

/* ---- a run ------------------------------------------------------------------------------------
 */

xm_status_t xm_executor_post_device(xm_executor_t *executor, bool follows, void *stream)
{
    device_t *device = executor->device;
    xm_status_t status = XM_OK;

    if (device == NULL) {
        return XM_OK;
    }
    device->copies_begun = device->copies_ended = 0;
    device->element = device->element_end = 0;
    device->follows = follows;
    device->started = !follows;
    if (follows) {
        status = xm_memory_mark_stream(device->start, stream);
        for (int q = 0; q < QUEUES && status == XM_OK; ++q) {
            status = xm_memory_queue_await(device->queues[q], device->start);
        }
    }
    return on_rank(executor, status);
}

/* Work in queues follows the stream by itself; the transport and neighbours must be held back. */
bool xm_executor_device_ready(const xm_executor_t *executor)
{
    const device_t *device = executor->device;

    return device == NULL || device->started || (!device->direct && executor->share_count == 0);
}

static xm_status_t enqueue(device_t *device, queue_t queue, const xm_strided_copy_t *copy,
                           xm_memory_mark_t *mark)
{
    xm_status_t status = xm_memory_queue_copy(device->queues[queue], copy);

    return status == XM_OK ? xm_memory_mark_set(mark, device->queues[queue]) : status;
}

/* The slot is pending from now on. */
static xm_status_t begin(slot_t *slot, queue_t queue, const xm_strided_copy_t *copy)
{
    const xm_executor_t *executor = slot->lane->executor;
    device_t *device = executor->device;
    xm_status_t status = enqueue(device, queue, copy, slot->mark);

    if (status < 0) {
        return on_rank(executor, status);
    }
    slot->pending = device->pending;
    device->pending = slot;
    return XM_IN_PROGRESS;
}

xm_status_t xm_executor_pack_on_device(slot_t *slot)
{
    const hop_t *hop = slot->hop;
    const tensor_t *tensor = &slot->lane->executor->tensors[hop->tensor];
    int64_t first, count;
    xm_strided_copy_t copy;

    chunk_range(hop, slot->chunk, &first, &count);
    xm_view_pack_copy(&hop->view, number_of(hop->feed >= 0 ? tensor->dst : tensor->src), first,
                      count, number_of(slot->packed), &copy);
    return begin(slot, QUEUE_OUT, &copy);
}

xm_status_t xm_executor_unpack_on_device(slot_t *slot)
{
    const hop_t *hop = slot->hop;
    int64_t first, count;
    xm_strided_copy_t copy;

    chunk_range(hop, slot->chunk, &first, &count);
    xm_view_unpack_copy(&hop->view, number_of(slot->lane->executor->tensors[hop->tensor].dst),
                        first, count, number_of(slot->packed), &copy);
    return begin(slot, QUEUE_IN, &copy);
}

xm_status_t xm_executor_copy_from_peer(slot_t *slot)
{
    const hop_t *hop = slot->hop;
    int64_t first, count;
    xm_strided_copy_t copy;
    xm_status_t status;

    chunk_range(hop, slot->chunk, &first, &count);
    xm_view_tile_copy(&hop->peer_view, number_of(hop->peer_tile), &hop->view,
                      number_of(slot->lane->executor->tensors[hop->tensor].dst), first, count,
                      &copy);
    status = begin(slot, QUEUE_IN, &copy);
    slot->copying = status == XM_IN_PROGRESS;
    return status;
}

xm_memory_space_t *xm_executor_space(const xm_executor_t *executor)
{
    return executor->device != NULL ? executor->device->space : NULL;
}

/* The chunk is packed, unpacked, or copied. After a failure it goes no further. */
static void continue_slot(xm_executor_t *executor, slot_t *slot, xm_status_t status)
{
    bool copied = slot->copying;

    slot->copying = false;
    if (status < 0) {
        xm_executor_fail(executor, on_rank(executor, status));
    }
    if (executor->result == XM_OK && lane_sends(slot->lane)) {
        xm_executor_transmit(slot);
        return;
    }
    if (copied) {
        xm_executor_post_ack(slot); /* after a failure too: the peer's tile is not read any more */
        return;
    }
    slot->busy = false;
    slot->status = executor->result;
    xm_executor_list_ended(slot->lane);
}

static void poll_slots(xm_executor_t *executor, device_t *device)
{
    slot_t *slot = device->pending;

    device->pending = NULL;
    while (slot != NULL) {
        slot_t *next = slot->pending;
        xm_status_t status = xm_memory_mark_test(slot->mark);

        if (status == XM_IN_PROGRESS) {
            slot->pending = device->pending;
            device->pending = slot;
        } else {
            continue_slot(executor, slot, status);
        }
        slot = next;
    }
}

static const tensor_t *tensor_of(const xm_executor_t *executor, const device_copy_t *copy)
{
    return &executor->tensors[executor->hops[copy->hop].tensor];
}

static bool by_way_of_host(const xm_executor_t *executor, const device_copy_t *copy)
{
    const tensor_t *tensor = tensor_of(executor, copy);

    return tensor->src_on_device != tensor->dst_on_device;
}

static xm_memory_mark_t *mark_of(const device_t *device, int64_t copy)
{
    return device->copy_marks[copy % COPIES];
}

/* Starts the next slice of a copy between host and device. */
static xm_status_t begin_slice(xm_executor_t *executor, device_t *device, int64_t index)
{
    const device_copy_t *one = &device->copies[index];
    const hop_t *hop = &executor->hops[one->hop];
    const tensor_t *tensor = tensor_of(executor, one);
    int64_t first = hop->first + device->element;
    int64_t count = min_of(hop->end - first, device->bounce_bytes / tensor->element_size);
    xm_strided_copy_t copy;

    if (tensor->src_on_device) {
        xm_view_pack_copy(&one->from, number_of(tensor->src), first, count,
                          number_of(device->bounce), &copy);
    } else {
        xm_view_pack(&one->from, tensor->src, first, count, device->bounce);
        xm_view_unpack_copy(&hop->view, number_of(tensor->dst), first, count,
                            number_of(device->bounce), &copy);
    }
    device->element_end = device->element + count;
    return enqueue(device, QUEUE_COPY, &copy, mark_of(device, index));
}

static xm_status_t begin_copy(xm_executor_t *executor, device_t *device, int64_t index)
{
    const device_copy_t *one = &device->copies[index];
    hop_t *hop = &executor->hops[one->hop];
    const tensor_t *tensor = tensor_of(executor, one);
    xm_strided_copy_t copy;

    hop->span.start_ns = xm_transport_now(executor->transport);
    if (by_way_of_host(executor, one)) {
        device->element = 0;
        return begin_slice(executor, device, index);
    }
    xm_view_tile_copy(&one->from, number_of(tensor->src), &hop->view, number_of(tensor->dst),
                      hop->first, hop->end - hop->first, &copy);
    return enqueue(device, QUEUE_COPY, &copy, mark_of(device, index));
}

/* A slice is in the bounce buffer, or has been taken out of it. False: more are to come. */
static bool end_slice(xm_executor_t *executor, device_t *device, int64_t index, xm_status_t *status)
{
    const device_copy_t *one = &device->copies[index];
    const hop_t *hop = &executor->hops[one->hop];
    const tensor_t *tensor = tensor_of(executor, one);

    if (tensor->src_on_device) {
        xm_view_unpack(&hop->view, tensor->dst, hop->first + device->element,
                       device->element_end - device->element, device->bounce);
    }
    device->element = device->element_end;
    if (hop->first + device->element == hop->end) {
        return true;
    }
    *status = begin_slice(executor, device, index);
    return false;
}

/* Ends what has been copied, oldest first. */
static xm_status_t end_copies(xm_executor_t *executor, device_t *device)
{
    while (device->copies_ended < device->copies_begun) {
        int64_t index = device->copies_ended;
        xm_status_t status = xm_memory_mark_test(mark_of(device, index));

        if (status != XM_OK) {
            return status == XM_IN_PROGRESS ? XM_OK : status;
        }
        if (executor->result == XM_OK && by_way_of_host(executor, &device->copies[index]) &&
            !end_slice(executor, device, index, &status)) {
            return status;
        }
        ++device->copies_ended;
        if (executor->result == XM_OK) {
            xm_executor_end_hop(executor, &executor->hops[device->copies[index].hop]);
        }
    }
    return XM_OK;
}

/* Copies by way of the host have the bounce buffer, and so the queue, to themselves. */
static bool may_begin(const xm_executor_t *executor, const device_t *device)
{
    int64_t under_way = device->copies_begun - device->copies_ended;

    if (device->copies_begun == device->copy_count || under_way == COPIES) {
        return false;
    }
    return under_way == 0 || (!by_way_of_host(executor, &device->copies[device->copies_begun]) &&
                              !by_way_of_host(executor, &device->copies[device->copies_begun - 1]));
}

static xm_status_t begin_copies(xm_executor_t *executor, device_t *device)
{
    xm_status_t status = XM_OK;

    while (status == XM_OK && executor->result == XM_OK && may_begin(executor, device)) {
        status = begin_copy(executor, device, device->copies_begun);
        device->copies_begun += status == XM_OK;
    }
    return status;
}

void xm_executor_poll_device(xm_executor_t *executor)
{
    device_t *device = executor->device;
    xm_status_t status = XM_OK;

    if (device == NULL) {
        return;
    }
    if (!device->started) {
        status = xm_memory_mark_test(device->start);
        device->started = status != XM_IN_PROGRESS;
        status = status == XM_IN_PROGRESS ? XM_OK : status;
    }
    poll_slots(executor, device);
    if (status == XM_OK) {
        status = end_copies(executor, device);
    }
    if (status == XM_OK) {
        status = begin_copies(executor, device);
    }
    if (status < 0) {
        /* The device is lost: nothing of it will end. */
        xm_executor_fail(executor, on_rank(executor, status));
        device->copies_begun = device->copies_ended;
    }
}

bool xm_executor_device_is_busy(const xm_executor_t *executor)
{
    const device_t *device = executor->device;

    return device != NULL &&
           (device->pending != NULL || !device->started ||
            device->copies_ended < device->copies_begun ||
            (executor->result == XM_OK && device->copies_ended < device->copy_count));
}

xm_status_t xm_executor_read_device(xm_executor_t *executor, const xm_view_t *view,
                                    const void *tile, int64_t first, int64_t *count,
                                    const char **bytes)
{
    device_t *device = executor->device;
    xm_strided_copy_t copy;
    xm_status_t status = need_bounce(device, view->element_size);

    if (status == XM_OK) {
        *count = min_of(*count, device->bounce_bytes / view->element_size);
        xm_view_pack_copy(view, number_of(tile), first, *count, number_of(device->bounce), &copy);
        status = enqueue(device, QUEUE_OUT, &copy, device->start);
    }
    if (status == XM_OK) {
        do {
            status = xm_memory_mark_test(device->start);
        } while (status == XM_IN_PROGRESS);
    }
    *bytes = device->bounce;
    return on_rank(executor, status);
}
