/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file device_buffers.h
 * The tiles of one rank in the memory of a CUDA device, laid out like those of tile_buffers.h,
 * which fill and check them by way of the host.
 */
#pragma once

#include "bench/run/tile_buffers.h"
#include "comm/memory.h"

typedef struct rb_device_buffers {
    xm_memory_space_t *space; /**< NULL: there are none */
    const rb_tile_buffers_t *host;
    void *src, *dst; /**< the allocations; NULL where the rank has no tile */
    size_t src_bytes, dst_bytes;
    xm_tensor_buffers_t *tensors; /**< by tensor of the plan, for the executor */
} rb_device_buffers_t;

/** On device @p local of this machine, counted round and round. @p host must outlive the object. */
xm_status_t rb_device_buffers_create(const rb_tile_buffers_t *host, int local,
                                     rb_device_buffers_t *buffers);
/** Copies source and destination tiles to the device. */
xm_status_t rb_device_buffers_upload(const rb_device_buffers_t *buffers);
/** Copies the destination tiles to the host. */
xm_status_t rb_device_buffers_download(const rb_device_buffers_t *buffers);
void rb_device_buffers_clear(rb_device_buffers_t *buffers);
