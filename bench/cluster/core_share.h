/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file core_share.h
 * A fixed share of one core for a process and its children, by a control group of their own (cpu
 * controller, version 1 or 2), so that programs on an emulated cluster do not take each other's
 * time as long as the shares fit the machine.
 *
 * The quota is about the least that Linux takes, and its period as short as that makes it: a
 * program that waits for the rest of a period has its core at full speed before and after. Periods
 * begin when their group is made, and go on from there for as long as it lives; so groups have
 * periods of different lengths (a few of a hundred), or what two programs make of each other's
 * messages would hang for all of a run on how their periods happen to lie. Groups are asked before
 * all others for what their quota leaves them.
 *
 * @code
 *     status = rb_core_share_open(0.2, &share);
 *     child = fork();
 *     if (child == 0) {
 *         status = rb_core_share_join(&share);
 *         …
 *     }
 *     waitpid(child, NULL, 0);
 *     rb_core_share_close(&share);
 * @endcode
 *
 * A group whose maker was killed is removed by the next rb_core_share_open().
 */
#pragma once

#include <limits.h>

#include "comm/base.h"

typedef struct rb_core_share {
    int processes; /**< the group's list of processes, to write to; -1: no group */
    int root;      /**< the folder that it is in, which other namespaces do not have */
    char folder[128];
} rb_core_share_t;

/** Makes the group; with a @p share of 0 none, which joining and closing take. */
xm_status_t rb_core_share_open(double share, rb_core_share_t *made);

/** Puts the calling process into it, from whichever namespaces it is in. */
xm_status_t rb_core_share_join(const rb_core_share_t *share);

/**
 * Makes quotas hold within half a millisecond, as long as the calling process lives. Linux looks
 * whether a quota is used up only at its tick and when a process comes or goes: with 250 ticks a
 * second a program alone on its core runs for 4 ms and then waits for 16 to 24 where 1 and 4 are
 * asked, and whoever waits for several ranks waits for the unluckiest. So a thread for each core
 * wakes up every half millisecond, before all others, which takes about 1 % of the core; without
 * the right to real-time priorities as one of many.
 */
xm_status_t rb_core_share_keep_exact(void);

/** Removes the group, which all its processes have left; also from other namespaces. */
void rb_core_share_close(rb_core_share_t *share);
