/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file continue.h
 * How the ranks that are left settle on the rest of a run: all tell each other what they have
 * received, and each makes the same plan of what is missing. Internal.
 */
#pragma once

#include <crossmesh/reshard.h>

#include "comm/worker.h"
#include "resharding/plan.h"

/**
 * Collective. This rank's part: @p status of its preparations, whose sentence is the thread's last,
 * and its record. @p plan is what was run, in a group of @p size ranks. A failure is one on all
 * ranks; but only a rank that could not take part has its own status and sentence, others quote it.
 */
xm_status_t xm_continue_plan(xm_worker_t *worker, const xm_plan_t *plan, int size,
                             const xm_reshard_continue_params_t *params, xm_status_t status,
                             const xm_delivered_t *record, xm_plan_t **rest);

/** Writes what this rank has received in the last run (plan.h, xm_delivered_t) into bytes that the
 * caller frees with free(); not while a run is in flight. */
xm_status_t xm_reshard_delivered(const xm_reshard_t *reshard, void **bytes, size_t *length);
