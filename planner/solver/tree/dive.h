/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Solutions from the dual: the surest variables are settled, the dual of the rest is improved, and
 * so on down to the last. Private to the solver.
 */
#pragma once

#include "planner/solver/bound.h"
#include "planner/solver/network.h"

/* One dive, which ends at a solution (offered to `shared`) or where there can be none better.
 * Different seeds take different ways; seed 0 settles just what is surest. */
xm_status_t ap_cfn_dive(const ap_cfn_dual_t *root, ap_cfn_shared_t *shared, uint64_t seed);
