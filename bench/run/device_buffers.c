/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles on a CUDA device, laid out as their counterparts in host memory: same offsets, so
 * one copy up and one copy down move all tensors at once, and data are filled and checked
 * on the host.
 */
#include "bench/run/device_buffers.h"

#include <stdlib.h>

/* The bytes from the start of an allocation to the end of a tile in it; 0 for a tile
 * without bytes. */
static size_t end_of(const unsigned char *base, const void *tile, uint64_t bytes)
{
    return bytes > 0 ? (size_t)((const unsigned char *)tile - base) + (size_t)bytes : 0;
}

static void *same_place(void *base, const unsigned char *host_base, const void *host_tile)
{
    return host_tile != NULL ? (char *)base + ((const unsigned char *)host_tile - host_base) : NULL;
}

/* The device's allocations are as long as what the tiles use of the host's. */
static void measure(rb_device_buffers_t *made, int tensors)
{
    const rb_tile_buffers_t *host = made->host;

    for (int i = 0; i < tensors; ++i) {
        const xm_tensor_buffers_t *tensor = &host->tensors[i];
        size_t src_end = end_of(host->src, tensor->src, tensor->src_bytes);
        size_t dst_end = end_of(host->dst, tensor->dst, tensor->dst_bytes);

        made->src_bytes = src_end > made->src_bytes ? src_end : made->src_bytes;
        made->dst_bytes = dst_end > made->dst_bytes ? dst_end : made->dst_bytes;
    }
}

/* Ranks of a host take the devices in turn. Every failure names the rank and the option,
 * as the driver's own sentences say neither. */
xm_status_t rb_device_buffers_create(const rb_tile_buffers_t *host, int local,
                                     rb_device_buffers_t *buffers)
{
    int tensors = xm_plan_tensors(host->plan), devices = 0;
    rb_device_buffers_t made = {.host = host};
    xm_status_t status = xm_memory_cuda_count(&devices);

    if (status == XM_OK && devices == 0) {
        status = XM_UNSUPPORTED("no CUDA: the driver knows no device");
    }
    XM_THEN(status, xm_memory_cuda_create(local % devices, &made.space));
    if (status < 0) {
        return xm_error_prefix(status, "rank %d: --memory cuda", host->rank);
    }
    measure(&made, tensors);
    made.tensors = malloc((size_t)tensors * sizeof(*made.tensors));
    if (made.tensors == NULL) {
        status = XM_NO_MEMORY("%d tensors", tensors);
    }
    if (status == XM_OK && made.src_bytes > 0) {
        status = xm_memory_allocate(made.space, made.src_bytes, &made.src);
    }
    if (status == XM_OK && made.dst_bytes > 0) {
        status = xm_memory_allocate(made.space, made.dst_bytes, &made.dst);
    }
    if (status < 0) {
        rb_device_buffers_clear(&made);
        return xm_error_prefix(status, "rank %d: --memory cuda", host->rank);
    }
    for (int i = 0; i < tensors; ++i) {
        made.tensors[i] = host->tensors[i];
        made.tensors[i].src = same_place(made.src, host->src, host->tensors[i].src);
        made.tensors[i].dst = same_place(made.dst, host->dst, host->tensors[i].dst);
    }
    *buffers = made;
    return XM_OK;
}

/* The destination is uploaded too, with its poison, so that bytes that never arrive are
 * noticed. */
xm_status_t rb_device_buffers_upload(const rb_device_buffers_t *buffers)
{
    XM_TRY(xm_memory_copy(buffers->space, buffers->src, buffers->host->src, buffers->src_bytes));

    return xm_memory_copy(buffers->space, buffers->dst, buffers->host->dst, buffers->dst_bytes);
}

xm_status_t rb_device_buffers_download(const rb_device_buffers_t *buffers)
{
    return xm_memory_copy(buffers->space, buffers->host->dst, buffers->dst, buffers->dst_bytes);
}

void rb_device_buffers_clear(rb_device_buffers_t *buffers)
{
    if (buffers->space != NULL) {
        xm_memory_release(buffers->space, buffers->src);
        xm_memory_release(buffers->space, buffers->dst);
        xm_memory_space_destroy(buffers->space);
    }
    free(buffers->tensors);
    *buffers = (rb_device_buffers_t){0};
}
