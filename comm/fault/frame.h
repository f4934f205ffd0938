/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/fault/frame.h
 * What the detectors of a job (detector.h) say to each other, as bytes. Internal.
 *
 * All integers little-endian:
 * @code
 *     offset 0   u32 magic "XMD1"        offset 24  u64 activity of the sender
 *     offset 4   u16 version (1)         offset 32  u32 generation of the group
 *     offset 6   u16 type                offset 36  u32 probe
 *     offset 8   u32 sender              offset 40  u32 rank asked about, plus 1; 0: none
 *     offset 12  u32 receiver            offset 44  u32 opinion of it; bit 8: the sender hears
 *     offset 16  u64 question                       the receiver
 *     offset 48  payload                 end        u64 SipHash of everything before
 * @endcode
 * FINDING and REFUSAL carry a fault (rank, status, sentence), HELLO and WELCOME four bits for each
 * rank of the job (an ::xm_standing_t, the lower rank in the lower half of a byte); the others
 * nothing. Ranks are those of the job as it began. Anybody can send to an open port, so nothing is
 * looked at before the hash is found right.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/job.h"
#include "comm/fault/siphash.h"

enum { XM_FRAME_HEAD_SIZE = 48, XM_FRAME_CODE_SIZE = 8 };

typedef enum xm_frame_type {
    XM_FRAME_ASK = 1, /**< are you there? and, of a witness: do you hear that one? */
    XM_FRAME_ANSWER,
    XM_FRAME_FINDING,  /**< the group has failed: a rank is gone, or has given up */
    XM_FRAME_LEAVE,    /**< the sender leaves in order */
    XM_FRAME_ATTACH,   /**< this connection is to be the bootstrap's from now on */
    XM_FRAME_ATTACHED, /**< so be it; what follows is the bootstrap's */
    XM_FRAME_HELLO,    /**< member → centre of a regrouping: what it knows of each rank */
    XM_FRAME_WELCOME,  /**< centre → member: the group is complete; who is in it */
    XM_FRAME_REFUSAL   /**< centre → member */
} xm_frame_type_t;

/** What a rank knows of another one when a group is formed anew. */
typedef enum xm_standing {
    XM_STANDING_WELL,    /**< heard, and it hears; in a WELCOME: a member */
    XM_STANDING_UNKNOWN, /**< not heard yet */
    XM_STANDING_CUT,     /**< nothing has passed to and fro for too long */
    XM_STANDING_CLOSED,  /**< its process has ended */
    XM_STANDING_OUT      /**< no member, or left out by the application */
} xm_standing_t;

/** What a witness says of the rank that it was asked about. */
typedef enum xm_opinion {
    XM_OPINION_NONE, /**< not yet */
    XM_OPINION_HEARS,
    XM_OPINION_SILENT
} xm_opinion_t;

typedef struct xm_frame {
    xm_frame_type_t type;
    int sender, receiver;
    uint64_t question;
    uint64_t activity;   /**< how often the sender's own thread has looked after the transport */
    uint32_t generation; /**< of the group, see group.h */
    uint32_t probe;      /**< ASK: number of the probe that is wanted; ANSWER: that the sender is
                             ready for; 0: none */
    int about;           /**< −1: nobody */
    xm_opinion_t opinion;
    bool hears;                 /**< the sender has heard the receiver lately */
    xm_bootstrap_fault_t fault; /**< FINDING, REFUSAL */
    uint8_t *standing;          /**< HELLO, WELCOME: an xm_standing_t for each rank, the caller's */
} xm_frame_t;

/** Bytes of the longest frame in a job of @p ranks ranks. */
size_t xm_frame_max_size(int ranks);

/** Returns the number of bytes written, at most xm_frame_max_size(). */
size_t xm_frame_encode(const xm_frame_t *frame, int ranks, const uint8_t key[XM_SIPHASH_KEY_SIZE],
                       uint8_t *bytes);

/** Fills @p frame, whose `standing` has room for @p ranks. XM_ERR_CORRUPT when the bytes are not of
 * this job. */
xm_status_t xm_frame_decode(const uint8_t *bytes, size_t length, int ranks,
                            const uint8_t key[XM_SIPHASH_KEY_SIZE], xm_frame_t *frame);
