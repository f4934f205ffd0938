/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a region, shared by its search and its prices. Internal. */
#pragma once

#include <stdint.h>

#include "planner/solver/elimination.h"
#include "planner/solver/local/region.h"

/* Costs of values lie as the elimination has them: those of variable v from its `at[v]` on. */
struct ap_cfn_region {
    const ap_cfn_core_t *core;
    ap_elimination_t *elimination; /* of the region's variables; its pool has all arrays below */
    double *unary;                 /* costs, with those of links to outside */
    double *extra;                 /* of those: noise and the worth of usage; NULL: none */
    double *priced;                /* with the prices of usage */
    int (*range[AP_CFN_REGION_MAX])[2]; /* per variable and segment: intervals */
    int value[AP_CFN_REGION_MAX], best[AP_CFN_REGION_MAX], current[AP_CFN_REGION_MAX];

    /* Usage: intervals of time in which it may matter. */
    int intervals;
    double *room;  /* what the region may use in an interval */
    double *truth; /* the same, below the least that it uses where that is too much */
    double *price, *used, *sums;
};

static inline const ap_cfn_variable_t *ap_region_variable(const ap_cfn_region_t *self, int v)
{
    return &self->core->variable[self->elimination->id[v]];
}

/* planner/solver/local/region_usage.c */

/* The intervals in which the region may exceed what is left; none: usage does not matter. False
 * when memory ran out. */
bool ap_region_find_intervals(ap_cfn_region_t *self, const ap_cfn_state_t *state);

/* Costs at the prices of the intervals. */
void ap_region_price(ap_cfn_region_t *self);

/* What `value` uses in the intervals; returns its excess over `truth`. */
double ap_region_use(ap_cfn_region_t *self, const int *value);
