/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file processors.h
 * How a job's ranks share processors, and how long one waits for them: what a prediction of the
 * network cannot know.
 */
#pragma once

#include <stdint.h>

#include "comm/worker.h"

/** The ranks of one machine and its processors. */
typedef struct rb_processors {
    int ranks, cores;
} rb_processors_t;

/** Collective: of the machine whose ranks have the fewest processors each. */
xm_status_t rb_processors_gather(xm_worker_t *worker, rb_processors_t *fewest);

/** Where the kernel tells how long the calling thread has waited for processors; −1: nowhere. */
int rb_processors_open(void);

/** Nanoseconds for which that thread was ready to run but others had the processors; −1: not known.
 */
int64_t rb_processors_waited_ns(int file);
