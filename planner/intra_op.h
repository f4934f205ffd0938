/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file intra_op.h
 * The face of planner/intra_op/: other rooms include this header and none of the folder. Shards one
 * graph over one mesh: options of every operator, the network that prices them, the solution with
 * its memory over time.
 */
#pragma once

#include "planner/intra_op/memory_curve.h"
#include "planner/intra_op/plan.h"
#include "planner/intra_op/solution.h"
