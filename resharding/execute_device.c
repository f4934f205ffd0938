/*
 * Tiles in the memory of a CUDA device (execute.h).
 *
 * A slot's chunk is packed before it is sent, or unpacked after it has come, by a copy in one of
 * the executor's queues, with a mark behind it. Such slots are pending until polling finds their
 * marks reached; nothing waits. There are three queues, so that neither direction nor the copies
 * inside the rank hold up another.
 */
#include "resharding/execute_device.h"

static uint64_t number_of(const void *address)
{
    return (uint64_t)(uintptr_t)address;
}

xm_status_t xm_executor_post_device(xm_executor_t *executor, bool follows, void *stream)
{
    device_t *device = executor->device;
    xm_status_t status = XM_OK;

    if (device == NULL) {
        return XM_OK;
    }
    device->copies_begun = device->copies_ended = 0;
    device->element = device->element_end = 0;
    device->started = !follows;
    if (follows) {
        status = xm_memory_mark_stream(device->start, stream);
        for (int q = 0; q < QUEUES && status == XM_OK; ++q) {
            status = xm_memory_queue_await(device->queues[q], device->start);
        }
    }
    return xm_device_on_rank(executor, status);
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
        return xm_device_on_rank(executor, status);
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

static void count_copy(const xm_executor_t *executor, const slot_t *slot)
{
    int64_t first, count;

    chunk_range(slot->hop, slot->chunk, &first, &count);
    xm_transport_count_copy(executor->transport, slot->lane->peer,
                            (size_t)(count * executor->tensors[slot->hop->tensor].element_size));
}

/* The chunk is packed, unpacked, or copied. After a failure it goes no further. */
static void continue_slot(xm_executor_t *executor, slot_t *slot, xm_status_t status)
{
    bool copied = slot->copying;

    slot->copying = false;
    if (status < 0) {
        xm_executor_fail(executor, xm_device_on_rank(executor, status));
    } else if (copied) {
        count_copy(executor, slot);
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
    ++executor->steps;
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
        ++executor->steps;
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
    if (status < 0) {
        /* The device is lost: nothing of it will end. */
        xm_executor_fail(executor, xm_device_on_rank(executor, status));
        device->copies_begun = device->copies_ended;
        return;
    }
    status = begin_copies(executor, device);
    if (status < 0) {
        /* What is in the queue ends first; if the device is lost, its marks say so. */
        xm_executor_fail(executor, xm_device_on_rank(executor, status));
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
    xm_status_t status = xm_device_need_bounce(device, view->element_size);

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
    return xm_device_on_rank(executor, status);
}
