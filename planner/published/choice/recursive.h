/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/choice/recursive.h
 * One mesh axis after the other: the first is decided as if there were no others, then the next
 * within what was decided (Tofu, Wang, EuroSys'19, which halves the devices again and again). Each
 * level is solved exactly by planner/published/choice/ordering.h, or greedily: variables in the
 * order of falling cost, each taking what is cheapest beside those decided before (Double
 * Recursive, Wang, Euro-Par'21).
 *
 * Not exact: a first axis is never taken back. With one axis the exact form is an optimum.
 * Deterministic. Threads: no shared state.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "planner/published/choice/network.h"

/** @p part: per variable, [values][AP_CHOICE_LEVELS] what a value does with each mesh axis, 0 =
 *  nothing; NULL: nothing with any. The first @p levels of them are decided in order. */
xm_status_t ap_search_recursive(const ap_cfn_core_t *network, const uint8_t *const *part,
                                int levels, bool greedy, int *assignment);
