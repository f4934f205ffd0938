/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Branch and bound on a core whose dual has converged: proves the best solution optimal, or finds
 * the optimum. Private to the solver.
 *
 * At every node the dual of what is left is improved from its parent's messages and prices, values
 * that no better solution can have are dropped, and variables with one value go; a branch divides
 * the values of a variable in two.
 */
#pragma once

#include <stdatomic.h>

#include "planner/solver/bound.h"
#include "planner/solver/network.h"
#include "planner/solver/tree/pseudo_costs.h"

typedef struct ap_cfn_branch ap_cfn_branch_t;

typedef struct ap_cfn_branch_params {
    double cap;       /* solutions that cost so much are not looked for; HUGE_VAL: all others are */
    bool depth_first; /* the newest open node goes on, not the one with the lowest bound */
    /* Per value of the dual: only these may be taken, and the shared bound is left alone. NULL: all
     * may be. */
    const bool *keep;
    /* Of the dual's variables, learnt from and added to; borrowed. NULL: branches look at the
     * present mixture alone. */
    ap_cfn_pseudo_costs_t *costs;
} ap_cfn_branch_params_t;

/* A search below a dual, which is borrowed. */
xm_status_t ap_cfn_branch_create(const ap_cfn_dual_t *root, ap_cfn_shared_t *shared,
                                 const ap_cfn_branch_params_t *params, ap_cfn_branch_t **branch);

/*
 * Goes on until done, ap_cfn_shared_is_over(), `most` more nodes or the time `until` of
 * ap_cfn_shared_now(), and raises the shared bound by what was proved: to the cap, where no better
 * solution is. *nodes counts what was visited; *done says that nothing is left to visit. Can be
 * called again.
 */
xm_status_t ap_cfn_branch_run(ap_cfn_branch_t *branch, int64_t most, int64_t until,
                              atomic_int_fast64_t *nodes, bool *done);

void ap_cfn_branch_destroy(ap_cfn_branch_t *branch);
