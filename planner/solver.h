/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file solver.h
 * The face of planner/solver/: other rooms include this header and none of the folder. The
 * intra-operator solver: a cost function network is reduced, bounded, searched and proved.
 */
#pragma once

#include "planner/solver/cut_model.h"
#include "planner/solver/solve.h"
