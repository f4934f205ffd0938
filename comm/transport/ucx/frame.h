/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/transport/ucx/frame.h
 * The frames in which messages travel over several TCP rails (comm/transport/ucx/multirail.h), as
 * bytes. Internal.
 *
 * All integers little-endian:
 * @code
 *     offset 0   u16 magic "XF"                 offset 16  u64 tag
 *     offset 2   u8  kind                       offset 24  u64 length
 *     offset 3   u8  zero                       offset 32  u64 offset
 *     offset 4   u32 sender                     offset 40  u32 chunk
 *     offset 8   u64 message                    offset 44  u32 zero
 *     offset 48  u8  life of each of eight rails
 * @endcode
 * They are the headers of UCX's active messages. EAGER and CHUNK have bytes besides, and after them
 * one more byte that says whether they are what they should be.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"

enum {
    XM_UCX_FRAME_SIZE = 56,
    XM_UCX_FRAME_RAILS = 8,
    XM_UCX_FRAME_CHUNKS = 64, /**< of a message that may be on their way at a time: a segment */
};

/** GRANT's offset: nothing of the message is needed any more. */
#define XM_UCX_FRAME_ALL UINT64_MAX

typedef enum xm_ucx_frame_kind {
    XM_UCX_FRAME_EAGER = 1, /**< a short message: tag, length */
    XM_UCX_FRAME_START,     /**< there is a long one: tag, length, chunk */
    XM_UCX_FRAME_CHUNK,     /**< bytes of it from offset on */
    XM_UCX_FRAME_GRANT,     /**< answer: all before offset has come, the segment from there may; or
                                 ALL, for `length` messages from this one on */
    XM_UCX_FRAME_PING,      /**< is there anybody on this rail? */
    XM_UCX_FRAME_PONG,      /**< yes */
    XM_UCX_FRAME_FIN,       /**< the last of its sender, who has said before what has come */
} xm_ucx_frame_kind_t;

typedef struct xm_ucx_frame {
    xm_ucx_frame_kind_t kind;
    /** How often the sender has given each rail up or taken it back: odd, it is given up. */
    uint8_t life[XM_UCX_FRAME_RAILS];
    int sender;
    uint64_t message; /**< its number, counted by its sender for each receiver */
    uint64_t tag;
    uint64_t length;
    uint64_t offset;
    uint32_t chunk; /**< bytes of all chunks but the last */
} xm_ucx_frame_t;

void xm_ucx_frame_encode(const xm_ucx_frame_t *frame, uint8_t bytes[XM_UCX_FRAME_SIZE]);

/** XM_ERR_CORRUPT when the bytes are no frame, or one with impossible numbers. */
xm_status_t xm_ucx_frame_decode(const void *bytes, size_t length, xm_ucx_frame_t *frame);
