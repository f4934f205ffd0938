/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The best values of a few variables, given those of all others. Private to the solver.
 *
 * The variables are eliminated one after the other (elimination.h tells the method) along an order
 * of small tables; variables for which there is none keep their values. Where together they could
 * exceed the slack, usage is priced by a few steps of a Lagrangian dual of just this region, whose
 * bound also tells when nothing better is there to be found.
 */
#pragma once

#include <stdint.h>

#include "planner/solver/network.h"
#include "planner/solver/local/state.h"

typedef struct ap_cfn_region ap_cfn_region_t;

enum { AP_CFN_REGION_MAX = 128 /* variables */ };

xm_status_t ap_cfn_region_create(const ap_cfn_core_t *core, ap_cfn_region_t **region);

typedef struct ap_cfn_region_params {
    const double *price_sums; /* per time: prices of the times before it, to start from */
    double price_factor;      /* that they are taken by */
    int steps;                /* of the dual, at most */
    size_t cells;             /* of one table */
    double worth;             /* usage costs so much of its price, even where there is room */
    double noise;             /* most that a value's cost is raised by, at random */
    uint64_t *random;         /* state of the generator of the noise */
    ap_cfn_shared_t *shared;  /* when it is over, what was found until then counts */
} ap_cfn_region_params_t;

/*
 * Improves `state` by new values of `count` different variables: of two assignments the one with
 * less excess over the capacity is better, then the one that costs less, noise included. Equal ones
 * may be taken.
 * *changed tells whether there are new values; *better whether they are better.
 */
xm_status_t ap_cfn_region_improve(ap_cfn_region_t *region, ap_cfn_state_t *state,
                                  const ap_cfn_region_params_t *params, const int *variables,
                                  int count, bool *changed, bool *better);

void ap_cfn_region_destroy(ap_cfn_region_t *region);
