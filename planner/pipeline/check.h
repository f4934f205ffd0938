/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/pipeline/check.h
 * Whether a pipeline schedule is safe, found without knowing how it was made.
 *
 * Safe means: every micro-batch does every pass of every stage exactly once, on the device of that
 * stage, in one pipeline; every transfer between devices is sent and received once; run in the
 * order of the lists, no device ever waits for something that waits for it; a forward pass follows
 * that of the stage before, a backward pass its forward pass and the backward pass of the stage
 * after, a weight half its input half, slices of a micro-batch each other (backwards in reverse);
 * updates follow all gradients of their batch; both passes of a micro-batch use one version of the
 * parameters, which exists then and is still kept; and the bytes held are those written in the
 * list, never above a limit.
 *
 * Threads: no shared state.
 */
#pragma once

#include "planner/pipeline/schedule.h"

/**
 * Checks a schedule. @p limits has the bytes of activations that each device may hold; NULL: no
 * limit. XM_ERR_CORRUPT or, for a limit, XM_ERR_NO_SOLUTION: the sentence names device, entry and
 * pass.
 */
xm_status_t ap_schedule_check(const ap_schedule_t *schedule, const int64_t *limits);
