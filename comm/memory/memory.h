/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file memory.h
 * Kinds of memory that tiles may lie in: the host's, and that of CUDA devices. One ops table, two
 * implementations.
 *
 * A *space* is the memory of one device (or the host's) as this process sees it: it allocates,
 * copies, and lets processes of the same machine open each other's allocations. A *queue* executes
 * strided copies in the order in which they were put there, while the caller does something else. A
 * *mark* is a point in a queue that can be polled. Nothing but destruction, xm_memory_copy() and
 * xm_memory_queue_finish() waits for the device.
 *
 * CUDA is the driver's interface, opened at run time: where there is no driver, or none that works,
 * xm_memory_cuda_create() says so, and nothing else changes. Strided copies are kernels; without
 * them (crossmesh was built without clang, or the device refuses them) they are the driver's
 * two-dimensional copies, which are slower for short rows.
 *
 * @code
 *     xm_memory_cuda_create(0, &space);
 *     xm_memory_allocate(space, bytes, &device);
 *     xm_memory_allocate_pinned(space, bytes, &pinned);
 *     xm_memory_queue_create(space, &queue);
 *     xm_memory_mark_create(space, &mark);
 *     xm_memory_queue_copy(queue, &copy);
 *     xm_memory_mark_set(mark, queue);
 *     while ((status = xm_memory_mark_test(mark)) == XM_IN_PROGRESS) { … }
 * @endcode
 *
 * Threads: one at a time per space, and whatever belongs to it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"

typedef enum xm_memory_kind { XM_MEMORY_HOST, XM_MEMORY_CUDA } xm_memory_kind_t;

/** What an address names. */
typedef struct xm_memory_place {
    xm_memory_kind_t kind;
    int device;    /**< CUDA's number of the device; host: -1 */
    void *context; /**< the CUDA context of the allocation; NULL: none in particular, and host */
    bool managed;  /**< CUDA moves it between host and device */
} xm_memory_place_t;

/** How another process of this machine may reach an address. Plain bytes, to be sent as they are.
 */
typedef struct xm_memory_share {
    uint64_t process[2]; /**< who shares */
    uint64_t address;    /**< there */
    uint64_t offset;     /**< of the address in its allocation */
    int64_t device;
    unsigned char handle[64]; /**< of the allocation */
} xm_memory_share_t;

enum { XM_STRIDED_DIMS = 12 };

/**
 * A copy between two boxes of equal extents, each with strides of its own; packing and unpacking
 * are the cases where one of them is dense. The elements of the box are numbered row-major from 0;
 * the range [first, first + count) of them is copied. Addresses are numbers because element 0 of a
 * packed range may lie before its buffer.
 */
typedef struct xm_strided_copy {
    uint64_t from, to; /**< of element 0 */
    int dims;          /**< at least 1 */
    int64_t extent[XM_STRIDED_DIMS];
    int64_t from_stride[XM_STRIDED_DIMS]; /**< bytes; the last one is element_size */
    int64_t to_stride[XM_STRIDED_DIMS];   /**< likewise */
    int64_t element_size;
    int64_t first, count;
} xm_strided_copy_t;

/** Kernels of a room for CUDA devices, as its build embeds them (cmake/CudaKernels.cmake); a size
 * of 0: it was built without clang. */
typedef struct xm_memory_kernels {
    const unsigned char *image;
    const size_t *size;
} xm_memory_kernels_t;

typedef struct xm_memory_space xm_memory_space_t;
typedef struct xm_memory_queue xm_memory_queue_t;
typedef struct xm_memory_mark xm_memory_mark_t;

/** What an implementation provides. No entry is NULL. */
typedef struct xm_memory_ops {
    const char *name;
    xm_status_t (*allocate)(xm_memory_space_t *space, size_t bytes, void **address);
    void (*release)(xm_memory_space_t *space, void *address);
    xm_status_t (*allocate_pinned)(xm_memory_space_t *space, size_t bytes, void **address);
    void (*release_pinned)(xm_memory_space_t *space, void *address);
    xm_status_t (*copy)(xm_memory_space_t *space, void *to, const void *from, size_t bytes);
    xm_status_t (*share)(xm_memory_space_t *space, const void *address, xm_memory_share_t *share);
    xm_status_t (*open)(xm_memory_space_t *space, const xm_memory_share_t *share, uint64_t bytes,
                        void **address);
    xm_status_t (*queue_create)(xm_memory_space_t *space, xm_memory_queue_t **queue);
    void (*queue_destroy)(xm_memory_queue_t *queue);
    xm_status_t (*queue_copy)(xm_memory_queue_t *queue, const xm_strided_copy_t *copy);
    xm_status_t (*queue_launch)(xm_memory_queue_t *queue, const xm_memory_kernels_t *kernels,
                                const char *name, void *args, int64_t items);
    xm_status_t (*queue_await)(xm_memory_queue_t *queue, xm_memory_mark_t *mark);
    xm_status_t (*mark_create)(xm_memory_space_t *space, xm_memory_mark_t **mark);
    void (*mark_destroy)(xm_memory_mark_t *mark);
    xm_status_t (*mark_set)(xm_memory_mark_t *mark, xm_memory_queue_t *queue);
    xm_status_t (*mark_stream)(xm_memory_mark_t *mark, void *stream);
    xm_status_t (*mark_test)(xm_memory_mark_t *mark);
    void (*destroy)(xm_memory_space_t *space);
} xm_memory_ops_t;

/** Base objects; implementations embed them as their first members. */
struct xm_memory_space {
    const xm_memory_ops_t *ops;
    int device;    /**< CUDA's number; host: -1 */
    bool kernels;  /**< strided copies are kernels, not the driver's */
    char name[64]; /**< of the device */
};
struct xm_memory_queue {
    xm_memory_space_t *space;
};
struct xm_memory_mark {
    xm_memory_space_t *space;
};

/** What @p count addresses name. Host memory, unless this process has loaded CUDA's driver and the
 *  driver knows the address as that of a device; never initialises CUDA. */
void xm_memory_recognise(const void *const *addresses, size_t count, xm_memory_place_t *places);

xm_status_t xm_memory_host_create(xm_memory_space_t **space);

/** Number of CUDA devices; XM_ERR_UNSUPPORTED where CUDA cannot be used. */
xm_status_t xm_memory_cuda_count(int *count);

/** The memory of a device, in its primary context (that of the CUDA run time). */
xm_status_t xm_memory_cuda_create(int device, xm_memory_space_t **space);

/** The space that a recognised CUDA address belongs to. Its context must outlive the space. */
xm_status_t xm_memory_cuda_of(const xm_memory_place_t *place, xm_memory_space_t **space);

/** Device memory. */
static inline xm_status_t xm_memory_allocate(xm_memory_space_t *space, size_t bytes, void **address)
{
    return space->ops->allocate(space, bytes, address);
}

static inline void xm_memory_release(xm_memory_space_t *space, void *address)
{
    space->ops->release(space, address);
}

/** Host memory that queues copy from and to directly. */
static inline xm_status_t xm_memory_allocate_pinned(xm_memory_space_t *space, size_t bytes,
                                                    void **address)
{
    return space->ops->allocate_pinned(space, bytes, address);
}

static inline void xm_memory_release_pinned(xm_memory_space_t *space, void *address)
{
    space->ops->release_pinned(space, address);
}

/** Copies and waits until that is done. Either side may be the space's memory or the host's. */
static inline xm_status_t xm_memory_copy(xm_memory_space_t *space, void *to, const void *from,
                                         size_t bytes)
{
    return space->ops->copy(space, to, from, bytes);
}

/** Describes an address of the space's memory to other processes of this machine. */
static inline xm_status_t xm_memory_share(xm_memory_space_t *space, const void *address,
                                          xm_memory_share_t *share)
{
    return space->ops->share(space, address, share);
}

/** Opens what another process has shared, for the queues of this space; until the space is
 *  destroyed. Allocations are opened once however often they are named. Refused where @p bytes from
 *  there are not all in the allocation, whatever the other process says. */
static inline xm_status_t xm_memory_open(xm_memory_space_t *space, const xm_memory_share_t *share,
                                         uint64_t bytes, void **address)
{
    return space->ops->open(space, share, bytes, address);
}

static inline xm_status_t xm_memory_queue_create(xm_memory_space_t *space,
                                                 xm_memory_queue_t **queue)
{
    return space->ops->queue_create(space, queue);
}

/** Waits for what is in the queue. NULL is accepted. */
static inline void xm_memory_queue_destroy(xm_memory_queue_t *queue)
{
    if (queue != NULL) {
        queue->space->ops->queue_destroy(queue);
    }
}

/** Puts a copy into the queue. Both sides are memory of the space, opened memory, or pinned. */
static inline xm_status_t xm_memory_queue_copy(xm_memory_queue_t *queue,
                                               const xm_strided_copy_t *copy)
{
    return queue->space->ops->queue_copy(queue, copy);
}

/** Puts a kernel into the queue, which takes the structure at @p args and goes through so many
 *  items. XM_ERR_UNSUPPORTED: there are no kernels, in host memory too. */
static inline xm_status_t xm_memory_queue_launch(xm_memory_queue_t *queue,
                                                 const xm_memory_kernels_t *kernels,
                                                 const char *name, void *args, int64_t items)
{
    return queue->space->ops->queue_launch(queue, kernels, name, args, items);
}

/** Lets what is put into the queue from now on wait for a mark. */
static inline xm_status_t xm_memory_queue_await(xm_memory_queue_t *queue, xm_memory_mark_t *mark)
{
    return queue->space->ops->queue_await(queue, mark);
}

static inline xm_status_t xm_memory_mark_create(xm_memory_space_t *space, xm_memory_mark_t **mark)
{
    return space->ops->mark_create(space, mark);
}

/** NULL is accepted. */
static inline void xm_memory_mark_destroy(xm_memory_mark_t *mark)
{
    if (mark != NULL) {
        mark->space->ops->mark_destroy(mark);
    }
}

/** Sets the mark behind all that is in the queue now. */
static inline xm_status_t xm_memory_mark_set(xm_memory_mark_t *mark, xm_memory_queue_t *queue)
{
    return mark->space->ops->mark_set(mark, queue);
}

/** Sets the mark behind all that is in a stream of the user's now (a CUstream; NULL is CUDA's
 *  default stream). */
static inline xm_status_t xm_memory_mark_stream(xm_memory_mark_t *mark, void *stream)
{
    return mark->space->ops->mark_stream(mark, stream);
}

/** Waits, so many seconds at most, until all that is in the queue is done. */
xm_status_t xm_memory_queue_finish(xm_memory_queue_t *queue, double seconds);

/** XM_OK: all before the mark is done. XM_IN_PROGRESS: not yet. Negative: the device has failed. */
static inline xm_status_t xm_memory_mark_test(xm_memory_mark_t *mark)
{
    return mark->space->ops->mark_test(mark);
}

/** Queues and marks of the space must have been destroyed. NULL is accepted. */
static inline void xm_memory_space_destroy(xm_memory_space_t *space)
{
    if (space != NULL) {
        space->ops->destroy(space);
    }
}
