/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/like/moves.h
 * What a search over substitutions may do with a stage's operators. Without rules: cut any factor
 * of any operator over any axis, or none. With rules, from FlexFlow's JSON: what a rule makes of
 * one operator by partitioning, replicating, combining and reducing around it; like FlexFlow, rules
 * whose source has several operators are left out.
 *
 * A file is {"rule": [{"name", "srcOp", "dstOp", "mappedOutput"}]}; an operator has a "type"
 * (OP_LINEAR, OP_EW_ADD, …; OP_PARTITION, OP_REPLICATE, OP_COMBINE and OP_REDUCE are parallel),
 * "input" (each with the "opId" of the operator that makes it, negative: outside) and "para" with
 * "key" PM_PARALLEL_DIM (0 is the last dimension) or PM_PARALLEL_DEGREE, which stands for the size
 * of whatever axis it is.
 */
#pragma once

#include "planner/published/choice.h"
#include "planner/published/like/stage_network.h"

typedef struct ap_like_rules ap_like_rules_t;

/** @p name stands for the file in sentences. */
xm_status_t ap_like_rules_read(const char *name, const char *text, size_t length,
                               ap_like_rules_t **rules);
/** Those that one operator can be rewritten by, and all of the file. */
int ap_like_rules_count(const ap_like_rules_t *rules, int *all);
void ap_like_rules_destroy(ap_like_rules_t *rules);

/** Moves of operators of like layers are one. Lives in @p arena. @p rules may be NULL. */
xm_status_t ap_like_moves(const ap_stage_network_t *network, const ap_like_rules_t *rules,
                          xm_arena_t *arena, ap_choice_moves_t *moves);
