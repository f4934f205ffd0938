/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file proven.h
 * A message that proves itself: the receiver compares what has come with the sender's hash of it
 * (XXH3, 64 bits), and has it sent again when they differ.
 *
 * Beside the message itself travel the hash, and the receiver's answer on its way back. The two
 * ends begin with the same three tags; the message ends at the sender when the receiver has
 * accepted it, so its buffer must not change before. A message that is still wrong when it has been
 * sent eleven times ends with XM_ERR_CORRUPT at the receiver; the sender, which may wait for an
 * answer for ever if that was what got lost, is told by whoever has the group. It sends no more
 * than eleven times either, whatever it is asked.
 *
 * Buffers are in host memory. Nothing is allocated.
 */
#pragma once

#include "comm/transport/transport.h"

/** What travels: the index of tags. */
typedef enum xm_proven_part {
    XM_PROVEN_DATA,
    XM_PROVEN_HASH,
    XM_PROVEN_ANSWER,
    XM_PROVEN_PARTS
} xm_proven_part_t;

/** One message at one end. Zero it once; it can be posted again after it has ended. */
typedef struct xm_proven {
    xm_op_t ops[XM_PROVEN_PARTS];
    xm_transport_t *transport;
    uint64_t tags[XM_PROVEN_PARTS];
    int peer;
    bool sends;
    char *buffer;
    size_t length;
    xm_memory_t *memory;
    xm_op_t *whole;  /* whose `done` hears of the end */
    uint64_t hash;   /* the sender's, little-endian */
    uint64_t answer; /* all bits set: accepted; none: once more */
    unsigned busy;   /* bits by part; one more while something else keeps it from its end */
    int wrong;       /* times that it has come so, or was asked for again */
    bool accepted, canceled;
    xm_error_t failure;
} xm_proven_t;

/**
 * Sends or receives @p length bytes of @p buffer. @p whole is used for its `done` and `arg` only;
 * `done` is called once, possibly before this returns.
 */
void xm_proven_post(xm_proven_t *proven, xm_transport_t *transport, int peer, bool sends,
                    const uint64_t tags[XM_PROVEN_PARTS], const void *buffer, size_t length,
                    xm_memory_t *memory, xm_op_t *whole);

/** Ends what is in flight with XM_ERR_CANCELED, as xm_transport_cancel() does. */
void xm_proven_cancel(xm_proven_t *proven);
