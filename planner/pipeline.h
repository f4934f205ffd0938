/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pipeline.h
 * The face of planner/pipeline/: other rooms include this header and none of the folder. Pipeline
 * schedules as data: made, checked, simulated, drawn.
 */
#pragma once

#include "planner/pipeline/check.h"
#include "planner/pipeline/schedule.h"
#include "planner/pipeline/simulate.h"
#include "planner/pipeline/step.h"
#include "planner/pipeline/timeline.h"
#include "planner/pipeline/token_slices.h"
