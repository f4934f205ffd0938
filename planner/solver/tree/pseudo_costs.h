/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What branching on a variable has done to the bound so far, which says what it will do where it is
 * branched on again (pseudo-costs: Benichou and others, "Experiments in mixed-integer linear
 * programming", 1971). Private to the solver.
 */
#pragma once

#include <stdbool.h>

#include "comm/base.h"

typedef struct ap_cfn_pseudo_costs ap_cfn_pseudo_costs_t;

/* A branch on a variable of the root, seen from one of its sides. */
typedef struct ap_cfn_split {
    int variable;        /* -1: nothing is learnt from it */
    bool above;          /* this side has the values that use more */
    double apart, links; /* of the usage in the mixture, and how many links the variable had */
    double bound;        /* before it */
} ap_cfn_split_t;

/* Of so many variables, of which nothing is known. */
xm_status_t ap_cfn_pseudo_costs_create(int variables, ap_cfn_pseudo_costs_t **costs);

/* Notes that the bound of one side of a branch has become `bound`. */
void ap_cfn_pseudo_costs_note(ap_cfn_pseudo_costs_t *costs, const ap_cfn_split_t *split,
                              double bound);

/* How good a branch on a variable is expected to be, where the bound may rise by `gap` at most;
 * `split` is either side. */
double ap_cfn_pseudo_costs_score(const ap_cfn_pseudo_costs_t *costs, const ap_cfn_split_t *split,
                                 double gap);

void ap_cfn_pseudo_costs_destroy(ap_cfn_pseudo_costs_t *costs);
