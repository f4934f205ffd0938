/* Memory of the host: queues copy at once, and every mark has been reached. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comm/memory/memory.h"
#include "comm/memory/strided.h"

enum { LINE = 64 };

static xm_status_t host_allocate(xm_memory_space_t *space, size_t bytes, void **address)
{
    void *made = aligned_alloc(LINE, (bytes + LINE - 1) / LINE * LINE);

    (void)space;
    if (made == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
    }
    *address = made;
    return XM_OK;
}

static void host_release(xm_memory_space_t *space, void *address)
{
    (void)space;
    free(address);
}

static xm_status_t host_copy(xm_memory_space_t *space, void *to, const void *from, size_t bytes)
{
    (void)space;
    memcpy(to, from, bytes);
    return XM_OK;
}

static xm_status_t host_share(xm_memory_space_t *space, const void *address,
                              xm_memory_share_t *share)
{
    (void)space;
    (void)share;
    return xm_error_set(XM_ERR_UNSUPPORTED, "host memory at %p cannot be opened by others",
                        address);
}

static xm_status_t host_open(xm_memory_space_t *space, const xm_memory_share_t *share,
                             void **address)
{
    (void)space;
    (void)address;
    return xm_error_set(XM_ERR_UNSUPPORTED, "memory of device %" PRId64 " is not the host's",
                        share->device);
}

static xm_status_t host_queue_create(xm_memory_space_t *space, xm_memory_queue_t **queue)
{
    xm_memory_queue_t *made = malloc(sizeof(*made));

    if (made == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a queue");
    }
    made->space = space;
    *queue = made;
    return XM_OK;
}

static void host_queue_destroy(xm_memory_queue_t *queue)
{
    free(queue);
}

static xm_status_t host_queue_copy(xm_memory_queue_t *queue, const xm_strided_copy_t *copy)
{
    (void)queue;
    xm_strided_run(copy);
    return XM_OK;
}

static xm_status_t host_queue_await(xm_memory_queue_t *queue, xm_memory_mark_t *mark)
{
    (void)queue;
    (void)mark;
    return XM_OK;
}

static xm_status_t host_mark_create(xm_memory_space_t *space, xm_memory_mark_t **mark)
{
    xm_memory_mark_t *made = malloc(sizeof(*made));

    if (made == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a mark");
    }
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

static xm_status_t host_mark_stream(xm_memory_mark_t *mark, void *stream)
{
    (void)mark;
    return stream == NULL
               ? XM_OK
               : xm_error_set(XM_ERR_INVALID_ARGUMENT, "host memory has no streams to follow");
}

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
                                         .queue_await = host_queue_await,
                                         .mark_create = host_mark_create,
                                         .mark_destroy = host_mark_destroy,
                                         .mark_set = host_mark_set,
                                         .mark_stream = host_mark_stream,
                                         .mark_test = host_mark_test,
                                         .destroy = host_destroy};

xm_status_t xm_memory_host_create(xm_memory_space_t **space)
{
    xm_memory_space_t *made = malloc(sizeof(*made));

    if (made == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a memory space");
    }
    *made = (xm_memory_space_t){.ops = &host_ops, .device = -1, .name = "host"};
    *space = made;
    return XM_OK;
}
