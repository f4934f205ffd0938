/* SPDX-License-Identifier: Apache-2.0 */
/* What is asked of planners, as callers of another version may ask it. */
#pragma once

#include "planner/search/planner.h"

/* The caller's question in structures of this library's size. */
typedef struct ap_door_planner {
    ap_planner_params_t params;
    ap_space_t space;
} ap_door_planner_t;

/* What a plan was made for: its model, batch, schedule and memory, on a cluster as it is now.
 * Borrows both. */
void ap_planner_params_of_plan(const ap_plan_info_t *info, const xm_cluster_profile_t *profile,
                               ap_planner_params_t *params);

/* Takes over what `given` asks `function`. Borrows what the structures point at. */
xm_status_t ap_door_planner_params(ap_door_planner_t *door, const char *function,
                                   const ap_planner_params_t *given);
