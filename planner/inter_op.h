/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file inter_op.h
 * The face of planner/inter_op/: other rooms include this header and none of the folder. Cuts
 * layers into stages and gives them submeshes: Alpa's dynamic programme, exact, with bounds.
 */
#pragma once

#include "planner/inter_op/host_order.h"
#include "planner/inter_op/stage_table.h"
