/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cost.h
 * The face of planner/cost/: other rooms include this header and none of the folder. What
 * computation, collectives and resharding of tensors cost on a mesh, by Alpa's constants or by a
 * measured profile.
 */
#pragma once

#include "planner/cost/cost.h"
#include "planner/cost/device_class.h"
#include "planner/cost/gradient_sum.h"
#include "planner/cost/memory_budget.h"
#include "planner/cost/price.h"
#include "planner/cost/profile.h"
#include "planner/cost/reshard_memo.h"
#include "planner/cost/share.h"
#include "planner/cost/strategy.h"
