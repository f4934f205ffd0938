/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file graph.h
 * The face of planner/graph/: other rooms include this header and none of the folder. The operator
 * graph: tensors, operators, and the sharding rules that tie their dimensions together.
 */
#pragma once

#include "planner/graph/batch.h"
#include "planner/graph/copy.h"
#include "planner/graph/graph.h"
#include "planner/graph/sharding_rule.h"
#include "planner/graph/spec.h"
