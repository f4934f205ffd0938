/* SPDX-License-Identifier: Apache-2.0 */
/** @file planner/cli/plan/pareto.h The curve of time against memory, as `autopar plan --pareto`
 * gives it out. */
#pragma once

#include "cli_support.h"
#include "planner/search.h"

/** Finds the curve and prints it as a table or JSON. @p output: a file for the JSON, with all
 * plans; @p plot: one for the figure. Each may be NULL. */
xm_status_t ap_pareto_run(const ap_planner_params_t *params, const xm_cli_json_t *json,
                          const char *output, const char *plot);
