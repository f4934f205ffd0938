/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file quorum.h
 * Who makes up the next group, from what the ranks know of each other. No sockets, no clock.
 * Internal.
 *
 * Two ranks are *cut off* from each other when one of them says so. The next group is a largest set
 * of ranks that live and are not left out, no two of which are cut off: so a host that hears
 * nothing, or is heard by nobody, is left out whole, and of two hosts that have lost only each
 * other the smaller one is.
 *
 * By default it must be more than half of all who could make a group: its own members, and the
 * ranks of those hosts that have none in it. Processes that have ended cannot, nor can a rank that
 * hangs on a host whose others are members.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "comm/base.h"
#include "comm/fault/frame.h"

/**
 * @p rows: for each rank what it says of every rank (an ::xm_standing_t each), NULL when it has
 * said nothing; that of rank @p self is there. Sets @p chosen. Of sets of equal size one with
 * @p self is taken, and a larger one without it only when one of its members has said something:
 * ranks that nothing is heard of may be anything. The search is exact unless more than some hundred
 * thousand steps are needed; then it gives the largest set that was found.
 */
xm_status_t xm_quorum_choose(int ranks, int self, const uint8_t *const *rows, bool *chosen);

/** How many ranks besides the chosen ones could make a group: @p standing is rank self's row. */
int xm_quorum_others(int ranks, const uint8_t *standing, const int *host, const bool *chosen);
