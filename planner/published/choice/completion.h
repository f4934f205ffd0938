/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/choice/completion.h
 * Completes a partial assignment, as GSPMD (Xu, 2021) propagates the annotations of a few tensors:
 * what is decided next to a variable says what it had best be, and where that leaves one value, it
 * is decided as well. Variables that are left with more values wait for all that are not; of those
 * with the fewest, the first takes the value that costs least with the cheapest answers of what is
 * undecided next to it.
 *
 * Deterministic. One object serves any number of completions of its network, one at a time.
 */
#pragma once

#include "planner/published/choice/network.h"

typedef struct ap_choice_completion ap_choice_completion_t;

/** @p network is borrowed. */
xm_status_t ap_choice_completion_create(const ap_cfn_core_t *network,
                                        ap_choice_completion_t **completion);

/** Of @p assignment -1 is not decided. With @p all nothing is left undecided, else only what
 * follows from what is given is decided. */
void ap_choice_complete(ap_choice_completion_t *completion, bool all, int *assignment);

/** NULL is accepted. */
void ap_choice_completion_destroy(ap_choice_completion_t *completion);
