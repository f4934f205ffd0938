/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which nodes of a sharding problem are alike, so that one choice serves them all. Private.
 *
 * Layers of one structure repeat the same operators in the same order, forward and backward. Their
 * period is found in the sequence of operators, and operators a period apart are put into one
 * class, with the inputs and parameters that only they read. Any such classes make a valid, smaller
 * problem: all it loses are plans that treat like layers differently.
 */
#pragma once

#include "planner/intra_op/intra_op_private.h"

typedef struct ap_shard_symmetric {
    int classes;
    int *class_of; /* per node, in the order of their first nodes */
    int repeats;   /* nodes that share a class with an earlier one */
    int period;    /* operators of the first layer that repeats; 0: none does */
} ap_shard_symmetric_t;

/* With `tie` false every node is a class of its own. */
xm_status_t ap_shard_symmetric_create(const ap_shard_problem_t *problem, bool tie,
                                      xm_arena_t *arena, ap_shard_symmetric_t *alike);
