/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fit.h
 * What a runtime adds to the prices of plans (comm/profile/runtime.h), fitted to measured steps.
 *
 *  - collectives: the median of what synchronising gradients took over what it is priced at;
 *  - passes: with that, the seconds for which the predicted steps are nearest to the measured ones;
 *  - memory: the context, and the factor of temporaries, for which peaks are nearest.
 *
 * Nearest is the least sum of relative distances: one strange run moves it little. Nothing is
 * fitted to fewer than three rows. The spread is the root mean square of what distances are left.
 * The same rows give the same numbers. Threads: no shared state.
 */
#pragma once

#include "planner/judge/measured.h"

/** From all rows but number @p left_out; -1: from all. */
xm_status_t ap_runtime_fit(const ap_measured_t *measured, int left_out, xm_runtime_t *runtime);
