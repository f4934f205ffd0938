/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a CUDA device: the space itself, its queues (streams) and marks (events). The
 * driver's interface is used, opened at run time, so one build runs with and without CUDA and
 * no second runtime competes with the application's. Every call pushes the context and pops it
 * again, because the thread belongs to an application that has a current context of its own.
 * Queues never block on the legacy default stream, which would order them after everything the
 * application does. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/base.h"
#include "comm/memory/cuda_private.h"

/* Turns a result of the driver into a status; the sentence names the call. */
xm_status_t xm_cuda_check(const xm_cuda_space_t *space, const char *what, int result)
{
    return result == XM_CU_SUCCESS
               ? XM_OK
               : xm_cuda_error(&space->driver, space->base.device, what, result);
}

/* Makes the space's context current for this thread; each call has its xm_cuda_leave(). */
xm_status_t xm_cuda_enter(xm_cuda_space_t *space)
{
    return xm_cuda_check(space, "cuCtxPushCurrent",
                         space->driver.cuCtxPushCurrent_v2(space->context));
}

void xm_cuda_leave(xm_cuda_space_t *space)
{
    void *context;

    (void)space->driver.cuCtxPopCurrent_v2(&context);
}

static xm_status_t check_bytes(const xm_cuda_space_t *space, const char *call, size_t bytes,
                               int result)
{
    char what[64];

    (void)snprintf(what, sizeof(what), "%s of %zu bytes", call, bytes);
    return xm_cuda_check(space, what, result);
}

/* The context must be that of the space, or the memory would belong to another device. */
static xm_status_t cuda_allocate(xm_memory_space_t *base, size_t bytes, void **address)
{
    xm_cuda_space_t *space = xm_cuda_space_of(base);
    xm_status_t status = xm_cuda_enter(space);
    uint64_t made;

    if (status < 0) {
        return status;
    }
    status = check_bytes(space, "cuMemAlloc", bytes, space->driver.cuMemAlloc_v2(&made, bytes));
    if (status == XM_OK) {
        *address = (void *)(uintptr_t)made;
    }
    xm_cuda_leave(space);
    return status;
}

static void cuda_release(xm_memory_space_t *base, void *address)
{
    xm_cuda_space_t *space = xm_cuda_space_of(base);

    if (address != NULL && xm_cuda_enter(space) == XM_OK) {
        (void)space->driver.cuMemFree_v2((uint64_t)(uintptr_t)address);
        xm_cuda_leave(space);
    }
}

/* Portable pinned memory can be used from every context, so one staging buffer serves all
 * devices. */
static xm_status_t cuda_allocate_pinned(xm_memory_space_t *base, size_t bytes, void **address)
{
    xm_cuda_space_t *space = xm_cuda_space_of(base);
    xm_status_t status = xm_cuda_enter(space);

    if (status == XM_OK) {
        status =
            check_bytes(space, "cuMemHostAlloc", bytes,
                        space->driver.cuMemHostAlloc(address, bytes, XM_CU_MEMHOSTALLOC_PORTABLE));
        xm_cuda_leave(space);
    }
    return status;
}

static void cuda_release_pinned(xm_memory_space_t *base, void *address)
{
    xm_cuda_space_t *space = xm_cuda_space_of(base);

    if (address != NULL && xm_cuda_enter(space) == XM_OK) {
        (void)space->driver.cuMemFreeHost(address);
        xm_cuda_leave(space);
    }
}

/* Copies and waits. A stream of its own keeps the copy from waiting for the application's work
 * on other streams. */
static xm_status_t cuda_copy(xm_memory_space_t *base, void *to, const void *from, size_t bytes)
{
    xm_cuda_space_t *space = xm_cuda_space_of(base);
    xm_status_t status = bytes > 0 ? xm_cuda_enter(space) : XM_OK;
    void *stream = NULL;

    if (status < 0 || bytes == 0) {
        return status;
    }
    status = xm_cuda_check(space, "cuStreamCreate",
                           space->driver.cuStreamCreate(&stream, XM_CU_STREAM_NON_BLOCKING));
    XM_THEN(status,
            check_bytes(space, "cuMemcpyAsync", bytes,
                        space->driver.cuMemcpyAsync((uint64_t)(uintptr_t)to,
                                                    (uint64_t)(uintptr_t)from, bytes, stream)));
    XM_THEN(status, check_bytes(space, "copy", bytes, space->driver.cuStreamSynchronize(stream)));
    if (stream != NULL) {
        (void)space->driver.cuStreamDestroy_v2(stream);
    }
    xm_cuda_leave(space);
    return status;
}

/* A queue is a stream that does not synchronise with the default stream. */
static xm_status_t cuda_queue_create(xm_memory_space_t *base, xm_memory_queue_t **queue)
{
    xm_cuda_space_t *space = xm_cuda_space_of(base);
    xm_cuda_queue_t *made = malloc(sizeof(*made));
    xm_status_t status;

    XM_NEED_MEMORY(made, "a queue");
    made->base.space = base;
    status = xm_cuda_enter(space);
    if (status == XM_OK) {
        status =
            xm_cuda_check(space, "cuStreamCreate",
                          space->driver.cuStreamCreate(&made->stream, XM_CU_STREAM_NON_BLOCKING));
        xm_cuda_leave(space);
    }
    if (status < 0) {
        free(made);
        return status;
    }
    *queue = &made->base;
    return XM_OK;
}

/* Waits for the queue's work first, since its buffers may be freed next. */
static void cuda_queue_destroy(xm_memory_queue_t *base)
{
    xm_cuda_queue_t *queue = (xm_cuda_queue_t *)base;
    xm_cuda_space_t *space = xm_cuda_space_of(base->space);

    if (xm_cuda_enter(space) == XM_OK) {
        (void)space->driver.cuStreamSynchronize(queue->stream);
        (void)space->driver.cuStreamDestroy_v2(queue->stream);
        xm_cuda_leave(space);
    }
    free(queue);
}

/* The queue waits on the device; the host does not. */
static xm_status_t cuda_queue_await(xm_memory_queue_t *base, xm_memory_mark_t *mark)
{
    xm_cuda_space_t *space = xm_cuda_space_of(base->space);
    xm_status_t status = xm_cuda_enter(space);

    if (status == XM_OK) {
        status = xm_cuda_check(space, "cuStreamWaitEvent",
                               space->driver.cuStreamWaitEvent(((xm_cuda_queue_t *)base)->stream,
                                                               ((xm_cuda_mark_t *)mark)->event, 0));
        xm_cuda_leave(space);
    }
    return status;
}

/* Events without timing are cheaper, and time is not what they are for. */
static xm_status_t cuda_mark_create(xm_memory_space_t *base, xm_memory_mark_t **mark)
{
    xm_cuda_space_t *space = xm_cuda_space_of(base);
    xm_cuda_mark_t *made = malloc(sizeof(*made));
    xm_status_t status;

    XM_NEED_MEMORY(made, "a mark");
    *made = (xm_cuda_mark_t){.base.space = base};
    status = xm_cuda_enter(space);
    if (status == XM_OK) {
        status =
            xm_cuda_check(space, "cuEventCreate",
                          space->driver.cuEventCreate(&made->event, XM_CU_EVENT_DISABLE_TIMING));
        xm_cuda_leave(space);
    }
    if (status < 0) {
        free(made);
        return status;
    }
    *mark = &made->base;
    return XM_OK;
}

static void cuda_mark_destroy(xm_memory_mark_t *base)
{
    xm_cuda_space_t *space = xm_cuda_space_of(base->space);

    if (xm_cuda_enter(space) == XM_OK) {
        (void)space->driver.cuEventDestroy_v2(((xm_cuda_mark_t *)base)->event);
        xm_cuda_leave(space);
    }
    free(base);
}

/* Records an event on a stream of the application, so that copies can wait for its kernels. A
 * mark that was never set counts as reached. */
static xm_status_t cuda_mark_stream(xm_memory_mark_t *base, void *stream)
{
    xm_cuda_space_t *space = xm_cuda_space_of(base->space);
    xm_cuda_mark_t *mark = (xm_cuda_mark_t *)base;
    xm_status_t status = xm_cuda_enter(space);

    if (status == XM_OK) {
        status =
            xm_cuda_check(space, "cuEventRecord", space->driver.cuEventRecord(mark->event, stream));
        mark->set = mark->set || status == XM_OK;
        xm_cuda_leave(space);
    }
    return status;
}

static xm_status_t cuda_mark_set(xm_memory_mark_t *mark, xm_memory_queue_t *queue)
{
    return cuda_mark_stream(mark, ((xm_cuda_queue_t *)queue)->stream);
}

/* Asks without waiting. An error of an earlier asynchronous call comes up here, as a failure of
 * the device's work. */
static xm_status_t cuda_mark_test(xm_memory_mark_t *base)
{
    xm_cuda_space_t *space = xm_cuda_space_of(base->space);
    xm_cuda_mark_t *mark = (xm_cuda_mark_t *)base;
    xm_status_t status = XM_OK;
    int result;

    if (mark->set) {
        status = xm_cuda_enter(space);
    }
    if (!mark->set || status < 0) {
        return status;
    }
    result = space->driver.cuEventQuery(mark->event);
    if (result == XM_CU_NOT_READY) {
        status = XM_IN_PROGRESS;
    } else if (result != XM_CU_SUCCESS) {
        status = xm_cuda_check(space, "work on the device failed", result);
    }
    xm_cuda_leave(space);
    return status;
}

/* Polls, as all that waits for the device does: an event has no file descriptor. */
xm_status_t xm_memory_queue_finish(xm_memory_queue_t *queue, double seconds)
{
    const double deadline = xm_clock_seconds() + seconds;
    xm_memory_mark_t *mark;
    xm_status_t status;

    XM_TRY(xm_memory_mark_create(queue->space, &mark));
    status = xm_memory_mark_set(mark, queue);
    while (status == XM_OK && (status = xm_memory_mark_test(mark)) == XM_IN_PROGRESS) {
        status =
            xm_clock_seconds() < deadline
                ? XM_OK
                : xm_error_set(XM_ERR_TIMEOUT, "device %d has not done in %.3g s what it was given",
                               queue->space->device, seconds);
        (void)sched_yield();
    }
    xm_memory_mark_destroy(mark);
    return status;
}

/* Ends the space. Memory of other processes is closed while the context is current; a context
 * that was only borrowed is left alone. */
static void cuda_destroy(xm_memory_space_t *base)
{
    xm_cuda_space_t *space = xm_cuda_space_of(base);

    if (space->context != NULL && xm_cuda_enter(space) == XM_OK) {
        xm_cuda_close_all(space);
        for (int m = 0; m < XM_CUDA_MODULES && space->loaded[m].image != NULL; ++m) {
            (void)space->driver.cuModuleUnload(space->loaded[m].module);
        }
        xm_cuda_leave(space);
    }
    if (space->retained) {
        (void)space->driver.cuDevicePrimaryCtxRelease_v2(space->device);
    }
    xm_cuda_driver_close(&space->driver);
    free(space);
}

static const xm_memory_ops_t cuda_ops = {.name = "cuda",
                                         .allocate = cuda_allocate,
                                         .release = cuda_release,
                                         .allocate_pinned = cuda_allocate_pinned,
                                         .release_pinned = cuda_release_pinned,
                                         .copy = cuda_copy,
                                         .share = xm_cuda_share,
                                         .open = xm_cuda_open,
                                         .queue_create = cuda_queue_create,
                                         .queue_destroy = cuda_queue_destroy,
                                         .queue_copy = xm_cuda_queue_copy,
                                         .queue_launch = xm_cuda_queue_launch,
                                         .queue_await = cuda_queue_await,
                                         .mark_create = cuda_mark_create,
                                         .mark_destroy = cuda_mark_destroy,
                                         .mark_set = cuda_mark_set,
                                         .mark_stream = cuda_mark_stream,
                                         .mark_test = cuda_mark_test,
                                         .destroy = cuda_destroy};

/* Reads what copies need to know of the device: its size and the longest pitch of the driver's
 * copies. */
static xm_status_t read_device(xm_cuda_space_t *space, int ordinal)
{
    const xm_cuda_driver_t *driver = &space->driver;
    int pitch = 0;
    xm_status_t status =
        xm_cuda_check(space, "cuDeviceGet", driver->cuDeviceGet(&space->device, ordinal));

    XM_THEN(status, xm_cuda_check(space, "cuDeviceGetAttribute",
                                  driver->cuDeviceGetAttribute(&space->multiprocessors,
                                                               XM_CU_DEVICE_MULTIPROCESSORS,
                                                               space->device)));
    XM_THEN(status, xm_cuda_check(space, "cuDeviceGetAttribute",
                                  driver->cuDeviceGetAttribute(&pitch, XM_CU_DEVICE_MAX_PITCH,
                                                               space->device)));
    XM_THEN(status, xm_cuda_check(space, "cuDeviceGetName",
                                  driver->cuDeviceGetName(
                                      space->base.name, sizeof(space->base.name), space->device)));
    space->max_pitch = pitch;
    return status;
}

/* Makes a space for a place. The application's context is used where the place names one,
 * because memory allocated in it is known there; otherwise the device's primary context, which
 * the CUDA runtime uses as well. */
xm_status_t xm_memory_cuda_of(const xm_memory_place_t *place, xm_memory_space_t **space)
{
    xm_cuda_space_t *made = calloc(1, sizeof(*made));
    xm_status_t status;

    XM_NEED_MEMORY(made, "a memory space");
    made->base = (xm_memory_space_t){.ops = &cuda_ops, .device = place->device};
    status = xm_cuda_driver_open(&made->driver);
    XM_THEN(status, read_device(made, place->device));
    if (status == XM_OK && place->context == NULL) {
        status = xm_cuda_check(made, "cuDevicePrimaryCtxRetain",
                               made->driver.cuDevicePrimaryCtxRetain(&made->context, made->device));
        made->retained = status == XM_OK;
    } else if (status == XM_OK) {
        made->context = place->context;
    }
    XM_THEN(status, xm_cuda_enter(made));
    /* A context that was not retained here must not be released here either. */
    if (status < 0) {
        made->context = made->retained ? made->context : NULL;
        cuda_destroy(&made->base);
        return status;
    }
    xm_cuda_load_kernels(made);
    xm_cuda_leave(made);
    *space = &made->base;
    return XM_OK;
}

/* Counts devices. Without a driver that is a failure of its own, which callers treat as "none". */
xm_status_t xm_memory_cuda_count(int *count)
{
    xm_cuda_driver_t driver;
    xm_status_t status = xm_cuda_driver_open(&driver);
    int result;

    if (status < 0) {
        return status;
    }
    result = driver.cuDeviceGetCount(count);
    if (result != XM_CU_SUCCESS) {
        status = xm_cuda_error(&driver, -1, "cuDeviceGetCount", result);
    }
    xm_cuda_driver_close(&driver);
    return status;
}

xm_status_t xm_memory_cuda_create(int device, xm_memory_space_t **space)
{
    xm_memory_place_t place = {.kind = XM_MEMORY_CUDA, .device = device};
    int count = 0;
    xm_status_t status = xm_memory_cuda_count(&count);

    if (status == XM_OK && (device < 0 || device >= count)) {
        status = XM_NOT_FOUND("CUDA device %d does not exist, there %s %d", device,
                              count == 1 ? "is" : "are", count);
    }
    return status == XM_OK ? xm_memory_cuda_of(&place, space) : status;
}

/* Asks the driver whose memory an address is. Managed memory counts as the device's; anything
 * unknown is the host's. */
static void recognise(const xm_cuda_driver_t *driver, const void *address, xm_memory_place_t *place)
{
    int attributes[] = {XM_CU_POINTER_MEMORY_TYPE, XM_CU_POINTER_DEVICE_ORDINAL,
                        XM_CU_POINTER_CONTEXT, XM_CU_POINTER_IS_MANAGED};
    unsigned type = 0, managed = 0;
    int device = -1;
    void *context = NULL;
    void *data[] = {&type, &device, &context, &managed};

    if (driver->cuPointerGetAttributes(4, attributes, data, (uint64_t)(uintptr_t)address) ==
            XM_CU_SUCCESS &&
        (type == XM_CU_MEMORYTYPE_DEVICE || managed != 0) && device >= 0) {
        *place = (xm_memory_place_t){
            .kind = XM_MEMORY_CUDA, .device = device, .context = context, .managed = managed != 0};
    }
}

/* Recognises many addresses with one look for the driver. It only finds a driver that is loaded
 * already: where nobody has loaded it, no address can be a device's, and a process without CUDA
 * must not pay for loading it. */
void xm_memory_recognise(const void *const *addresses, size_t count, xm_memory_place_t *places)
{
    xm_cuda_driver_t driver;
    bool found = xm_cuda_driver_find(&driver);

    for (size_t i = 0; i < count; ++i) {
        places[i] = (xm_memory_place_t){.kind = XM_MEMORY_HOST, .device = -1};
        if (found && addresses[i] != NULL) {
            recognise(&driver, addresses[i], &places[i]);
        }
    }
    if (found) {
        xm_cuda_driver_close(&driver);
    }
}
