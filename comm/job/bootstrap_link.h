/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bootstrap_link.h
 * One non-blocking connection of the TCP bootstrap: frames in, frames out. Internal.
 *
 * The owner registers the descriptor with an epoll instance of its own; xm_bootstrap_link_flush()
 * keeps the interest in writability right. Nothing here waits.
 */
#pragma once

#include "comm/job/bootstrap_wire.h"

typedef struct xm_bootstrap_link {
    int fd;       /**< -1 when closed */
    int epoll;    /**< the owner's instance */
    uint64_t key; /**< what epoll reports for it */
    /** One bit (1 << type) for each type that may come, 0 for all: nothing else is read, above all
     * nothing large, from whom has not said who it is. */
    uint32_t expected;

    uint8_t header[XM_BOOTSTRAP_HEADER_SIZE];
    size_t header_have;
    xm_bootstrap_header_t frame; /**< of the frame being read, or just read */
    uint8_t *payload;
    size_t payload_have;
    bool frame_read; /**< the next receive starts a new frame */

    uint8_t *out; /**< small frames waiting for the socket */
    size_t out_length, out_sent, out_capacity;
    const uint8_t *bulk; /**< one large frame that belongs to the owner */
    size_t bulk_length, bulk_sent;
    bool wants_write;
} xm_bootstrap_link_t;

/** Takes over @p fd (makes it non-blocking, close-on-exec, keep-alive) and adds it to @p epoll. */
xm_status_t xm_bootstrap_link_open(xm_bootstrap_link_t *link, int fd, int epoll, uint64_t key);

/** Gives the connection up early when the other side does not acknowledge what is sent: for links
 * that are replaced. */
void xm_bootstrap_link_hurry(xm_bootstrap_link_t *link);

/** Changes what epoll reports. */
xm_status_t xm_bootstrap_link_set_key(xm_bootstrap_link_t *link, uint64_t key);

/** Queues a small frame (copied) and writes what the socket takes. Failures show up on receive. */
void xm_bootstrap_link_send(xm_bootstrap_link_t *link, xm_bootstrap_type_t type, uint32_t sequence,
                            const void *payload, size_t length);

/** Sends a complete frame that stays the owner's, untouched until xm_bootstrap_link_idle(). */
void xm_bootstrap_link_send_bulk(xm_bootstrap_link_t *link, const uint8_t *frame, size_t length);

/** Writes what the socket takes. */
void xm_bootstrap_link_flush(xm_bootstrap_link_t *link);

/** True when everything was handed to the kernel, or the link is closed. */
bool xm_bootstrap_link_idle(const xm_bootstrap_link_t *link);

/**
 * XM_OK: link->frame and link->payload hold a frame, until the next call. XM_IN_PROGRESS: nothing
 * complete yet. XM_ERR_IO: closed by the other side. XM_ERR_CORRUPT: not our protocol;
 * XM_ERR_MISMATCH: another version of it. The owner
 * may take the payload by setting link->payload to NULL.
 */
xm_status_t xm_bootstrap_link_receive(xm_bootstrap_link_t *link);

/** Removes it from epoll, closes, frees. Idempotent. */
void xm_bootstrap_link_close(xm_bootstrap_link_t *link);
