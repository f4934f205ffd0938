/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file queues.h
 * The time that a program takes as run.h runs it, over ports with queues: what TCP has between
 * hosts. Rates, latencies and prices of processors are measured; nothing else is fitted.
 *
 * - A port is a token bucket behind a queue, of what is sent and of what is received: bytes leave
 *   it in the order in which they came. So a receiver's port that is busy does not keep the
 *   sender's from going on.
 * - A connection has two segments of 64 KiB in its own port's queue, the rest of a message follows
 *   as they leave (TCP small queues); connections that share a port take turns by that.
 * - A rank sends one move at a time, to the receiver that comes soonest behind the last one.
 * - A long message between hosts is announced, granted when it may be received, and acknowledged
 *   when it has come; these frames wait in the same queues. The send ends by the last. A short one
 *   ends at once.
 */
#pragma once

#include "resharding/collective/interconnect.h"

/** As xm_program_simulate(); of programs that ranks can run. */
xm_status_t xm_program_simulate_queues(const xm_program_t *program,
                                       const xm_interconnect_t *interconnect, int64_t bytes,
                                       double *seconds);
