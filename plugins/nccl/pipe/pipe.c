/* SPDX-License-Identifier: Apache-2.0 */
/* A pipe's requests: sends, receives and tests, each under the pipe's lock. Requests are taken
 * from a fixed set, so nothing is allocated after the pipe is open; when they are used up, or
 * the window is full, the caller gets XM_IN_PROGRESS and tries again. A request stays the
 * caller's until a test has told its end, also after a failure: each is given back exactly
 * once. */
#include "plugins/nccl/pipe/pipe.h"

#include "plugins/nccl/pipe/progress_thread.h"
#include "plugins/nccl/pipe/pipe_private.h"
#include "comm/transport/ucx.h"

/* The caller has checked that one is free. */
static xm_pipe_request_t *take_request(xm_pipe_t *pipe, int count)
{
    xm_pipe_request_t *request = pipe->free_requests;

    pipe->free_requests = request->next;
    request->next = NULL;
    request->user = NULL;
    request->number = 0;
    request->count = count;
    request->open = 0;
    request->untaken = 0;
    request->failed = false;
    return request;
}

/* The list is a stack, so the request that was used last, which is still in the cache, comes
 * first. */
static void give_request(xm_pipe_request_t *request)
{
    request->next = request->pipe->free_requests;
    request->pipe->free_requests = request;
}

/* Begins every use: the pipe must be open and working, and have a request to spare. If it has
 * none, one round of progress may free some before the caller is sent away. */
static xm_status_t enter(xm_pipe_t *pipe, bool sender)
{
    if (pipe->stage != XM_PIPE_STAGE_OPEN || pipe->sender != sender) {
        return XM_INVALID("a pipe's %s end does not %s", pipe->sender ? "sending" : "receiving",
                          pipe->stage != XM_PIPE_STAGE_OPEN ? "work yet"
                          : sender                          ? "send"
                                                            : "receive");
    }
    if (pipe->fault_status == XM_OK &&
        (pipe->free_requests == NULL || (sender && pipe->sent - pipe->acked >= XM_PIPE_WINDOW))) {
        xm_pipe_progress(pipe);
    }
    if (pipe->fault_status != XM_OK) {
        return xm_pipe_fault_status(pipe);
    }
    return pipe->free_requests == NULL || (sender && pipe->sent - pipe->acked >= XM_PIPE_WINDOW)
               ? XM_IN_PROGRESS
               : XM_OK;
}

/* Sends. A failure of the start breaks the pipe, since header and data belong together and the
 * receiver may have one of them. */
xm_status_t xm_pipe_send(xm_pipe_t *pipe, const void *buffer, size_t length, int tag,
                         xm_memory_t *memory, xm_pipe_request_t **request)
{
    xm_status_t status;

    *request = NULL;
    (void)pthread_mutex_lock(&pipe->lock);
    status = enter(pipe, true);
    if (status == XM_OK) {
        xm_pipe_request_t *taken = take_request(pipe, 1);

        status = xm_pipe_start_send(taken, buffer, length, tag, memory);
        if (status < 0) {
            xm_pipe_mark_failed(pipe, status);
            xm_pipe_settle(pipe);
            give_request(taken);
        } else {
            *request = taken;
        }
    }
    (void)pthread_mutex_unlock(&pipe->lock);
    /* The progress thread is woken outside the lock, which it may want itself. */
    if (*request != NULL) {
        xm_pipe_progress_thread_wake();
    }
    return status;
}

/* Posts a receive with up to XM_PIPE_GROUP_MAX slots, to be filled by messages with their tags
 * in any order. */
xm_status_t xm_pipe_receive(xm_pipe_t *pipe, int count, void *const *buffers, const size_t *sizes,
                            const int *tags, xm_memory_t *const *memories,
                            xm_pipe_request_t **request)
{
    xm_status_t status;

    *request = NULL;
    if (count < 1 || count > XM_PIPE_GROUP_MAX) {
        return XM_INVALID("a receive of %d messages; 1 to %d are possible", count,
                          XM_PIPE_GROUP_MAX);
    }
    (void)pthread_mutex_lock(&pipe->lock);
    status = enter(pipe, false);
    if (status == XM_OK) {
        xm_pipe_request_t *taken = take_request(pipe, count);

        for (int i = 0; i < count; ++i) {
            xm_pipe_slot_t *slot = &taken->slots[i];

            slot->request = taken;
            slot->buffer = buffers[i];
            slot->size = sizes[i];
            slot->length = 0;
            slot->tag = tags[i];
            slot->memory = memories != NULL ? memories[i] : NULL;
            slot->taken = false;
        }
        taken->open = taken->untaken = count;
        ++pipe->unfinished;
        /* Posted receives are a queue: the earliest one with the tag takes a message. */
        *pipe->last_posted = taken;
        pipe->last_posted = &taken->next;
        *request = taken;
        xm_pipe_progress(pipe);
    }
    (void)pthread_mutex_unlock(&pipe->lock);
    return status;
}

/* Tests a request. One that has ended is given back here. In a broken pipe an unfinished one is
 * given back as well: the transport is fenced, so nothing writes into its buffers any more. */
xm_status_t xm_pipe_test(xm_pipe_request_t *request, size_t *lengths)
{
    xm_pipe_t *pipe = request->pipe;
    xm_status_t status = XM_IN_PROGRESS;

    (void)pthread_mutex_lock(&pipe->lock);
    if (request->open > 0 && pipe->fault_status == XM_OK) {
        xm_pipe_progress(pipe);
    }
    if (request->open == 0 && !request->failed) {
        for (int i = 0; i < request->count && lengths != NULL; ++i) {
            lengths[i] = request->slots[i].length;
        }
        status = XM_OK;
        give_request(request);
    } else if (pipe->fault_status != XM_OK) {
        status = xm_pipe_fault_status(pipe);
        if (request->untaken > 0) {
            xm_pipe_remove_posted(pipe, request);
        }
        pipe->unfinished -= request->open > 0;
        give_request(request);
    }
    (void)pthread_mutex_unlock(&pipe->lock);
    return status;
}

/* Moves the handshake, for the sending end; accept does that for the other. */
xm_status_t xm_pipe_advance(xm_pipe_t *pipe)
{
    xm_status_t status = XM_OK;

    (void)pthread_mutex_lock(&pipe->lock);
    if (pipe->fault_status != XM_OK) {
        status = xm_pipe_fault_status(pipe);
    } else if (pipe->stage != XM_PIPE_STAGE_OPEN || pipe->out_length > 0) {
        status = xm_pipe_shake_hands(pipe);
        if (status < 0) {
            xm_pipe_mark_failed(pipe, status);
        }
    }
    (void)pthread_mutex_unlock(&pipe->lock);
    return status;
}

/* Registration takes the lock, because the transport is shared with the progress thread. */
xm_status_t xm_pipe_register(xm_pipe_t *pipe, void *address, size_t length, xm_memory_t **memory)
{
    xm_status_t status;

    (void)pthread_mutex_lock(&pipe->lock);
    status = pipe->stage == XM_PIPE_STAGE_OPEN
                 ? xm_transport_memory_register(pipe->transport, address, length, memory)
                 : XM_INVALID("the pipe is not open yet");
    (void)pthread_mutex_unlock(&pipe->lock);
    return status;
}

void xm_pipe_deregister(xm_pipe_t *pipe, xm_memory_t *memory)
{
    (void)pthread_mutex_lock(&pipe->lock);
    xm_transport_memory_deregister(pipe->transport, memory);
    (void)pthread_mutex_unlock(&pipe->lock);
}

void xm_pipe_request_set_user(xm_pipe_request_t *request, void *user)
{
    request->user = user;
}

void *xm_pipe_request_user(const xm_pipe_request_t *request)
{
    return request->user;
}

int xm_pipe_request_count(const xm_pipe_request_t *request)
{
    return request->count;
}

xm_pipe_t *xm_pipe_request_pipe(const xm_pipe_request_t *request)
{
    return request->pipe;
}

uint64_t xm_pipe_request_number(const xm_pipe_request_t *request)
{
    return request->number;
}

/* How a message's bytes are spread over the NICs. Between processes of one machine none is used. */
int xm_pipe_shares(const xm_pipe_t *pipe, size_t length, size_t *shares)
{
    return pipe->own.machine == pipe->other.machine
               ? 0
               : xm_transport_ucx_shares(pipe->transport, xm_pipe_other_rank(pipe), length, shares);
}

char *xm_pipe_path(xm_pipe_t *pipe, char *buffer, size_t size)
{
    buffer[0] = '\0';
    (void)pthread_mutex_lock(&pipe->lock);
    /* A broken pipe has no path any more, and the text stays empty. */
    if (pipe->stage == XM_PIPE_STAGE_OPEN && pipe->fault_status == XM_OK) {
        xm_transport_path(pipe->transport, xm_pipe_other_rank(pipe), buffer, size);
    }
    (void)pthread_mutex_unlock(&pipe->lock);
    return buffer;
}
