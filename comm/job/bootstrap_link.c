/* SPDX-License-Identifier: Apache-2.0 */
/* One connection of the TCP bootstrap. Frames go out from two queues: small ones, which are
 * copied, and one large frame that belongs to the owner, because the result of an allgather is
 * sent to every rank and should exist once. Nothing here waits: what the socket does not take
 * now is sent when epoll says so. A write that fails is ignored, since the read side of the
 * same connection reports it in any case, and then there is one place that decides what a
 * broken connection means. */
#include "comm/job/bootstrap_link.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* The times after which a host that vanishes without closing its sockets is noticed.
 * USER_TIMEOUT_MS limits unacknowledged data; keep-alive covers a silent connection. */
enum {
    KEEPALIVE_IDLE_S = 2,
    KEEPALIVE_INTERVAL_S = 1,
    KEEPALIVE_COUNT = 5,
    USER_TIMEOUT_MS = 8000,
    HURRIED_IDLE_S = 1,
    HURRIED_TIMEOUT_MS = 2500
};

static void set_option(int fd, int level, int option, int value)
{
    /* Refused only for sockets that are not TCP, where the option has no meaning. */
    (void)setsockopt(fd, level, option, &value, sizeof(value));
}

static struct epoll_event interest(const xm_bootstrap_link_t *link)
{
    return (struct epoll_event){.events = EPOLLIN | (link->wants_write ? (uint32_t)EPOLLOUT : 0u),
                                .data.u64 = link->key};
}

/* Takes the descriptor over; on failure it is closed. NODELAY because frames are small and each
 * is waited for. */
xm_status_t xm_bootstrap_link_open(xm_bootstrap_link_t *link, int fd, int epoll, uint64_t key)
{
    struct epoll_event event;

    *link = (xm_bootstrap_link_t){.fd = fd, .epoll = epoll, .key = key};
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_COUNT);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, USER_TIMEOUT_MS);
    event = interest(link);
    if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 ||
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        int error = errno;

        (void)close(fd);
        link->fd = -1;
        return xm_error_set(XM_ERR_IO, "cannot set up a bootstrap connection: %s", strerror(error));
    }
    return XM_OK;
}

void xm_bootstrap_link_hurry(xm_bootstrap_link_t *link)
{
    set_option(link->fd, IPPROTO_TCP, TCP_KEEPIDLE, HURRIED_IDLE_S);
    set_option(link->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, HURRIED_TIMEOUT_MS);
}

/* Changes what epoll reports for the descriptor, and its interest in writing with it. */
xm_status_t xm_bootstrap_link_set_key(xm_bootstrap_link_t *link, uint64_t key)
{
    struct epoll_event event;

    link->key = key;
    event = interest(link);
    if (epoll_ctl(link->epoll, EPOLL_CTL_MOD, link->fd, &event) != 0) {
        return xm_error_set(XM_ERR_IO, "epoll_ctl: %s", strerror(errno));
    }
    return XM_OK;
}

/* Writes up to `length` bytes; a broken connection is left for receive to report. MSG_NOSIGNAL
 * keeps a peer's death from killing this process by SIGPIPE. */
static size_t write_some(int fd, const uint8_t *bytes, size_t length)
{
    size_t sent = 0;

    while (sent < length) {
        ssize_t written = send(fd, bytes + sent, length - sent, MSG_NOSIGNAL);

        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written < 0) {
            break;
        }
        sent += (size_t)written;
    }
    return sent;
}

static void flush_small(xm_bootstrap_link_t *link)
{
    link->out_sent +=
        write_some(link->fd, link->out + link->out_sent, link->out_length - link->out_sent);
    if (link->out_sent == link->out_length) {
        link->out_sent = 0;
        link->out_length = 0;
    }
}

static void flush_bulk(xm_bootstrap_link_t *link)
{
    link->bulk_sent +=
        write_some(link->fd, link->bulk + link->bulk_sent, link->bulk_length - link->bulk_sent);
    if (link->bulk_sent == link->bulk_length) {
        link->bulk = NULL;
    }
}

/* Sends what the socket takes, and asks epoll for writability exactly while something is left. */
void xm_bootstrap_link_flush(xm_bootstrap_link_t *link)
{
    bool wanted;

    if (link->fd < 0) {
        return;
    }
    /* A frame that was begun is finished before another starts. */
    if (link->bulk != NULL && link->bulk_sent > 0) {
        flush_bulk(link);
    }
    if (link->out_length > 0 && (link->bulk == NULL || link->bulk_sent == 0)) {
        flush_small(link);
    }
    if (link->bulk != NULL && link->out_length == 0) {
        flush_bulk(link);
    }
    wanted = !xm_bootstrap_link_idle(link);
    if (wanted != link->wants_write) {
        link->wants_write = wanted;
        (void)xm_bootstrap_link_set_key(link, link->key);
    }
}

bool xm_bootstrap_link_idle(const xm_bootstrap_link_t *link)
{
    return link->fd < 0 || (link->out_length == 0 && link->bulk == NULL);
}

/* Queues a small frame and tries to send it at once. The buffer only grows as far as frames
 * have piled up. */
void xm_bootstrap_link_send(xm_bootstrap_link_t *link, xm_bootstrap_type_t type, uint32_t sequence,
                            const void *payload, size_t length)
{
    xm_bootstrap_header_t header = {.type = type, .sequence = sequence, .length = (uint32_t)length};
    size_t needed = link->out_length + XM_BOOTSTRAP_HEADER_SIZE + length;

    if (link->fd < 0) {
        return;
    }
    if (needed > link->out_capacity) {
        uint8_t *larger = realloc(link->out, needed);

        if (larger == NULL) {
            /* Without the frame the protocol is broken: end the connection, receive reports it. */
            (void)shutdown(link->fd, SHUT_RDWR);
            return;
        }
        link->out = larger;
        link->out_capacity = needed;
    }
    xm_bootstrap_header_encode(&header, link->out + link->out_length);
    if (length > 0) {
        memcpy(link->out + link->out_length + XM_BOOTSTRAP_HEADER_SIZE, payload, length);
    }
    link->out_length = needed;
    xm_bootstrap_link_flush(link);
}

/* Sends a large frame that the owner keeps until xm_bootstrap_link_idle(). There is one at a
 * time. */
void xm_bootstrap_link_send_bulk(xm_bootstrap_link_t *link, const uint8_t *frame, size_t length)
{
    link->bulk = frame;
    link->bulk_length = length;
    link->bulk_sent = 0;
    xm_bootstrap_link_flush(link);
}

/* Reads up to `length` bytes. XM_OK: *have == length. An end of the stream is an error here,
 * for an orderly leave is announced by a frame before. */
static xm_status_t read_some(int fd, uint8_t *bytes, size_t length, size_t *have)
{
    while (*have < length) {
        ssize_t got = recv(fd, bytes + *have, length - *have, 0);

        if (got > 0) {
            *have += (size_t)got;
        } else if (got < 0 && errno == EINTR) {
            continue;
        } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return XM_IN_PROGRESS;
        } else {
            return XM_ERR_IO;
        }
    }
    return XM_OK;
}

/* Reads one frame in as many calls as it takes. The header is checked before memory is taken
 * for the payload, and a type that may not come now ends the connection, so a stranger can make
 * this process allocate no more than a hello. */
xm_status_t xm_bootstrap_link_receive(xm_bootstrap_link_t *link)
{
    xm_status_t status;

    if (link->fd < 0) {
        return XM_IN_PROGRESS;
    }
    /* The last frame was the caller's until this call, unless it has taken the payload. */
    if (link->frame_read) {
        free(link->payload);
        link->payload = NULL;
        link->header_have = 0;
        link->frame_read = false;
    }
    if (link->header_have < sizeof(link->header)) {
        XM_TRY(read_some(link->fd, link->header, sizeof(link->header), &link->header_have));
        XM_TRY(xm_bootstrap_header_decode(link->header, &link->frame));
        if (link->expected != 0 && (link->expected >> (int)link->frame.type & 1) == 0) {
            return xm_error_set(XM_ERR_CORRUPT, "bootstrap frame: type %d before its time",
                                (int)link->frame.type);
        }
        link->payload_have = 0;
        link->payload = malloc(link->frame.length > 0 ? link->frame.length : 1);
        if (link->payload == NULL) {
            return xm_error_set(XM_ERR_CORRUPT, "no memory for a bootstrap frame of %u bytes",
                                link->frame.length);
        }
    }
    status = read_some(link->fd, link->payload, link->frame.length, &link->payload_have);
    link->frame_read = status == XM_OK;
    return status;
}

/* Closes and frees; a second call does nothing. */
void xm_bootstrap_link_close(xm_bootstrap_link_t *link)
{
    if (link->fd >= 0) {
        (void)epoll_ctl(link->epoll, EPOLL_CTL_DEL, link->fd, NULL);
        (void)close(link->fd);
    }
    free(link->payload);
    free(link->out);
    *link = (xm_bootstrap_link_t){.fd = -1};
}
