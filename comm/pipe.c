/* A pipe: requests, how it learns of the other end, and its own end. */
#include "comm/pipe.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/config.h"
#include "comm/pipe_keeper.h"
#include "comm/pipe_private.h"
#include "comm/transport_ucx.h"

/* How often the socket is looked at; how long an end waits for what is on its way when the other
 * one has closed: messages of a sender, or a receiver's answers to them; how long a sender that
 * closes waits for the receiver to take what was sent. */
static const int64_t look_ns = 10 * 1000000, messages_ns = 1000 * 1000000LL,
                     answers_ns = 100 * 1000000LL, linger_ns = 2000 * 1000000LL;

void xm_pipe_condemn(xm_pipe_t *pipe, xm_status_t status)
{
    if (pipe->verdict == XM_OK) {
        pipe->verdict = status;
        (void)snprintf(pipe->sentence, sizeof(pipe->sentence), "%s", xm_last_error());
    }
}

static xm_status_t verdict_of(const xm_pipe_t *pipe)
{
    return xm_error_set(pipe->verdict, "%s", pipe->sentence);
}

/* The end's last word. The socket's buffer is empty, so it fits. */
static void say_word(const xm_pipe_t *pipe, xm_pipe_word_t word)
{
    uint8_t byte = (uint8_t)word;

    (void)send(pipe->fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/*
 * A failure that callbacks have noted becomes one of the transport: everything in flight ends, and
 * no memory is touched any more. The transport takes the other end for dead, whatever the failure:
 * UCX 1.13 aborts the process when a worker is destroyed whose connection is half made, and so
 * keeps it. After an orderly end there is nothing to be cut off.
 */
static void settle(xm_pipe_t *pipe)
{
    if (pipe->verdict == XM_OK || pipe->fenced || pipe->transport == NULL ||
        (pipe->verdict == XM_ERR_CANCELED && pipe->unfinished == 0)) {
        return;
    }
    pipe->fenced = true;
    xm_transport_peer_failed(pipe->transport, xm_pipe_other_rank(pipe));
    xm_transport_fence(pipe->transport);
}

xm_status_t xm_pipe_create(bool sender, const char *nics, double timeout, xm_pipe_t **pipe)
{
    xm_pipe_t *self = calloc(1, sizeof(*self));

    if (self == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a pipe");
    }
    self->sender = sender;
    self->fd = -1;
    self->timeout = timeout > 0 ? timeout : xm_config_seconds(XM_CONFIG_TIMEOUT);
    self->nics = strdup(nics != NULL ? nics : "");
    self->last_posted = &self->posted;
    if (self->nics == NULL || pthread_mutex_init(&self->lock, NULL) != 0) {
        free(self->nics);
        free(self);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a pipe");
    }
    *pipe = self;
    return XM_OK;
}

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

static void give_request(xm_pipe_request_t *request)
{
    request->next = request->pipe->free_requests;
    request->pipe->free_requests = request;
}

static void died(xm_pipe_t *pipe, const char *why)
{
    char peer[XM_PIPE_NAME_SIZE + 32];

    xm_pipe_condemn(pipe,
                    xm_error_set(XM_ERR_PEER_DIED, "the other end of the pipe, %s, is gone: %s",
                                 xm_pipe_peer(pipe, peer, sizeof(peer)), why));
}

/* Something is on its way from an end that has closed, unless it owes nothing. */
static void be_patient(xm_pipe_t *pipe, int64_t now)
{
    pipe->patience_end = now + (pipe->unfinished == 0 ? 0
                                : pipe->sender        ? answers_ns
                                                      : messages_ns);
}

static void hear(xm_pipe_t *pipe, uint8_t word, int64_t now)
{
    char peer[XM_PIPE_NAME_SIZE + 32];

    (void)xm_pipe_peer(pipe, peer, sizeof(peer));
    if (word == XM_PIPE_REFUSE) {
        xm_pipe_condemn(pipe,
                        xm_error_set(XM_ERR_CORRUPT,
                                     "%s refuses a message that is longer than its receive", peer));
    } else {
        pipe->stopping = true;
        be_patient(pipe, now);
    }
}

/* Looks whether the other end is still there. */
static void look(xm_pipe_t *pipe)
{
    int64_t now = xm_transport_now(pipe->transport);
    uint8_t word = 0;
    ssize_t count;

    if (now < pipe->next_look || pipe->verdict != XM_OK) {
        return;
    }
    pipe->next_look = now + look_ns;
    if (pipe->stopping) {
        if (now > pipe->patience_end) {
            char peer[XM_PIPE_NAME_SIZE + 32];

            xm_pipe_condemn(pipe, xm_error_set(XM_ERR_CANCELED, "%s has closed the pipe",
                                               xm_pipe_peer(pipe, peer, sizeof(peer))));
        }
        return;
    }
    count = recv(pipe->fd, &word, 1, MSG_DONTWAIT);
    if (count > 0) {
        hear(pipe, word, now);
    } else if (count == 0) {
        died(pipe, "its connection was closed without a word");
    } else if (errno != EAGAIN && errno != EINTR) {
        died(pipe, strerror(errno));
    }
}

void xm_pipe_progress(xm_pipe_t *pipe)
{
    uint64_t landed = pipe->landed;
    int unfinished = pipe->unfinished;
    xm_status_t status = XM_OK;

    (void)xm_transport_progress(pipe->transport);
    if (!pipe->sender && pipe->verdict == XM_OK) {
        status = xm_pipe_take_messages(pipe);
        if (status == XM_ERR_CORRUPT) {
            say_word(pipe, XM_PIPE_REFUSE);
        }
        if (status == XM_OK) {
            status =
                xm_pipe_acknowledge(pipe, xm_transport_now(pipe->transport) >= pipe->next_look);
        }
    }
    if (status < 0) {
        xm_pipe_condemn(pipe, status);
    }
    if (pipe->stopping && (pipe->landed != landed || pipe->unfinished != unfinished)) {
        be_patient(pipe, xm_transport_now(pipe->transport));
    }
    look(pipe);
    settle(pipe);
}

/* Every use begins with this: the pipe must be open, and have a request to spare. */
static xm_status_t enter(xm_pipe_t *pipe, bool sender)
{
    if (pipe->stage != XM_PIPE_STAGE_OPEN || pipe->sender != sender) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "a pipe's %s end does not %s",
                            pipe->sender ? "sending" : "receiving",
                            pipe->stage != XM_PIPE_STAGE_OPEN ? "work yet"
                            : sender                          ? "send"
                                                              : "receive");
    }
    if (pipe->verdict == XM_OK &&
        (pipe->free_requests == NULL || (sender && pipe->sent - pipe->acked >= XM_PIPE_WINDOW))) {
        xm_pipe_progress(pipe);
    }
    if (pipe->verdict != XM_OK) {
        return verdict_of(pipe);
    }
    return pipe->free_requests == NULL || (sender && pipe->sent - pipe->acked >= XM_PIPE_WINDOW)
               ? XM_IN_PROGRESS
               : XM_OK;
}

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
            xm_pipe_condemn(pipe, status);
            settle(pipe);
            give_request(taken);
        } else {
            *request = taken;
        }
    }
    (void)pthread_mutex_unlock(&pipe->lock);
    if (*request != NULL) {
        xm_pipe_keeper_wake();
    }
    return status;
}

xm_status_t xm_pipe_receive(xm_pipe_t *pipe, int count, void *const *buffers, const size_t *sizes,
                            const int *tags, xm_memory_t *const *memories,
                            xm_pipe_request_t **request)
{
    xm_status_t status;

    *request = NULL;
    if (count < 1 || count > XM_PIPE_GROUP_MAX) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "a receive of %d messages; 1 to %d are possible", count,
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
        *pipe->last_posted = taken;
        pipe->last_posted = &taken->next;
        *request = taken;
        xm_pipe_progress(pipe);
    }
    (void)pthread_mutex_unlock(&pipe->lock);
    return status;
}

xm_status_t xm_pipe_test(xm_pipe_request_t *request, size_t *lengths)
{
    xm_pipe_t *pipe = request->pipe;
    xm_status_t status = XM_IN_PROGRESS;

    (void)pthread_mutex_lock(&pipe->lock);
    if (request->open > 0 && pipe->verdict == XM_OK) {
        xm_pipe_progress(pipe);
    }
    if (request->open == 0 && !request->failed) {
        for (int i = 0; i < request->count && lengths != NULL; ++i) {
            lengths[i] = request->slots[i].length;
        }
        status = XM_OK;
        give_request(request);
    } else if (pipe->verdict != XM_OK) {
        status = verdict_of(pipe);
        if (request->untaken > 0) {
            xm_pipe_remove_posted(pipe, request);
        }
        pipe->unfinished -= request->open > 0;
        give_request(request);
    }
    (void)pthread_mutex_unlock(&pipe->lock);
    return status;
}

xm_status_t xm_pipe_advance(xm_pipe_t *pipe)
{
    xm_status_t status = XM_OK;

    (void)pthread_mutex_lock(&pipe->lock);
    if (pipe->verdict != XM_OK) {
        status = verdict_of(pipe);
    } else if (pipe->stage != XM_PIPE_STAGE_OPEN || pipe->out_length > 0) {
        status = xm_pipe_shake_hands(pipe);
        if (status < 0) {
            xm_pipe_condemn(pipe, status);
        }
    }
    (void)pthread_mutex_unlock(&pipe->lock);
    return status;
}

xm_status_t xm_pipe_register(xm_pipe_t *pipe, void *address, size_t length, xm_memory_t **memory)
{
    xm_status_t status;

    (void)pthread_mutex_lock(&pipe->lock);
    status = pipe->stage == XM_PIPE_STAGE_OPEN
                 ? xm_transport_memory_register(pipe->transport, address, length, memory)
                 : xm_error_set(XM_ERR_INVALID_ARGUMENT, "the pipe is not open yet");
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

int xm_pipe_shares(xm_pipe_t *pipe, uint64_t number, size_t length, size_t *shares)
{
    uint64_t kind = length > XM_PIPE_INLINE_MAX ? XM_PIPE_TAG_DATA : XM_PIPE_TAG_HEADER;

    return pipe->own.machine == pipe->other.machine
               ? 0
               : xm_transport_ucx_shares(pipe->transport, xm_pipe_other_rank(pipe),
                                         xm_pipe_tag(kind, number), length, shares);
}

char *xm_pipe_path(xm_pipe_t *pipe, char *buffer, size_t size)
{
    buffer[0] = '\0';
    (void)pthread_mutex_lock(&pipe->lock);
    if (pipe->stage == XM_PIPE_STAGE_OPEN && pipe->verdict == XM_OK) {
        xm_transport_path(pipe->transport, xm_pipe_other_rank(pipe), buffer, size);
    }
    (void)pthread_mutex_unlock(&pipe->lock);
    return buffer;
}

char *xm_pipe_peer(const xm_pipe_t *pipe, char *buffer, size_t size)
{
    (void)snprintf(buffer, size, "%s pid %u", pipe->other.name, pipe->other.pid);
    return buffer;
}

const xm_counters_t *xm_pipe_counters(const xm_pipe_t *pipe)
{
    return pipe->counters;
}

/* What was sent and has ended well may still be on its way. */
static void linger(xm_pipe_t *pipe)
{
    int64_t end = xm_transport_now(pipe->transport) + linger_ns;

    while (pipe->verdict == XM_OK && pipe->unfinished == 0 && pipe->acked < pipe->sent &&
           xm_transport_now(pipe->transport) < end) {
        xm_pipe_progress(pipe);
        (void)poll(NULL, 0, pipe->acked < pipe->sent);
    }
}

/* Lets go of what is in flight. Returns what is to be said last; ' ': it has been. */
static char leave(xm_pipe_t *pipe)
{
    if (pipe->sender) {
        linger(pipe);
    } else if (pipe->verdict == XM_OK) {
        (void)xm_pipe_acknowledge(pipe, true);
    }
    if (pipe->verdict != XM_OK) {
        return ' ';
    }
    if (pipe->unfinished == 0 && (!pipe->sender || pipe->acked == pipe->sent)) {
        return XM_PIPE_BYE; /* when the transport has sent off its last answers */
    }
    say_word(pipe, XM_PIPE_STOP);
    if (pipe->unfinished > 0) {
        xm_pipe_condemn(pipe, xm_error_set(XM_ERR_CANCELED, "this end has closed the pipe"));
        settle(pipe);
    }
    return ' ';
}

void xm_pipe_destroy(xm_pipe_t *pipe)
{
    char word = ' ';

    if (pipe == NULL) {
        return;
    }
    xm_pipe_keeper_remove(pipe);
    if (pipe->stage == XM_PIPE_STAGE_OPEN) {
        word = leave(pipe);
    }
    xm_transport_destroy(pipe->transport);
    if (word != ' ') {
        say_word(pipe, (xm_pipe_word_t)word);
    }
    xm_counters_destroy(pipe->counters);
    if (pipe->fd >= 0) {
        (void)close(pipe->fd);
    }
    (void)pthread_mutex_destroy(&pipe->lock);
    free(pipe->receiver);
    free(pipe->requests);
    free(pipe->nics);
    free(pipe->out);
    free(pipe->in);
    free(pipe->blob);
    free(pipe);
}
