/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/search/curve.h
 * All plans of the search that no other beats in both step time and memory of the fullest device:
 * over all meshes, stages, hosts left out, numbers of micro-batches and ways to recompute. The
 * curve is walked from the fastest plan down: each next plan is the fastest of those that take a
 * thousandth less memory than the last.
 */
#pragma once

#include "planner/plan.h"
#include "planner/search/planner.h"

typedef struct ap_planner_curve {
    ap_plan_t **plans; /**< from the fastest to that of the least memory */
    int count;
    bool stopped; /**< time was up before its end */
} ap_planner_curve_t;

/** The time limit is that of the whole curve; its first plan comes in any case. */
xm_status_t ap_planner_curve(const ap_planner_params_t *params, ap_planner_curve_t *curve);
void ap_planner_curve_clear(ap_planner_curve_t *curve);
