/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plan.h
 * The face of planner/plan/: other rooms include this header and none of the folder. The parallel
 * plan as a document: read, written, printed, drawn.
 */
#ifndef AP_PLANNER_PLAN_H
#define AP_PLANNER_PLAN_H

#include "planner/plan/order.h"
#include "planner/plan/plan.h"
#include "planner/plan/print.h"
#include "planner/plan/schedule.h"

#endif
