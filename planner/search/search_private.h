/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the planner's search share: planner.c (the run), planner/search/infeasible.c
 * (why there is no plan). Not installed. */
#pragma once

#include "planner/search/case.h"

/*
 * Returns XM_ERR_NO_SOLUTION with the constraint that leaves nothing and the smallest change that
 * would help, found with @p micro_batches micro-batches.
 */
xm_status_t ap_planner_explain_infeasible(const ap_planner_setup_t *setup, int64_t micro_batches);
