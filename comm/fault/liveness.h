/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file liveness.h
 * Who was heard when: decides which ranks to ask for a sign of life, and which have been silent for
 * too long. No sockets and no clock of its own (the caller tells the time), so that it runs in
 * tests on a virtual clock as well. Internal.
 *
 * A watched rank is asked every `interval`; every question has a number, and only an answer to one
 * that has not been answered before is a sign of life. A rank is silent when
 * ::XM_LIVENESS_SILENT_INTERVALS have passed since the last sign (at first: since watching began).
 * Each rank is reported once.
 *
 * A watcher that was itself held up (stopped by a signal, a paused virtual machine, a starved
 * thread) cannot tell silence from its own deafness: whenever it comes later than it meant to, that
 * time does not count against the others.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "comm/base.h"

/** Intervals without an answer until a rank counts as gone: three questions went unanswered. */
#define XM_LIVENESS_SILENT_INTERVALS 3.5

typedef struct xm_liveness xm_liveness_t;

/** What xm_liveness_tick() asks its caller to do. */
typedef struct xm_liveness_actions {
    void (*ask)(void *arg, int rank, uint64_t question);
    void (*silent)(void *arg, int rank, int64_t silent_ns);
    void *arg;
} xm_liveness_actions_t;

xm_status_t xm_liveness_create(int ranks, int64_t interval_ns, xm_liveness_t **liveness);
void xm_liveness_destroy(xm_liveness_t *liveness);

/** Begins or ends watching a rank; no change when it is so already. Begins: it is asked at the next
 *  tick, and has never been silent. */
void xm_liveness_watch(xm_liveness_t *liveness, int rank, bool watch, int64_t now);
bool xm_liveness_watches(const xm_liveness_t *liveness, int rank);

/** An answer has come. False when it answers nothing (an old one, or made up). */
bool xm_liveness_answered(xm_liveness_t *liveness, int rank, uint64_t question, int64_t now);

/** Does what is due and returns when the next thing will be; INT64_MAX: nothing is watched. */
int64_t xm_liveness_tick(xm_liveness_t *liveness, int64_t now,
                         const xm_liveness_actions_t *actions);
