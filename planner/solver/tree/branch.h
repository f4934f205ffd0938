/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Branch and bound on a core whose dual has converged: proves the best solution optimal, or finds
 * the optimum. Private to the solver.
 *
 * Depth first. At every node the dual of what is left is improved from its parent's messages and
 * prices, values that no better solution can have are dropped, and variables with one value go; a
 * branch takes the cheapest value of a variable, its sibling all others.
 */
#pragma once

#include <stdatomic.h>

#include "planner/solver/bound.h"
#include "planner/solver/network.h"

#define AP_CFN_BRANCH_ALL (INT64_MAX / 2) /* as many nodes as it takes */

/*
 * Searches for solutions below `cap` until done, ap_cfn_shared_is_over(), `most` nodes or the time
 * `until` of ap_cfn_shared_now(), and raises the shared bound by what was proved: to the cap, where
 * there is none. *nodes counts what was visited.
 */
xm_status_t ap_cfn_branch(const ap_cfn_dual_t *root, ap_cfn_shared_t *shared, double cap,
                          int64_t most, int64_t until, atomic_int_fast64_t *nodes);
