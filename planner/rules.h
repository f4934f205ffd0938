/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rules.h
 * The face of planner/rules/: other rooms include this header and none of the folder. Which
 * sharding rule each kind of operator has, whatever format it was read from.
 */
#pragma once

#include "planner/rules/operand_type.h"
#include "planner/rules/operator_rule.h"
#include "planner/rules/shape_rule.h"
