/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the host, behind the same interface as that of a device. Queues copy at once, and
 * so every mark has been reached when it is tested: code that is written for devices runs
 * unchanged, without threads and without a difference in order. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comm/memory/memory.h"
#include "comm/memory/strided.h"

enum { LINE = 64 };

/* Aligned to cache lines; the size is rounded up because aligned_alloc() demands a multiple. */
static xm_status_t host_allocate(xm_memory_space_t *space, size_t bytes, void **address)
{
    void *made = aligned_alloc(LINE, (bytes + LINE - 1) / LINE * LINE);

    (void)space;
    XM_NEED_MEMORY(made, "%zu bytes", bytes);
    *address = made;
    return XM_OK;
}

/* Nothing can be in flight on the memory, because all queues copy at once. */
static void host_release(xm_memory_space_t *space, void *address)
{
    (void)space;
    free(address);
}

/* Pinned memory needs no functions of its own: for the host all memory is alike. */
static xm_status_t host_copy(xm_memory_space_t *space, void *to, const void *from, size_t bytes)
{
    (void)space;
    memcpy(to, from, bytes);
    return XM_OK;
}

/* Sharing host memory is another mechanism (shared_memory.h). */
static xm_status_t host_share(xm_memory_space_t *space, const void *address,
                              xm_memory_share_t *share)
{
    (void)space;
    (void)share;
    return XM_UNSUPPORTED("host memory at %p cannot be opened by others", address);
}

/* A handle of a device's memory that comes here by mistake is refused with its device. */
static xm_status_t host_open(xm_memory_space_t *space, const xm_memory_share_t *share,
                             uint64_t bytes, void **address)
{
    (void)space;
    (void)bytes;
    (void)address;
    return XM_UNSUPPORTED("memory of device %" PRId64 " is not the host's", share->device);
}

static xm_status_t host_queue_create(xm_memory_space_t *space, xm_memory_queue_t **queue)
{
    xm_memory_queue_t *made = malloc(sizeof(*made));

    XM_NEED_MEMORY(made, "a queue");
    made->space = space;
    *queue = made;
    return XM_OK;
}

static void host_queue_destroy(xm_memory_queue_t *queue)
{
    free(queue);
}

/* The copy is finished when the call returns, so the order of a queue is that of its calls. */
static xm_status_t host_queue_copy(xm_memory_queue_t *queue, const xm_strided_copy_t *copy)
{
    (void)queue;
    xm_strided_run(copy);
    return XM_OK;
}

static xm_status_t host_queue_launch(xm_memory_queue_t *queue, const xm_memory_kernels_t *kernels,
                                     const char *name, void *args, int64_t items)
{
    (void)queue;
    (void)kernels;
    (void)args;
    (void)items;
    return XM_UNSUPPORTED("%s is a kernel, and host memory has none", name);
}

/* Whatever a mark stands for has happened before it could be set. */
static xm_status_t host_queue_await(xm_memory_queue_t *queue, xm_memory_mark_t *mark)
{
    (void)queue;
    (void)mark;
    return XM_OK;
}

static xm_status_t host_mark_create(xm_memory_space_t *space, xm_memory_mark_t **mark)
{
    xm_memory_mark_t *made = malloc(sizeof(*made));

    XM_NEED_MEMORY(made, "a mark");
    made->space = space;
    *mark = made;
    return XM_OK;
}

static void host_mark_destroy(xm_memory_mark_t *mark)
{
    free(mark);
}

static xm_status_t host_mark_set(xm_memory_mark_t *mark, xm_memory_queue_t *queue)
{
    (void)mark;
    (void)queue;
    return XM_OK;
}

/* A stream cannot be followed here; accepting one would lose an order that the caller relies on. */
static xm_status_t host_mark_stream(xm_memory_mark_t *mark, void *stream)
{
    (void)mark;
    return stream == NULL ? XM_OK : XM_INVALID("host memory has no streams to follow");
}

/* Never XM_IN_PROGRESS: a caller that polls goes on at its first look. */
static xm_status_t host_mark_test(xm_memory_mark_t *mark)
{
    (void)mark;
    return XM_OK;
}

static void host_destroy(xm_memory_space_t *space)
{
    free(space);
}

static const xm_memory_ops_t host_ops = {.name = "host",
                                         .allocate = host_allocate,
                                         .release = host_release,
                                         .allocate_pinned = host_allocate,
                                         .release_pinned = host_release,
                                         .copy = host_copy,
                                         .share = host_share,
                                         .open = host_open,
                                         .queue_create = host_queue_create,
                                         .queue_destroy = host_queue_destroy,
                                         .queue_copy = host_queue_copy,
                                         .queue_launch = host_queue_launch,
                                         .queue_await = host_queue_await,
                                         .mark_create = host_mark_create,
                                         .mark_destroy = host_mark_destroy,
                                         .mark_set = host_mark_set,
                                         .mark_stream = host_mark_stream,
                                         .mark_test = host_mark_test,
                                         .destroy = host_destroy};

/* Device -1 tells others that this memory belongs to no GPU. */
xm_status_t xm_memory_host_create(xm_memory_space_t **space)
{
    xm_memory_space_t *made = malloc(sizeof(*made));

    XM_NEED_MEMORY(made, "a memory space");
    *made = (xm_memory_space_t){.ops = &host_ops, .device = -1, .name = "host"};
    *space = made;
    return XM_OK;
}
