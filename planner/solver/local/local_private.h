/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a region, shared by its elimination and its prices. Internal. */
#pragma once

#include <stdint.h>

#include "planner/solver/local/region.h"

enum { REGION_WORDS = AP_CFN_REGION_MAX / 64, REGION_SCOPE = 8 };

/* A table that a step adds up: of a link, or what an earlier step left. Its last index is the
 * step's variable. */
typedef struct ap_region_term {
    const double *table;
    int count;              /* of its other variables */
    int slot[REGION_SCOPE]; /* where those are in the step's scope */
    size_t stride[REGION_SCOPE];
} ap_region_term_t;

typedef struct ap_region_step {
    int variable;
    int count; /* of the scope, latest eliminated first */
    int scope[REGION_SCOPE];
    size_t cells;
    double *least;  /* per cell of the scope */
    uint16_t *best; /* the variable's value for it */
    int first_term, terms;
} ap_region_step_t;

/* Memory that is taken piece by piece and given back at once. */
typedef struct ap_region_pool {
    char *base;
    size_t used, size;
} ap_region_pool_t;

typedef struct ap_region_variable {
    int id, size;
    bool fixed; /* keeps its value */
    int position;
    uint64_t neighbour[REGION_WORDS];
    double *unary;   /* costs, with those of links to outside */
    double *extra;   /* of those: noise and the worth of usage; NULL: none */
    double *priced;  /* with the prices of usage */
    int (*range)[2]; /* per segment: intervals */
} ap_region_variable_t;

struct ap_cfn_region {
    const ap_cfn_core_t *core;
    int *local; /* per variable of the core: its number here, or -1 */
    ap_region_pool_t pool;
    int count;
    ap_region_variable_t variable[AP_CFN_REGION_MAX];
    int steps;
    ap_region_step_t step[AP_CFN_REGION_MAX];
    ap_region_term_t *term;
    int terms, term_capacity;
    int largest; /* values of a variable of the core */
    double *sum; /* that many */
    int value[AP_CFN_REGION_MAX], best[AP_CFN_REGION_MAX], current[AP_CFN_REGION_MAX];
    int *ids; /* scratch */

    /* Usage: intervals of time in which it may matter. */
    int intervals;
    double *room;  /* what the region may use in an interval */
    double *truth; /* the same, below the least that it uses where that is too much */
    double *price, *used, *sums;
};

/* planner/solver/local/region.c */
void *ap_region_take(ap_cfn_region_t *self, size_t bytes);

/* planner/solver/local/region_order.c */

/* The order of elimination and the tables for it. False when memory ran out. */
bool ap_region_plan(ap_cfn_region_t *self, const ap_cfn_state_t *state, size_t cells);

/* Minimises the priced costs: writes `value` (fixed variables' too) and returns the sum. */
double ap_region_solve(ap_cfn_region_t *self);

/* planner/solver/local/region_usage.c */

/* The intervals in which the region may exceed what is left; none: usage does not matter. */
bool ap_region_find_intervals(ap_cfn_region_t *self, const ap_cfn_state_t *state);

/* Costs at the prices of the intervals. */
void ap_region_price(ap_cfn_region_t *self);

/* What `value` uses in the intervals; returns its excess over `truth`. */
double ap_region_use(ap_cfn_region_t *self, const int *value);
