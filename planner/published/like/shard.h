/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/like/shard.h
 * Rows that choose shardings, on a whole training step and one mesh of up to four axes
 * (planner/intra_op/problem.h): forward, backward and update operators choose by themselves, and a
 * mesh of axes of two is what a recursive halving of the devices has for levels.
 */
#pragma once

#include "planner/intra_op.h"
#include "planner/published/like/row.h"

typedef struct ap_like_shard {
    const ap_planner_preset_t *row;
    ap_like_effort_t effort;
} ap_like_shard_t;

/** Refuses rows that shard nothing. */
xm_status_t ap_like_shard_check(const ap_planner_preset_t *row);

/** The search of a row, for ap_shard_options_t; @p arg is an ap_like_shard_t. */
ap_shard_search_fn ap_like_shard_search;
