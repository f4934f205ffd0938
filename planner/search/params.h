/* SPDX-License-Identifier: Apache-2.0 */
/* What is asked of planners, as callers of another version may ask it. */
#pragma once

#include "planner/search/planner.h"

/* The caller's question in structures of this library's size. */
typedef struct ap_door_planner {
    ap_planner_params_t params;
    ap_space_t space;
} ap_door_planner_t;

/* Takes over what `given` asks `function`. Borrows what the structures point at. */
xm_status_t ap_door_planner_params(ap_door_planner_t *door, const char *function,
                                   const ap_planner_params_t *given);
