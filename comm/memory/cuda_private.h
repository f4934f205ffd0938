/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/memory/cuda_private.h
 * The CUDA memory space, for the files it is made of: comm/memory/cuda.c (space, queues, marks),
 * comm/memory/cuda_share.c (other processes' memory), comm/memory/cuda_copy.c (strided copies). Not
 * installed.
 */
#pragma once

#include "comm/memory/memory.h"
#include "comm/memory/cuda_driver.h"
#include "comm/memory/cuda_kernel.h"
#include "comm/memory/strided.h"

/* An allocation of another process that is open here. */
typedef struct xm_cuda_opened xm_cuda_opened_t;
struct xm_cuda_opened {
    xm_cuda_opened_t *next;
    xm_memory_share_t share;
    uint64_t base;
};

enum { XM_CUDA_MODULES = 4 }; /* more than there are rooms with kernels */

typedef struct xm_cuda_space {
    xm_memory_space_t base;
    xm_cuda_driver_t driver;
    int device; /* the driver's handle of it */
    void *context;
    bool retained; /* the primary context, ours to release */
    struct {
        const unsigned char *image;
        void *module;
    } loaded[XM_CUDA_MODULES];
    void *kernels[XM_KERNEL_UNITS][XM_KERNEL_SHAPES];
    int multiprocessors;
    int64_t max_pitch; /* of the driver's two-dimensional copies */
    xm_cuda_opened_t *opened;
} xm_cuda_space_t;

typedef struct xm_cuda_queue {
    xm_memory_queue_t base;
    void *stream;
} xm_cuda_queue_t;

typedef struct xm_cuda_mark {
    xm_memory_mark_t base;
    void *event;
    bool set;
} xm_cuda_mark_t;

static inline xm_cuda_space_t *xm_cuda_space_of(xm_memory_space_t *space)
{
    return (xm_cuda_space_t *)space;
}

/* Makes the space's context this thread's; xm_cuda_leave() restores the one before. */
xm_status_t xm_cuda_enter(xm_cuda_space_t *space);
void xm_cuda_leave(xm_cuda_space_t *space);

/* The status of a result, with a sentence unless it is a success. */
xm_status_t xm_cuda_check(const xm_cuda_space_t *space, const char *what, int result);

/* comm/memory/cuda_copy.c; with the context entered */
void xm_cuda_load_kernels(xm_cuda_space_t *space);
xm_status_t xm_cuda_queue_copy(xm_memory_queue_t *queue, const xm_strided_copy_t *copy);
xm_status_t xm_cuda_queue_launch(xm_memory_queue_t *queue, const xm_memory_kernels_t *kernels,
                                 const char *name, void *args, int64_t items);

/* comm/memory/cuda_share.c */
xm_status_t xm_cuda_share(xm_memory_space_t *space, const void *address, xm_memory_share_t *share);
xm_status_t xm_cuda_open(xm_memory_space_t *space, const xm_memory_share_t *share, uint64_t bytes,
                         void **address);
void xm_cuda_close_all(xm_cuda_space_t *space); /* with the context entered */
