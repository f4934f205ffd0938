/* SPDX-License-Identifier: Apache-2.0 */
/* One connection between two detectors. Anybody can connect, so a length is checked before anything
 * is read behind it, and a nonce makes each connection's key another one. */
#include "comm/fault/stream.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/base.h"

void xm_stream_hang_up(xm_stream_t *stream)
{
    if (stream->fd >= 0) {
        (void)close(stream->fd);
    }
    free(stream->bytes);
    *stream = (xm_stream_t){.fd = -1, .address = stream->address};
}

int xm_stream_finish(xm_stream_t *stream)
{
    struct pollfd entry = {.fd = stream->fd, .events = POLLOUT};
    int error = 0;
    socklen_t length = sizeof(error);

    if (stream->fd < 0 || stream->open || poll(&entry, 1, 0) <= 0) {
        return stream->open ? 0 : EINPROGRESS;
    }
    if (getsockopt(stream->fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
        error = errno;
    }
    stream->open = error == 0;
    if (error != 0) {
        xm_stream_hang_up(stream);
    }
    return error;
}

void xm_stream_make_key(xm_stream_t *stream, const uint8_t job_key[XM_SIPHASH_KEY_SIZE],
                        const uint8_t nonce[XM_STREAM_NONCE])
{
    uint8_t bytes[XM_STREAM_NONCE + 1];

    memcpy(bytes, nonce, XM_STREAM_NONCE);
    for (int half = 0; half < 2; ++half) {
        bytes[XM_STREAM_NONCE] = (uint8_t)half;
        xm_put_le(stream->key + 8 * half, xm_siphash(job_key, bytes, sizeof(bytes)), 8);
    }
    stream->keyed = true;
}

/* Frames are small; one that the kernel does not take at once ends the connection, since half a
 * frame would make the rest unreadable. */
void xm_stream_send(xm_stream_t *stream, const xm_frame_t *frame, int ranks, uint8_t *buffer)
{
    size_t length;

    if (stream->fd < 0 || !stream->keyed) {
        return;
    }
    length = xm_frame_encode(frame, ranks, stream->key, buffer + XM_STREAM_PREFIX);
    xm_put_le(buffer, length, XM_STREAM_PREFIX);
    length += XM_STREAM_PREFIX;
    if (send(stream->fd, buffer, length, MSG_NOSIGNAL) != (ssize_t)length) {
        xm_stream_hang_up(stream);
    }
}

/* Reads up to `length` bytes in all. XM_OK: they are there. */
static xm_status_t read_exactly(xm_stream_t *stream, size_t length)
{
    while (stream->have < length) {
        ssize_t got = recv(stream->fd, stream->bytes + stream->have, length - stream->have, 0);

        if (got > 0) {
            stream->have += (size_t)got;
        } else if (got < 0 && errno == EINTR) {
            continue;
        } else {
            return got < 0 && errno == EAGAIN ? XM_IN_PROGRESS : XM_ERR_IO;
        }
    }
    return XM_OK;
}

xm_status_t xm_stream_read(xm_stream_t *stream, const uint8_t job_key[XM_SIPHASH_KEY_SIZE],
                           int ranks, size_t *length)
{
    size_t most = xm_frame_max_size(ranks);
    xm_status_t status;

    *length = 0;
    if (stream->bytes == NULL) {
        stream->bytes = malloc(XM_STREAM_PREFIX + most);
        if (stream->bytes == NULL) {
            return XM_ERR_NO_MEMORY;
        }
    }
    if (!stream->keyed) {
        status = read_exactly(stream, XM_STREAM_NONCE);
        if (status == XM_OK) {
            xm_stream_make_key(stream, job_key, stream->bytes);
            stream->have = 0;
        }
        return status;
    }
    XM_TRY(read_exactly(stream, XM_STREAM_PREFIX));
    *length = (size_t)xm_get_le(stream->bytes, XM_STREAM_PREFIX);
    return *length < XM_FRAME_HEAD_SIZE || *length > most
               ? XM_ERR_CORRUPT
               : read_exactly(stream, XM_STREAM_PREFIX + *length);
}
