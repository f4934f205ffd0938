/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/search/curve.h
 * All plans of the search that no other beats in both step time and memory of the fullest device:
 * over all meshes, stages, hosts left out, numbers of micro-batches and ways to recompute.
 */
#pragma once

#include "planner/plan.h"
#include "planner/search/planner.h"

/** Points are ap_plan_t. Under a time limit the curve is as long as there is time. Release it with
 * ap_planner_curve_clear(). */
xm_status_t ap_planner_curve(const ap_planner_params_t *params, ap_pareto_t *curve);
void ap_planner_curve_clear(ap_pareto_t *curve);
