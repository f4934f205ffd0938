/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plan.h
 * The face of planner/plan/: other rooms include this header and none of the folder. The parallel
 * plan as a document: read, written, printed, drawn.
 */
#pragma once

#include "planner/plan/order.h"
#include "planner/plan/plan.h"
#include "planner/plan/print.h"
#include "planner/plan/schedule.h"
