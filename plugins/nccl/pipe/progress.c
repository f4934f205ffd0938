/* SPDX-License-Identifier: Apache-2.0 */
/* How a pipe moves, and how it learns of the other end. Each use of a pipe makes progress on
 * the transport and, every 10 ms, looks at the TCP connection, by whose end a death is known
 * within milliseconds. A byte on it says that the other end has closed in order; then what is
 * still on its way gets some time. Failures found inside callbacks are only noted and acted
 * upon afterwards, since the transport cannot be fenced from its own callbacks. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "plugins/nccl/pipe/pipe_private.h"

/* look_ns: how often the socket is looked at. The others: how long an end waits for what is on
 * its way when the other one has closed: messages of a sender, or a receiver's answers to them. */
static const int64_t look_ns = 10 * 1000000, messages_ns = 1000 * 1000000LL,
                     answers_ns = 100 * 1000000LL;

char *xm_pipe_peer(const xm_pipe_t *pipe, char *buffer, size_t size)
{
    (void)snprintf(buffer, size, "%s pid %u", pipe->other.name, pipe->other.pid);
    return buffer;
}

/* Says the end's last word. The socket's buffer is empty, so it fits. */
void xm_pipe_say_word(const xm_pipe_t *pipe, xm_pipe_word_t word)
{
    uint8_t byte = (uint8_t)word;

    (void)send(pipe->fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Makes a failure that callbacks have noted one of the transport: everything in flight ends,
 * and no memory is touched any more. The transport takes the other end for dead, whatever the
 * failure: UCX 1.13 aborts the process when a worker is destroyed whose connection is half
 * made, and so keeps it. After an orderly end there is nothing to be cut off. */
void xm_pipe_settle(xm_pipe_t *pipe)
{
    if (pipe->fault_status == XM_OK || pipe->fenced || pipe->transport == NULL ||
        (pipe->fault_status == XM_ERR_CANCELED && pipe->unfinished == 0)) {
        return;
    }
    pipe->fenced = true;
    xm_transport_peer_failed(pipe->transport, xm_pipe_other_rank(pipe));
    xm_transport_fence(pipe->transport);
}

static void died(xm_pipe_t *pipe, const char *why)
{
    char peer[XM_PIPE_NAME_SIZE + 32];

    xm_pipe_mark_failed(pipe,
                        xm_error_set(XM_ERR_PEER_DIED, "the other end of the pipe, %s, is gone: %s",
                                     xm_pipe_peer(pipe, peer, sizeof(peer)), why));
}

/* Sets how long this end waits: something is on its way from an end that has closed, unless it
 * owes nothing. */
static void be_patient(xm_pipe_t *pipe, int64_t now)
{
    pipe->timeout_end = now + (pipe->unfinished == 0 ? 0 : pipe->sender ? answers_ns : messages_ns);
}

/* The other end has said its last word: that it refuses a message, or that it closes. */
static void hear(xm_pipe_t *pipe, uint8_t word, int64_t now)
{
    char peer[XM_PIPE_NAME_SIZE + 32];

    (void)xm_pipe_peer(pipe, peer, sizeof(peer));
    if (word == XM_PIPE_REFUSE) {
        xm_pipe_mark_failed(
            pipe, xm_error_set(XM_ERR_CORRUPT,
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

    if (now < pipe->next_look || pipe->fault_status != XM_OK) {
        return;
    }
    pipe->next_look = now + look_ns;
    if (pipe->stopping) {
        if (now > pipe->timeout_end) {
            char peer[XM_PIPE_NAME_SIZE + 32];

            xm_pipe_mark_failed(pipe, xm_error_set(XM_ERR_CANCELED, "%s has closed the pipe",
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

/* One round: the transport, then messages and acknowledgements, then the connection, then what
 * has gone wrong. Whatever moves while the other end is closing prolongs the wait. */
void xm_pipe_progress(xm_pipe_t *pipe)
{
    uint64_t landed = pipe->landed;
    int unfinished = pipe->unfinished;
    xm_status_t status = XM_OK;

    (void)xm_transport_progress(pipe->transport);
    if (!pipe->sender && pipe->fault_status == XM_OK) {
        status = xm_pipe_take_messages(pipe);
        if (status == XM_ERR_CORRUPT) {
            xm_pipe_say_word(pipe, XM_PIPE_REFUSE);
        }
        if (status == XM_OK) {
            status =
                xm_pipe_acknowledge(pipe, xm_transport_now(pipe->transport) >= pipe->next_look);
        }
    }
    if (status < 0) {
        xm_pipe_mark_failed(pipe, status);
    }
    if (pipe->stopping && (pipe->landed != landed || pipe->unfinished != unfinished)) {
        be_patient(pipe, xm_transport_now(pipe->transport));
    }
    look(pipe);
    xm_pipe_settle(pipe);
}
