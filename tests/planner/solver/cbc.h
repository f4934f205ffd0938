/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tests/planner/solver/cbc.h
 * A cost function network solved by CBC (Debian package coinor-cbc), as a cross-check.
 *
 * The integer program has a 0-1 variable per strategy and a continuous one per allowed cell of an
 * edge, whose sums over a strategy's cells are that strategy's variable. Rows for the usage limit
 * are added only for times at which a solution exceeded it, until none does.
 *
 * Starts the program `cbc` found in PATH, with files in the directory for temporary ones. Threads:
 * no shared state.
 */
#pragma once

#include "planner/solver/solve.h"

/**
 * As ap_cfn_solve(), in at most about @p seconds (0 = 60). A result that is not `optimal` is the
 * best that was found in time; its bound is the smallest sum that CBC proved, or 0.
 * XM_ERR_UNSUPPORTED: there is no cbc.
 */
xm_status_t ap_cfn_cbc_solve(const ap_cfn_t *cfn, double seconds, int *choice,
                             ap_cfn_result_t *result);
