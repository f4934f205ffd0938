/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file checksum.h
 * Proves after a run that every destination holds what the sources hold, end to end.
 *
 * For every unit task the first holder hashes the task's box out of its source tile (XXH3, 64 bits)
 * and sends the hash to every receiver, which hashes what lies in its destination tile and
 * compares. One message per (holder, receiver) pair carries the hashes of all their tasks. What is
 * compared does not depend on how the data travelled: strategy, relays, chunks and pack buffers.
 *
 * Call it on all ranks after a run that succeeded on all of them, before the buffers are used for
 * anything else. Memory: 8 bytes per (task, receiver) pair at the holder, 24 per task at the
 * receiver. A pass reads both tiles once.
 *
 * @code
 *     status = xm_executor_run(worker, executor, deadline);
 *     if (status == XM_OK) {
 *         // XM_ERR_CORRUPT: the sentence names the box
 *         status = xm_executor_verify(worker, executor, deadline);
 *     }
 * @endcode
 *
 * Threads: as the executor's.
 */
#pragma once

#include "resharding/execute/execute.h"

typedef struct xm_checksum xm_checksum_t;

/**
 * Verifies the last run. XM_ERR_CORRUPT: the sentence names the first tensor and box that differ on
 * this rank, the holder and the receiver; ranks where nothing differs return XM_OK.
 */
XM_API xm_status_t xm_executor_verify(xm_worker_t *worker, xm_executor_t *executor,
                                      int64_t deadline);

/** The same in pieces, for callers that make progress themselves. The executor must stay as it is
 *  until the object is destroyed. */
XM_API xm_status_t xm_checksum_create(xm_executor_t *executor, xm_checksum_t **checksum);

/** Does what can be done now. Call it after every progress of the transport. XM_IN_PROGRESS until
 *  it has ended, then its result. */
XM_API xm_status_t xm_checksum_advance(xm_checksum_t *checksum);

/** False while there is something left to hash: then call xm_checksum_advance() again without
 *  sleeping. */
XM_API bool xm_checksum_may_sleep(const xm_checksum_t *checksum);

/** The status and sentence of one that has not ended after so many seconds. */
xm_status_t xm_checksum_give_up(const xm_checksum_t *checksum, double seconds);

/** Frees the object; what is in flight is ended first, as xm_executor_destroy() does. NULL is
 *  accepted. */
XM_API void xm_checksum_destroy(xm_checksum_t *checksum);
