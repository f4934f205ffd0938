/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/choice/substitution.h
 * Best-first search over substitutions (TASO, Jia, SOSP'19; its parallel ones are Unity's, Unger,
 * OSDI'22): a move lets some variables do one thing with one mesh axis and leaves what they do with
 * the others; variables that no move is of are then completed anew (completion.h). The cheapest
 * assignment is taken up next, all moves are tried on it, and what costs less than alpha times the
 * best is kept for later, until nothing is left or the budget is spent.
 *
 * Deterministic; never worse than the start. Threads: no shared state.
 */
#pragma once

#include "planner/published/choice/network.h"

typedef struct ap_choice_move {
    int axis;
    uint8_t part;     /**< what the variables do with the axis then */
    int first, count; /**< of its variables, in `variable` */
} ap_choice_move_t;

typedef struct ap_choice_moves {
    int count;
    const ap_choice_move_t *move;
    const int *variable;
    const bool *fixed; /**< per variable: it keeps its value until a move is of it */
} ap_choice_moves_t;

typedef struct ap_substitution_params {
    int64_t budget; /**< assignments that are taken up */
    double alpha;   /**< 1 or more */
} ap_substitution_params_t;

#define AP_SUBSTITUTION_PARAMS_INIT                                                                \
    {                                                                                              \
        .budget = 10, .alpha = 1.05                                                                \
    }

/** @p part as planner/published/choice/recursive.h has it; @p assignment: the start, then the
 * best. */
xm_status_t ap_search_substitution(const ap_cfn_core_t *network, const uint8_t *const *part,
                                   const ap_choice_moves_t *moves,
                                   const ap_substitution_params_t *params, int *assignment);
