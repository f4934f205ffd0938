/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/fault/stream.h
 * One connection between two detectors (courier.h says what it carries). Internal.
 *
 * Reading is by exact lengths, so that a connection can be handed over to the bootstrap without a
 * byte of it being lost here.
 */
#pragma once

#include "comm/fault/frame.h"

enum { XM_STREAM_NONCE = 16, XM_STREAM_PREFIX = 4 };

typedef struct xm_stream {
    int fd;      /**< −1: none */
    int address; /**< which of a rank's was called */
    bool open;   /**< connected */
    bool keyed;  /**< the nonce is known to both sides */
    bool known;  /**< a frame has come: it is a rank's */
    bool refused;
    int64_t since;
    uint8_t key[XM_SIPHASH_KEY_SIZE];
    uint8_t *bytes; /**< behind the prefix, the frame that was read */
    size_t have;
} xm_stream_t;

/** Closes and frees; a second call does nothing. */
void xm_stream_hang_up(xm_stream_t *stream);

/** Looks whether a connection that is being made has been made. 0: it is there; ECONNREFUSED;
 * another errno: it is not there yet, or has failed and is closed. */
int xm_stream_finish(xm_stream_t *stream);

/** Makes the key: the job's, by which the nonce is scattered. */
void xm_stream_make_key(xm_stream_t *stream, const uint8_t job_key[XM_SIPHASH_KEY_SIZE],
                        const uint8_t nonce[XM_STREAM_NONCE]);

/** Sends a frame, if the connection has a key. @p buffer has room for the prefix and the longest
 * frame. */
void xm_stream_send(xm_stream_t *stream, const xm_frame_t *frame, int ranks, uint8_t *buffer);

/** Reads one frame of @p length bytes, and nothing behind it; 0 bytes: it was the nonce.
 * XM_IN_PROGRESS: not all of it is there. */
xm_status_t xm_stream_read(xm_stream_t *stream, const uint8_t job_key[XM_SIPHASH_KEY_SIZE],
                           int ranks, size_t *length);
