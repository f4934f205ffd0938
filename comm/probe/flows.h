/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/probe/flows.h
 * What several streams of messages reach at once. Internal to the probe.
 *
 * All streams start together, and the receivers count bytes in windows of time. The first part of a
 * run is not counted: connections speed up, and limited NICs let the first bytes after a pause
 * through at any speed (token buckets of clouds and of traffic shapers). A message's bytes are
 * spread evenly over the time since the one before, so windows may be shorter than messages take.
 * Every message is of other memory than the last ones, since tensors are not in caches either.
 */
#pragma once

#include <stddef.h>

#include "comm/worker.h"

enum { XM_PROBE_WINDOWS = 6, XM_PROBE_GROUPS = 2, XM_PROBE_MAX_FLOWS = 256 };

/** A stream; no two have the same sender and the same receiver. */
typedef struct xm_probe_flow {
    int sender, receiver;
    int group; /**< whose rates are added up: 0 or 1 */
} xm_probe_flow_t;

typedef struct xm_probe_flows {
    const xm_probe_flow_t *flows;
    int count;       /**< at most XM_PROBE_MAX_FLOWS */
    size_t bytes;    /**< of a message */
    double settle;   /**< seconds that are not counted */
    double window;   /**< seconds of one of the XM_PROBE_WINDOWS that follow */
    double *elapsed; /**< in: this rank's clock; out: rank 0's, so that all decide alike */
} xm_probe_flows_t;

/** What came in each window, of each group. */
typedef struct xm_probe_windows {
    double rate[XM_PROBE_GROUPS][XM_PROBE_WINDOWS];     /**< bytes/s */
    double messages[XM_PROBE_GROUPS][XM_PROBE_WINDOWS]; /**< messages that ended in it */
    double cpu; /**< seconds of processors that all ranks spent on a byte, in the whole run */
} xm_probe_windows_t;

/**
 * Runs the streams; every rank of the job calls it with the same list. *windows is the same on all
 * ranks. The last messages of every stream are compared with what was sent; a difference is
 * XM_ERR_CORRUPT.
 */
xm_status_t xm_probe_flows_run(xm_worker_t *worker, const xm_probe_flows_t *run,
                               xm_probe_windows_t *windows);
