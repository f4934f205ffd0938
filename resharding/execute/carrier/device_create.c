/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds out which tiles are on a CUDA device, by their addresses, and makes what runs with them
 * need: three queues, a mark for every slot, and the buffers by which chunks reach a transport that
 * knows no device memory. All of it at creation, because making any of it may wait for the device.
 */
#include <stdlib.h>

#include "comm/base.h"
#include "resharding/execute/carrier/device.h"

enum { BOUNCE = 1024 * 1024 }; /* bytes between host and device at a time */

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
            return XM_UNSUPPORTED(
                "rank %d: a tile of tensor %s is on CUDA device %d, one of tensor %s on device %d: "
                "all must be on one",
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
        status = XM_NO_MEMORY("the places of %zu tiles", count);
    } else {
        list_buffers(executor, buffers);
        xm_memory_recognise(buffers, count, places);
        status = note_places(executor, buffers, places, found);
    }
    free(places);
    free(buffers);
    return status;
}

static void mark_hops(xm_executor_t *executor, const device_t *device)
{
    for (int64_t i = 0; i < executor->hop_count; ++i) {
        hop_t *hop = &executor->hops[i];
        const tensor_t *tensor = &executor->tensors[hop->tensor];

        if (hop->lane < 0 || hop->forward != NULL) {
            continue;
        }
        hop->on_device = hop->in_dst ? tensor->dst_on_device : tensor->src_on_device;
        hop->staged = hop->on_device && !device->direct;
        hop->packs = hop->packs || hop->staged;
    }
}

static xm_status_t make_queues(device_t *device)
{
    XM_TRY(xm_memory_mark_create(device->space, &device->start));

    for (int q = 0; q < QUEUES; ++q) {
        XM_TRY(xm_memory_queue_create(device->space, &device->queues[q]));
    }
    return XM_OK;
}

static xm_status_t make_marks(xm_executor_t *executor, device_t *device)
{
    int count = 0;
    xm_status_t status = XM_OK;

    for (int l = 0; l < executor->lane_count; ++l) {
        count += executor->lanes[l].slot_count;
    }
    device->marks = calloc((size_t)count + 1, sizeof(*device->marks));
    XM_NEED_MEMORY(device->marks, "%d marks", count);
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

xm_status_t xm_device_need_bounce(device_t *device, int64_t element_size)
{
    int64_t bytes = element_size > BOUNCE ? element_size : BOUNCE;
    void *made = NULL;

    if (device->bounce_bytes < bytes) {
        XM_TRY(xm_memory_allocate_pinned(device->space, (size_t)bytes, &made));
        xm_memory_release_pinned(device->space, device->bounce);
        device->bounce = made;
        device->bounce_bytes = bytes;
    }
    return XM_OK;
}

xm_status_t xm_device_find(xm_executor_t *executor)
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
    XM_NEED_MEMORY(device, "a device's queues");
    executor->device = device; /* freed with the executor */
    device->only = found.only;
    device->direct = executor->transport->cuda &&
                     xm_config_choice(XM_CONFIG_CUDA) == XM_CUDA_AUTO &&
                     executor->verify != XM_VERIFY_CHUNK; /* the host hashes what travels */
    status = xm_memory_cuda_of(&found.place, &device->space);
    XM_THEN(status, make_queues(device));
    XM_THEN(status, make_marks(executor, device));
    if (status == XM_OK) {
        mark_hops(executor, device);
        xm_log_debug("rank %d: CUDA device %d: %s", executor->transport->rank,
                     device->space->device, xm_executor_device_path(executor));
    }
    return xm_device_on_rank(executor, status);
}

xm_status_t xm_device_staging(xm_executor_t *executor, size_t bytes, char **memory)
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
    return xm_device_on_rank(executor, status);
}

const char *xm_executor_device_path(const xm_executor_t *executor)
{
    static const char *const paths[2][2] = {
        {"pinned buffers, packed by the driver's copies", "pinned buffers, packed by kernels"},
        {"direct, packed by the driver's copies", "direct, packed by kernels"}};
    const device_t *device = executor->device;

    return device != NULL ? paths[device->direct][device->space->kernels] : "";
}

void xm_device_destroy(xm_executor_t *executor)
{
    device_t *device = executor->device;
    bool keeps = executor->gave_up;

    if (device == NULL) {
        return;
    }
    for (int q = 0; q < QUEUES; ++q) {
        xm_memory_queue_destroy(device->queues[q]);
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
    free(device);
    executor->device = NULL;
}
