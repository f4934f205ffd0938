/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file regroup_wire.h
 * The frames of a regrouping (regroup.h), as bytes. Internal.
 *
 * All integers little-endian:
 * @code
 *     offset 0  u32 magic "XMG1"   offset 8   u32 sender, a rank of the job as it began
 *     offset 4  u16 version (1)    offset 12  u32 generation
 *     offset 6  u16 type           offset 16  u32 length of the payload
 *     offset 20 payload            then       u64 SipHash of everything before, by the job's key
 * @endcode
 * HELLO carries the set of ranks that the sender takes for dead, WELCOME the members of the new
 * group (a bit per rank of the job, bit r % 8 of byte r / 8; unused bits are 0), REFUSAL a fault.
 */
#pragma once

#include "comm/job.h"
#include "comm/fault/siphash.h"

enum { XM_REGROUP_HEAD_SIZE = 20, XM_REGROUP_CODE_SIZE = 8 };

typedef enum xm_regroup_type {
    XM_REGROUP_HELLO = 1, /**< member → centre */
    XM_REGROUP_WELCOME,   /**< centre → member: the group is complete */
    XM_REGROUP_REFUSAL    /**< centre → member */
} xm_regroup_type_t;

typedef struct xm_regroup_frame {
    xm_regroup_type_t type;
    int sender;
    uint32_t generation;
    bool *set;                  /**< HELLO, WELCOME: `ranks` entries of the caller */
    xm_bootstrap_fault_t fault; /**< REFUSAL */
} xm_regroup_frame_t;

/** Bytes of the longest frame in a job of @p ranks ranks. */
size_t xm_regroup_max_size(int ranks);

/** Returns the number of bytes written, at most xm_regroup_max_size(). */
size_t xm_regroup_encode(const xm_regroup_frame_t *frame, int ranks,
                         const uint8_t key[XM_SIPHASH_KEY_SIZE], uint8_t *bytes);

/**
 * How many bytes to read next, of a frame of which @p length bytes are there: so many that nothing
 * of what follows it is read. At least 1; what makes no sense is found by xm_regroup_decode().
 */
size_t xm_regroup_wants(const uint8_t *bytes, size_t length, int ranks);

/**
 * XM_OK: @p bytes begin with a frame of @p used bytes. XM_IN_PROGRESS: they may be the beginning of
 * one. XM_ERR_CORRUPT: they are not of this job, or make no sense.
 */
xm_status_t xm_regroup_decode(const uint8_t *bytes, size_t length, int ranks,
                              const uint8_t key[XM_SIPHASH_KEY_SIZE], xm_regroup_frame_t *frame,
                              size_t *used);
