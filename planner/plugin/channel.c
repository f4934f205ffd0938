/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages over a socket with a deadline for every byte. The other end is a plug-in that may hang,
 * crash or write nonsense; so nothing blocks for longer than asked, a closed socket is an error and
 * no signal, and a length is checked before memory is taken for it.
 *
 * Messages are structures as they lie in memory: both ends are one program, split by a fork.
 */

#include "planner/plugin/channel.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "comm/base.h"

/* No text is longer: a plan of a thousand stages has some megabytes. */
enum { MOST_BYTES = 1 << 30 };

/* Waits until the socket is ready for this. A wait is at most a second long, because poll() counts
 * milliseconds in an int and deadlines may be infinite. */
static xm_status_t wait_for(int socket, short events, double deadline)
{
    enum { LONGEST_MS = 1000 };

    for (;;) {
        struct pollfd entry = {.fd = socket, .events = events};
        double left = deadline - xm_clock_seconds();
        int ms = left < 1e-3 * LONGEST_MS ? (int)ceil(1e3 * fmax(left, 0.0)) : LONGEST_MS;
        int ready = poll(&entry, 1, ms);

        if (ready > 0) {
            return XM_OK;
        }
        if (ready < 0 && errno != EINTR) {
            return xm_error_set(XM_ERR_IO, "poll: %s", strerror(errno));
        }
        if (left <= 0.0) {
            return xm_error_set(XM_ERR_TIMEOUT, "the deadline passed");
        }
    }
}

/* Whether a call that moved nothing may be tried again once the socket is ready. */
static bool is_busy(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

static xm_status_t send_all(int socket, double deadline, const void *bytes, size_t length)
{
    const char *at = bytes;

    while (length > 0) {
        ssize_t sent = send(socket, at, length, MSG_NOSIGNAL | MSG_DONTWAIT);
        xm_status_t status;

        if (sent > 0) {
            at += sent;
            length -= (size_t)sent;
            continue;
        }
        if (!is_busy()) {
            return xm_error_set(XM_ERR_PEER_DIED, "send: %s", strerror(errno));
        }
        status = wait_for(socket, POLLOUT, deadline);
        if (status != XM_OK) {
            return status;
        }
    }
    return XM_OK;
}

static xm_status_t receive_all(int socket, double deadline, void *bytes, size_t length)
{
    char *at = bytes;

    while (length > 0) {
        ssize_t got = recv(socket, at, length, MSG_DONTWAIT);
        xm_status_t status;

        if (got > 0) {
            at += got;
            length -= (size_t)got;
            continue;
        }
        if (got == 0 || !is_busy()) {
            return xm_error_set(XM_ERR_PEER_DIED, "the other end is gone");
        }
        status = wait_for(socket, POLLIN, deadline);
        if (status != XM_OK) {
            return status;
        }
    }
    return XM_OK;
}

/* Cleared first, so that no padding of the stack goes over the socket. */
xm_status_t ap_channel_send(int socket, double deadline, const ap_message_t *message,
                            const char *text)
{
    ap_message_t head;
    xm_status_t status;

    memset(&head, 0, sizeof(head));
    head.kind = message->kind;
    head.number = message->number;
    head.fraction = message->fraction;
    head.length = text != NULL ? strlen(text) : 0;
    status = send_all(socket, deadline, &head, sizeof(head));
    return status == XM_OK ? send_all(socket, deadline, text, (size_t)head.length) : status;
}

/* The text ends in a zero byte, whatever was sent. */
xm_status_t ap_channel_receive(int socket, double deadline, ap_message_t *message, char **text)
{
    xm_status_t status = receive_all(socket, deadline, message, sizeof(*message));
    char *made;

    if (status != XM_OK) {
        return status;
    }
    if (message->kind < AP_MESSAGE_READY || message->kind > AP_MESSAGE_END ||
        message->length > MOST_BYTES) {
        return xm_error_set(XM_ERR_CORRUPT, "a message of kind %u with %llu bytes", message->kind,
                            (unsigned long long)message->length);
    }
    made = malloc((size_t)message->length + 1);
    if (made == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a message of %llu bytes",
                            (unsigned long long)message->length);
    }
    made[message->length] = '\0';
    status = receive_all(socket, deadline, made, (size_t)message->length);
    if (status != XM_OK) {
        free(made);
        return status;
    }
    *text = made;
    return XM_OK;
}
