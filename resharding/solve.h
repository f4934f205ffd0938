/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file solve.h
 * The face of resharding/solve/: other rooms include this header and none of the folder. The
 * scheduling problem without tensors: bounds, and its solvers (naive, balance, DFS with pruning,
 * randomised greedy, open shop).
 */
#pragma once

#include "resharding/solve/bound.h"
#include "resharding/solve/bound_relay.h"
#include "resharding/solve/problem.h"
