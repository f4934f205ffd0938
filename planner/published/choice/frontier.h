/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/choice/frontier.h
 * The assignments between which seconds and bytes are a matter of choice (TensorOpt, Cai,
 * TPDS'21): variables are eliminated as in elimination.h, but a cell of a table holds every pair of
 * seconds and bytes that no other pair of its cell beats in both.
 *
 * A cell keeps at most `points` of them, spread evenly over its seconds; its ends always stay. So
 * no point of the curve is beaten by another, the first has the least seconds of all assignments
 * and the last the least bytes; the curve is complete when `complete` says that no cell was thinned
 * out.
 *
 * XM_ERR_UNSUPPORTED when a table would exceed 2^20 cells. Threads: no shared state.
 */
#pragma once

#include <stdbool.h>

#include "planner/published/choice/network.h"

typedef struct ap_frontier_point {
    double seconds, bytes;
    int *assignment; /**< owned by the frontier */
} ap_frontier_point_t;

/** By rising seconds and falling bytes. */
typedef struct ap_frontier {
    int count;
    ap_frontier_point_t *points;
    bool complete;
} ap_frontier_t;

/** @p points: most of a cell, at least 2. */
xm_status_t ap_search_frontier(const ap_cfn_core_t *network, int points, ap_frontier_t *frontier);

/** Frees what it owns. NULL and all-zero are accepted. */
void ap_frontier_clear(ap_frontier_t *frontier);
