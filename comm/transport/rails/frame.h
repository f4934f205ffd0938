/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/transport/rails/frame.h
 * The frames in which messages travel over several rails (comm/transport/rails/rails.h), as
 * bytes. Internal.
 *
 * All integers little-endian:
 * @code
 *     offset 0   u16 magic "XF"                 offset 16  u64 tag
 *     offset 2   u8  kind                       offset 24  u64 length
 *     offset 3   u8  zero                       offset 32  u64 offset
 *     offset 4   u32 sender                     offset 40  u32 chunk
 *     offset 8   u64 message                    offset 44  u16 credits
 *                                               offset 46  u16 zero
 *     offset 48  u8  life of each of eight rails
 * @endcode
 * An EAGER has its bytes besides; a CHUNK has, where lanes copy. Where they put, a GRANT has the
 * keys to the memory of its message, a u32 for each rail.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"

enum {
    XM_RAILS_FRAME_SIZE = 56,
    XM_RAILS_FRAME_RAILS = 8,
    XM_RAILS_FRAME_CHUNKS = 64, /**< of a message that may be on their way at a time: a segment */
};

/** GRANT's offset: nothing of the message is needed any more. */
#define XM_RAILS_FRAME_ALL UINT64_MAX

typedef enum xm_rails_frame_kind {
    XM_RAILS_FRAME_EAGER = 1, /**< a short message: tag, length */
    XM_RAILS_FRAME_START,     /**< there is a long one: tag, length, chunk */
    XM_RAILS_FRAME_CHUNK,     /**< bytes of it from offset on */
    XM_RAILS_FRAME_GRANT,  /**< answer: all before offset has come, the segment from there may; or
                              ALL, for `length` messages from this one on. Where lanes put,
                              `length` is an address, and `tag` has a bit for each chunk of the
                              segment that has come */
    XM_RAILS_FRAME_PING,   /**< is there anybody on this rail? */
    XM_RAILS_FRAME_PONG,   /**< yes */
    XM_RAILS_FRAME_FIN,    /**< the last of its sender, who has said before what has come */
    XM_RAILS_FRAME_CREDIT, /**< nothing but what every frame says */
    XM_RAILS_FRAME_BACK,   /**< lane `offset`, which is given up, may be joined with `message` */
    XM_RAILS_FRAME_HERE,   /**< the answer: it was, with `message` here */
} xm_rails_frame_kind_t;

typedef struct xm_rails_frame {
    xm_rails_frame_kind_t kind;
    /** How often the sender has given each rail up or taken it back: odd, it is given up. */
    uint8_t life[XM_RAILS_FRAME_RAILS];
    int sender;
    uint64_t message; /**< its number, counted by its sender for each receiver */
    uint64_t tag;
    uint64_t length;
    uint64_t offset;
    uint32_t chunk;   /**< bytes of all chunks but the last; of an EAGER: 1 if its sender waits */
    uint16_t credits; /**< for the lane: so many more frames may be sent */
} xm_rails_frame_t;

void xm_rails_frame_encode(const xm_rails_frame_t *frame, uint8_t bytes[XM_RAILS_FRAME_SIZE]);

/** XM_ERR_CORRUPT when the bytes are no frame, or one with impossible numbers. */
xm_status_t xm_rails_frame_decode(const void *bytes, size_t length, xm_rails_frame_t *frame);
