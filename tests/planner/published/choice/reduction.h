/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tests/planner/published/choice/reduction.h
 * The assignment with the least seconds by shrinking the graph (OptCNN, Jia, ICML'18): a variable
 * between two others is *eliminated* into an edge that holds the least over its values, parallel
 * edges are merged into their sum, until nothing changes; what is left (two variables for chains
 * and residual blocks) is enumerated with a bound, and the eliminated ones are undone in reverse.
 *
 * Exact. What takes more than 2^18 steps to enumerate, as mixtures of experts do, goes to
 * planner/published/choice/ordering.h instead, which may refuse it. Threads: no shared state.
 */
#pragma once

#include "tests/planner/published/choice_network.h"

/** @p left (may be NULL): variables that could not be eliminated. */
xm_status_t ap_search_reduction(const ap_cfn_core_t *network, int *assignment, int *left);
