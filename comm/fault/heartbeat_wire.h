/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file heartbeat_wire.h
 * The datagrams of the heartbeat, as bytes. Internal.
 *
 * All integers little-endian:
 * @code
 *     offset 0   u32 magic "XMH1"        offset 24  u64 activity of the sender
 *     offset 4   u16 version (1)         offset 32  u32 generation of the group
 *     offset 6   u16 type                offset 36  u32 probe
 *     offset 8   u32 sender              end        u64 SipHash of everything before,
 *     offset 12  u32 receiver                       by the job's key
 *     offset 16  u64 question            FAULT_STATUS only, behind offset 36:
 *                                        u32 rank, i32 status, u16 length, sentence
 * @endcode
 * Ranks are those of the job as it began. PING asks with a number, PONG answers it. Anybody can
 * send datagrams to an open port, so nothing is looked at before the hash is found right.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/job.h"
#include "comm/fault/siphash.h"

enum {
    XM_HEARTBEAT_HEAD_SIZE = 40,
    XM_HEARTBEAT_CODE_SIZE = 8,
    XM_HEARTBEAT_MAX_SIZE =
        XM_HEARTBEAT_HEAD_SIZE + XM_BOOTSTRAP_FAULT_SIZE + XM_HEARTBEAT_CODE_SIZE
};

typedef enum xm_heartbeat_type {
    XM_HEARTBEAT_PING = 1,
    XM_HEARTBEAT_PONG,
    XM_HEARTBEAT_FAULT_STATUS /**< a rank is gone, or has given up */
} xm_heartbeat_type_t;

typedef struct xm_heartbeat_frame {
    xm_heartbeat_type_t type;
    int sender, receiver;
    uint64_t question;
    uint64_t activity;   /**< how often the sender's own thread has looked after the transport */
    uint32_t generation; /**< of the group, see group.h */
    uint32_t probe;      /**< PING: number of the probe that is wanted; PONG: that the sender is
                             ready for; 0: none */
    xm_bootstrap_fault_t fault; /**< FAULT STATUS */
} xm_heartbeat_frame_t;

/** Returns the number of bytes written. */
size_t xm_heartbeat_encode(const xm_heartbeat_frame_t *frame,
                           const uint8_t key[XM_SIPHASH_KEY_SIZE],
                           uint8_t bytes[XM_HEARTBEAT_MAX_SIZE]);

/** XM_ERR_CORRUPT when the bytes are not a datagram of this job. */
xm_status_t xm_heartbeat_decode(const uint8_t *bytes, size_t length,
                                const uint8_t key[XM_SIPHASH_KEY_SIZE],
                                xm_heartbeat_frame_t *frame);
