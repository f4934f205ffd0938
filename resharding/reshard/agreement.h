/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file agreement.h
 * How all ranks of a worker settle on making one reshard: each says whether it can, what it intends
 * to do and which channels it has free, and all come to the same result. One allgather when all is
 * well; another one carries the sentence when it is not. Internal.
 */
#pragma once

#include "comm/worker.h"
#include "resharding/plan.h"

typedef struct xm_agreement xm_agreement_t;

/**
 * The lowest channel that is free on this rank, for who prepares before all have agreed on one.
 * Fails when there is none.
 */
xm_status_t xm_agreement_free_channel(const xm_transport_t *transport, int *channel);

/**
 * Says this rank's part: @p status of its preparations, whose sentence is the thread's last, and
 * @p plan, which may be NULL when they have failed. Fails alone only where nothing can be said.
 */
xm_status_t xm_agreement_post(xm_worker_t *worker, xm_status_t status, const xm_plan_t *plan,
                              const char *dtype, xm_agreement_t **agreement);

/**
 * Waits until all have said theirs; XM_IN_PROGRESS when @p until has passed before. XM_OK: all can,
 * all intend the same, and *channel is free on all. On a failure all ranks have the same status; a
 * rank that could not has its own sentence, the others quote it.
 */
xm_status_t xm_agreement_wait(xm_agreement_t *agreement, int64_t until, int *channel);

/** Gives it up when it has not ended; then the worker's bootstrap is unusable. NULL is accepted. */
void xm_agreement_destroy(xm_agreement_t *agreement);
