/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file elimination.h
 * The face of planner/solver/elimination/: other rooms include this header and none of the folder.
 * Bucket elimination of variables, row by row.
 */
#ifndef AP_PLANNER_SOLVER_ELIMINATION_H
#define AP_PLANNER_SOLVER_ELIMINATION_H

#include "planner/solver/elimination/elimination.h"
#include "planner/solver/elimination/pairwise.h"

#endif
