/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file least.h
 * A lower bound of what a stage takes with the shardings that a plan names. Not installed.
 */
#pragma once

#include "planner/plan.h"
#include "planner/stage.h"

/* What a stage takes at least with the shardings it names. */
typedef struct ap_least {
    double seconds, state, activations;
} ap_least_t;

/* Sums it over the layers of a stage, priced in its context, in the plan's objective.
 * XM_ERR_MISMATCH where an operator cannot be sharded as the plan says. */
xm_status_t ap_plan_stage_least(const ap_plan_t *plan, int index, ap_stage_context_t *context,
                                const ap_layer_weights_t *weights, ap_least_t *sum);
