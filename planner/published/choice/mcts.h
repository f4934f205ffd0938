/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/choice/mcts.h
 * Monte Carlo tree search over decisions (Automap, Schaarschmidt, 2021): a node of the tree is a
 * list of decisions, each of which gives a variable a value and is followed by what propagates from
 * it (completion.h). The next variable is the one that most depends on, by the seconds that its
 * values differ by and its number of links; Automap learns that order. A node is judged by
 * completing it, and by completing it once more after a few random decisions; upper confidence
 * bounds say where to go on. A part of the tree that has been seen whole is not entered again, so
 * with time enough every assignment is tried.
 *
 * Deterministic by seed; never worse than the completion of nothing. Threads: no shared state.
 */
#pragma once

#include "planner/published/choice/network.h"

typedef struct ap_mcts_params {
    uint64_t seed;  /**< not 0 */
    int64_t budget; /**< completions */
} ap_mcts_params_t;

#define AP_MCTS_PARAMS_INIT                                                                        \
    {                                                                                              \
        .seed = 1, .budget = 200                                                                   \
    }

/** @p assignment: what is given beforehand, -1 for what is not; then the best found. */
xm_status_t ap_search_mcts(const ap_cfn_core_t *network, const ap_mcts_params_t *params,
                           int *assignment);
