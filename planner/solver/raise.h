/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dual of the whole problem, with its bound raised as far as that is worth its time. Private to
 * the solver.
 */
#pragma once

#include "planner/solver/bound.h"
#include "planner/solver/local.h"
#include "planner/solver/network.h"

/* Larger problems get no branch and bound: a node of theirs takes so long that hardly one attempt
 * would come to its end, while dives and searches of neighbourhoods go on finding better solutions
 * there. */
enum { AP_CFN_PROVABLE = 3000 };

/* Offers an assignment if it fits and nothing in it is forbidden; `load` has one entry per time and
 * one more. */
void ap_cfn_try(ap_cfn_shared_t *shared, const int *value, double *load);

/* Raises the bound until that is no longer worth its time. A part of it goes to a search for
 * solutions, unless other threads search: `search` is NULL then. At the end the dual has its best
 * prices. */
xm_status_t ap_cfn_raise_bound(ap_cfn_shared_t *shared, ap_cfn_dual_t *dual,
                               ap_cfn_search_t *search);

/* Makes a dual and raises its bound. Elimination may look at so many cells, 0 means at thirty
 * million. */
xm_status_t ap_cfn_make_dual(ap_cfn_shared_t *shared, size_t cells, ap_cfn_search_t *search,
                             ap_cfn_dual_t **dual);

/* Looks for a solution at multiples of the best prices, of a dual that eliminates. */
xm_status_t ap_cfn_scale_prices(ap_cfn_shared_t *shared, ap_cfn_dual_t *dual);
