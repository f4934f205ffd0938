/**
 * @file execute_device.h
 * The device side of an executor, for the files that make it (execute_device_create.c) and run it
 * (execute_device.c). Not installed.
 */
#ifndef XM_RESHARDING_EXECUTE_DEVICE_H
#define XM_RESHARDING_EXECUTE_DEVICE_H

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
    bool started;             /* in this run: that has been reached, if it is waited for */
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

/* The sentence of a failure names the rank. */
static inline xm_status_t xm_device_on_rank(const xm_executor_t *executor, xm_status_t status)
{
    return status < 0 ? xm_error_prefix(status, "rank %d", executor->transport->rank) : status;
}

/* Makes the bounce buffer large enough for an element. */
xm_status_t xm_device_need_bounce(device_t *device, int64_t element_size);

#endif
