/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Capacities that can really be used up. Private to the solver.
 *
 * What the variables use at a time is a sum of one of each variable's few usages, and where those
 * are large there are gaps between the sums. A capacity inside a gap may as well be the gap's lower
 * end: no assignment is lost, and a price on usage then gives a better bound.
 */
#pragma once

#include "planner/solver/network.h"

/*
 * Lowers capacity[t] to the largest sum of usages that is not above it, or stays a little above
 * that; below 0 when there is none. Of variable v the values with keep[at[v] + x] count; at least
 * one is kept. Only times with a price are looked at, and none once about `work` sums were made in
 * all.
 */
xm_status_t ap_cfn_lower_capacities(const ap_cfn_core_t *core, const size_t *at, const bool *keep,
                                    const double *price, size_t work, double *capacity);
