/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/probe/link.h
 * Times messages between two ranks, and what that has in common with streams (comm/probe/flows.h).
 * Internal to the probe.
 *
 * The two ends call the matching functions; everything else of the job is idle. All waits have the
 * worker's deadline. After a failure the link can only be destroyed.
 */
#pragma once

#include <stdbool.h>

#include "comm/worker.h"

typedef struct xm_probe_link xm_probe_link_t;

/** What a ping-pong measures. */
typedef struct xm_probe_ping {
    const uint64_t *sizes; /**< rising */
    int size_count;
    int repetitions; /**< median of at least this many, until it is known to XM_PROBE_TIGHT */
    double budget;   /**< seconds to spend on a size, apart from one checked round trip */
    double longest;  /**< a round trip that takes longer ends the curve */
    bool hot;        /**< messages of one place, in the cache; else of places in no cache */
    void (*step)(void *arg, int index); /**< before each size; may be NULL */
    void *step_arg;
} xm_probe_ping_t;

/** An operation and how it ended. */
typedef struct xm_probe_transfer {
    xm_op_t op;
    bool in_flight;
    xm_status_t status;
    /** Called when the operation has ended, with the status set; may be NULL. */
    void (*ended)(struct xm_probe_transfer *transfer);
    void *owner; /**< for `ended` */
} xm_probe_transfer_t;

/** Tag of message @p sequence (below 2^28) of one of 16 kinds between two ranks. */
uint64_t xm_probe_tag(int kind, uint64_t sequence);

/** The operation of a transfer, ready to be posted. */
xm_op_t *xm_probe_begin(xm_probe_transfer_t *transfer);

/** Takes note of what posting returned; an operation that ended at once calls `ended`. */
xm_status_t xm_probe_posted(xm_probe_transfer_t *transfer, xm_status_t status);

/** Cancels what is in flight among @p count transfers. False: the transport does not give back
 * everything; operations and buffers must stay. The last sentence is kept. */
bool xm_probe_cancel(xm_transport_t *transport, xm_probe_transfer_t *transfers, int count);

/** An operation with @p peer failed with @p status and a sentence. Says which rank is gone if one
 * is: the worker will know which died first, and that is the better sentence. */
xm_status_t xm_probe_blame(xm_worker_t *worker, int peer, xm_status_t status);

/** A number as it travels: its bits, little-endian, so that no digit is lost. */
uint64_t xm_probe_word(double number);
double xm_probe_number(const void *bytes);

/** Bytes that differ by position and @p seed; a longer fill begins like a shorter one. */
void xm_probe_fill(unsigned char *buffer, size_t bytes, uint64_t seed);

/** XM_ERR_CORRUPT, with the place, when what came from @p peer is not as expected. */
xm_status_t xm_probe_compare(int peer, const unsigned char *received, const unsigned char *expected,
                             size_t bytes);

/** Buffers, pools of a power of two (xm_probe_place()), for messages with rank @p peer that are no
 * larger. */
xm_status_t xm_probe_link_create(xm_worker_t *worker, int peer, size_t pool,
                                 xm_probe_link_t **link);

/**
 * Measures one-way times (half of round trips). The data of one round trip per size is compared;
 * a difference is XM_ERR_CORRUPT. @p seconds and @p spread (xm_curve_spread()) have size_count
 * entries; *points are filled.
 */
xm_status_t xm_probe_link_ping(xm_probe_link_t *link, const xm_probe_ping_t *ping, double *seconds,
                               double *spread, int *points);

/** The other end of ping: answers until the initiator has finished. */
xm_status_t xm_probe_link_pong(xm_probe_link_t *link);

/** Cancels what is in flight. What the transport does not give back stays allocated. */
void xm_probe_link_destroy(xm_probe_link_t *link);
