/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes down why no solution of a core costs less than a goal, for a reader who trusts nobody.
 * Private to the solver; docs/solver.md describes the records.
 */
#pragma once

#include <stdio.h>

#include "planner/solver/bound.h"
#include "planner/solver/network.h"

enum { AP_CFN_PRICE_BITS = 30 /* prices are multiples of 2^-30 */ };

/*
 * Writes JSON records, with commas between them, of a tree of at most `most` nodes below a dual; 1
 * means that its prices and messages alone must do. Numbers are multiples of 2^-scale. *closed
 * tells whether they prove the goal; if not, *bound is what the first record alone proves.
 */
xm_status_t ap_cfn_prove(const ap_cfn_dual_t *root, ap_cfn_shared_t *shared, double goal, int scale,
                         int64_t most, bool by_usage, FILE *file, bool *closed, double *bound);
