/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file solve.h
 * The face of resharding/solve/: other rooms include this header and none of the folder. The
 * scheduling problem without tensors: bounds, and its solvers (naive, balance, DFS with pruning,
 * randomised greedy, open shop).
 */
#ifndef XM_RESHARDING_SOLVE_H
#define XM_RESHARDING_SOLVE_H

#include "resharding/solve/bound.h"
#include "resharding/solve/bound_relay.h"
#include "resharding/solve/problem.h"

#endif
