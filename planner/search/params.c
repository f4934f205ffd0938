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

void ap_planner_params_of_plan(const ap_plan_info_t *info, const xm_cluster_profile_t *profile,
                               ap_planner_params_t *params)
{
    const ap_plan_reading_t *reading = &info->reading;

    params->model = info->model;
    params->profile = profile;
    params->global_batch = info->global_batch;
    params->schedule = info->schedule;
    /* Of unlike devices the plan knows the largest limit only. */
    params->memory_limit = xm_cluster_profile_devices_differ(profile) ? 0.0 : info->memory_limit;
    params->memory_reserve = params->memory_limit > 0.0 ? 0.0 : info->memory_reserve;
    params->layering.layers = reading->layers;
    params->layering.pattern = reading->pattern;
    params->layering.marks = reading->marks;
    params->layering.mark_count = reading->mark_count;
    params->dims = reading->dims;
    params->dim_count = reading->dim_count;
    params->frozen = info->frozen;
}
