/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a file from which another program can see that a choice costs what it does and that none
 * costs less than a bound; docs/solver.md has the format. Private to the solver.
 */
#pragma once

#include "planner/solver/network.h"
#include "planner/solver/reduce.h"
#include "planner/solver/solve.h"

/* XM_ERR_UNSUPPORTED where the problem has edges of three nodes. */
xm_status_t ap_cfn_check_certifiable(const ap_cfn_t *cfn);

/*
 * Certifies `choice`, the result's, and its cost as the bound when it is optimal and the proof is
 * found within `seconds`; otherwise the bound is what prices and messages prove. The result gets
 * what the file proves, and whether the clock has ended that.
 */
xm_status_t ap_cfn_certify(const char *path, const ap_cfn_t *cfn, const int *choice, double seconds,
                           ap_cfn_result_t *result);
