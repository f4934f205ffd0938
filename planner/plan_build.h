/**
 * @file plan_build.h
 * Makes a plan of what stage slicing has found. Not installed.
 */
#ifndef AP_PLANNER_PLAN_BUILD_H
#define AP_PLANNER_PLAN_BUILD_H

#include "planner/plan.h"
#include "planner/stage_table.h"

/**
 * Solves the stages of @p result once more for what each operator does and assembles the plan.
 * @p info names model, cluster, batch and limit; the rest of it is filled in here.
 */
xm_status_t ap_plan_build(ap_stage_table_t *table, const ap_inter_op_result_t *result,
                          const ap_plan_info_t *info, ap_plan_t **plan);

#endif
