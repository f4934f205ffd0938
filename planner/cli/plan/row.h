/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/cli/plan/row.h
 * autopar plan --like: a model planned as another planner would, with that planner's own files.
 */
#pragma once

#include "planner/published/like.h"

typedef struct ap_plan_row {
    const char *name;
    ap_like_effort_t effort;   /**< without files */
    const char *given;         /**< an option of the effort that was given, or NULL */
    const char *substitutions; /**< FlexFlow's rules, or NULL */
    const char *strategies;    /**< a file of FlexFlow or Galvatron to price, or NULL */
    const char *export;        /**< a file of Galvatron to write, or NULL */
    bool quiet, lattice;       /**< prints every point that is judged */
} ap_plan_row_t;

/** A plan that does not fit is given with a warning; the caller owns it. */
xm_status_t ap_plan_row_run(const ap_plan_row_t *row, const ap_planner_params_t *params,
                            ap_plan_t **plan);
