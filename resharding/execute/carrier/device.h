/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file resharding/execute/carrier/device.h
 * The CUDA device of an executor, as a service to the carriers: found and made at creation
 * (resharding/execute/carrier/device_create.c), it takes copies into its queues and tells when they
 * have been done (resharding/execute/carrier/device.c). Not installed.
 *
 * Where all memory is the host's, executor->device is NULL; functions that are given the executor
 * then do nothing, or say so.
 */
#pragma once

#include "resharding/execute/execute_private.h"

/* Neither direction, nor the copies inside the rank, hold up another. */
typedef enum { QUEUE_OUT, QUEUE_IN, QUEUE_COPY, QUEUES } queue_t;

struct device {
    xm_memory_space_t *space;
    bool direct; /* the transport takes device memory */
    bool only;   /* no tile is in host memory */
    bool shared; /* neighbours may copy out of its tiles */
    xm_memory_queue_t *queues[QUEUES];
    xm_memory_mark_t *start;  /* of the user's stream */
    bool started;             /* in this run: that has been reached, if it is waited for */
    xm_memory_mark_t **marks; /* of all slots */
    int mark_count;
    slot_t *pending; /* list: being packed, unpacked or copied */
    void *staging;
    char *bounce; /* pinned: for what goes between host and device */
    int64_t bounce_bytes;
};

static inline uint64_t xm_device_address(const void *address)
{
    return (uint64_t)(uintptr_t)address;
}

/* The sentence of a failure names the rank. */
static inline xm_status_t xm_device_on_rank(const xm_executor_t *executor, xm_status_t status)
{
    return status < 0 ? xm_error_prefix(status, "rank %d", executor->transport->rank) : status;
}

/* ---- resharding/execute/carrier/device_create.c
 * -------------------------------------------------------------------
 */

/* Recognises tiles on a device, and makes what runs with them need. */
xm_status_t xm_device_find(xm_executor_t *executor);
/* Makes pack buffers of that many bytes in all; NULL memory: the caller's task. */
xm_status_t xm_device_staging(xm_executor_t *executor, size_t bytes, char **memory);
/* Makes the bounce buffer large enough for an element. */
xm_status_t xm_device_need_bounce(device_t *device, int64_t element_size);
/* Pack buffers stay if the executor has given up a peer. */
void xm_device_destroy(xm_executor_t *executor);

/* ---- resharding/execute/carrier/device.c
 * --------------------------------------------------------------------------
 */

/* A run begins. Its work on the device follows what is in the stream now, if @p follows. */
xm_status_t xm_device_start(xm_executor_t *executor, bool follows, void *stream);
/* False while the transport and neighbours may not touch the tiles yet. */
bool xm_device_ready(const xm_executor_t *executor);

/* Puts a copy into a queue, and the mark behind it. */
xm_status_t xm_device_enqueue(device_t *device, queue_t queue, const xm_strided_copy_t *copy,
                              xm_memory_mark_t *mark);
/* The same for the slot's chunk, whose carrier is told by `moved`: XM_IN_PROGRESS, or a failure. */
xm_status_t xm_device_begin(slot_t *slot, queue_t queue, const xm_strided_copy_t *copy);

/* Looks at what has been done. */
void xm_device_poll(xm_executor_t *executor);
/* True while that has to be done again. */
bool xm_device_is_busy(const xm_executor_t *executor);

/* Waits for a range of a tile there and lends its bytes: at most *count elements, which it says. */
xm_status_t xm_device_read(xm_executor_t *executor, const xm_view_t *view, const void *tile,
                           int64_t first, int64_t *count, const char **bytes);
