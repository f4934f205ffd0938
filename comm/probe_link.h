/**
 * @file probe_link.h
 * Times messages between two ranks. Internal to the probe.
 *
 * The two ends call the matching functions; everything else of the job is idle. All waits have the
 * worker's deadline. After a failure the link can only be destroyed.
 */
#ifndef XM_COMM_PROBE_LINK_H
#define XM_COMM_PROBE_LINK_H

#include "comm/cluster_profile.h"
#include "comm/worker.h"

typedef struct xm_probe_link xm_probe_link_t;

/** What a ping-pong measures. */
typedef struct xm_probe_ping {
    const uint64_t *sizes; /**< rising */
    int size_count;
    int repetitions; /**< median of this many */
    double budget;   /**< seconds to spend on a size, apart from one checked round trip */
    double longest;  /**< a round trip that takes longer ends the curve */
    void (*step)(void *arg, int index); /**< before each size; may be NULL */
    void *step_arg;
} xm_probe_ping_t;

/** Buffers for messages of up to @p max_bytes with rank @p peer. */
xm_status_t xm_probe_link_create(xm_worker_t *worker, int peer, size_t max_bytes,
                                 xm_probe_link_t **link);

/**
 * Measures one-way times (half of round trips). The data of one round trip per size is compared;
 * a difference is XM_ERR_CORRUPT. @p curve has size_count entries; *points are filled.
 */
xm_status_t xm_probe_link_ping(xm_probe_link_t *link, const xm_probe_ping_t *ping,
                               xm_curve_point_t *curve, int *points);

/** The other end of ping: answers until the initiator has finished. */
xm_status_t xm_probe_link_pong(xm_probe_link_t *link);

/**
 * Streams @p messages messages of @p bytes, several in flight; *start and *end are when the
 * receiver was ready and when it had everything (xm_worker_now()'s clock).
 */
xm_status_t xm_probe_link_stream(xm_probe_link_t *link, size_t bytes, uint64_t messages,
                                 int64_t *start, int64_t *end);

/** The receiver of stream. Compares the last message of every slot of the window. */
xm_status_t xm_probe_link_drain(xm_probe_link_t *link, size_t bytes, uint64_t messages);

/** Cancels what is in flight. What the transport does not give back stays allocated. */
void xm_probe_link_destroy(xm_probe_link_t *link);

#endif
