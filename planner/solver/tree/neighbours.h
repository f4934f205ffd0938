/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks for solutions near the best one by branch and bound, which only knows a part of the
 * variables: so many that it is just done in its time. Private to the solver.
 */
#pragma once

#include <stdatomic.h>

#include "planner/solver/bound.h"
#include "planner/solver/network.h"

/* What earlier calls have learnt: the part of the variables that are free. */
typedef struct ap_cfn_neighbours {
    double part;
    uint64_t random;
} ap_cfn_neighbours_t;

/* Until the time `until` of ap_cfn_shared_now(), if there is a solution. */
xm_status_t ap_cfn_search_neighbours(const ap_cfn_dual_t *root, ap_cfn_shared_t *shared,
                                     ap_cfn_neighbours_t *neighbours, int64_t until);
