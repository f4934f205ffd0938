/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles in the memory of a CUDA device (execute.h).
 *
 * A slot's chunk is packed before it is sent, unpacked after it has come, or copied out of a
 * neighbour's tile by a copy in one of the executor's queues, with a mark behind it. Such slots are
 * pending until polling finds their marks reached, and their carriers go on with them; nothing
 * waits.
 */
#include "resharding/execute/carrier.h"
#include "resharding/execute/carrier/device.h"

/* Nothing here waits for the stream: the queues await a mark in it, and polling sees it reached. */
xm_status_t xm_device_start(xm_executor_t *executor, bool follows, void *stream)
{
    device_t *device = executor->device;
    xm_status_t status = XM_OK;

    if (device == NULL) {
        return XM_OK;
    }
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
bool xm_device_ready(const xm_executor_t *executor)
{
    const device_t *device = executor->device;

    return device == NULL || device->started || (!device->direct && !device->shared);
}

xm_status_t xm_device_enqueue(device_t *device, queue_t queue, const xm_strided_copy_t *copy,
                              xm_memory_mark_t *mark)
{
    XM_TRY(xm_memory_queue_copy(device->queues[queue], copy));

    return xm_memory_mark_set(mark, device->queues[queue]);
}

xm_status_t xm_device_begin(slot_t *slot, queue_t queue, const xm_strided_copy_t *copy)
{
    const xm_executor_t *executor = slot->lane->executor;
    device_t *device = executor->device;
    xm_status_t status = xm_device_enqueue(device, queue, copy, slot->mark);

    if (status < 0) {
        return xm_device_on_rank(executor, status);
    }
    slot->pending = device->pending;
    device->pending = slot;
    return XM_IN_PROGRESS;
}

/* The list is taken whole, because a carrier may put its slot, or another one, into it again. */
static void poll_slots(device_t *device)
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
            slot->hop->carrier->moved(slot, status);
        }
        slot = next;
    }
}

void xm_device_poll(xm_executor_t *executor)
{
    device_t *device = executor->device;

    if (device == NULL) {
        return;
    }
    if (!device->started) {
        xm_status_t status = xm_memory_mark_test(device->start);

        device->started = status != XM_IN_PROGRESS;
        if (status < 0) {
            xm_executor_fail(executor, xm_device_on_rank(executor, status));
        }
    }
    poll_slots(device);
}

bool xm_device_is_busy(const xm_executor_t *executor)
{
    const device_t *device = executor->device;

    return device != NULL && (device->pending != NULL || !device->started);
}

xm_status_t xm_device_read(xm_executor_t *executor, const xm_view_t *view, const void *tile,
                           int64_t first, int64_t *count, const char **bytes)
{
    device_t *device = executor->device;
    xm_strided_copy_t copy;
    xm_status_t status = xm_device_need_bounce(device, view->element_size);

    if (status == XM_OK) {
        *count = min_of(*count, device->bounce_bytes / view->element_size);
        xm_view_pack_copy(view, xm_device_address(tile), first, *count,
                          xm_device_address(device->bounce), &copy);
        status = xm_device_enqueue(device, QUEUE_OUT, &copy, device->start);
    }
    /* After a run, so the mark of its start is free; the caller wants the bytes now. */
    if (status == XM_OK) {
        do {
            status = xm_memory_mark_test(device->start);
        } while (status == XM_IN_PROGRESS);
    }
    *bytes = device->bounce;
    return xm_device_on_rank(executor, status);
}
