/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is asked of a planner, in structures of this library's size. Callers may have been compiled
 * with other versions of the headers; everything behind this file sees the full, defaulted
 * structures and need not look at struct_size.
 */
#include "planner/search/params.h"

#include "comm/base.h"

xm_status_t ap_door_planner_params(ap_door_planner_t *door, const char *function,
                                   const ap_planner_params_t *given)
{
    xm_status_t status;

    *door = (ap_door_planner_t){.params = AP_PLANNER_PARAMS_INIT, .space = AP_SPACE_INIT};
    status =
        xm_params_copy(function, "ap_planner_params_t", &door->params, sizeof(door->params), given);
    if (status == XM_OK && door->params.space != NULL) {
        status = xm_params_copy(function, "ap_space_t", &door->space, sizeof(door->space),
                                door->params.space);
        door->params.space = &door->space;
    }
    return status;
}
