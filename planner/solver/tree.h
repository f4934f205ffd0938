/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tree.h
 * The face of planner/solver/tree/: other rooms include this header and none of the folder. Solves
 * networks whose tree width is small, region by region.
 */
#pragma once

#include "planner/solver/tree/branch.h"
#include "planner/solver/tree/dive.h"
#include "planner/solver/tree/labels.h"
#include "planner/solver/tree/neighbours.h"
#include "planner/solver/tree/proof.h"
#include "planner/solver/tree/pseudo_costs.h"
