/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is left of the capacity at every time: a tree over time for sums on ranges and minima of
 * ranges, both in O(log times). Private to the solver.
 */
#pragma once

#include "comm/base.h"

typedef struct ap_cfn_slack {
    int times, leaves;
    double *least; /* of a subtree, without what its ancestors add */
    double *added; /* to a whole subtree */
} ap_cfn_slack_t;

/* One time at least; `values` are copied, into the arena. */
xm_status_t ap_cfn_slack_create(int times, const double *values, xm_arena_t *arena,
                                ap_cfn_slack_t *slack);

/* Adds to the times [from, to). */
void ap_cfn_slack_add(ap_cfn_slack_t *slack, int from, int to, double amount);

/* Least value of the times [from, to), which must not be empty. */
double ap_cfn_slack_least(const ap_cfn_slack_t *slack, int from, int to);

/* First time in [from, to) of a value below `limit`, or -1. */
int ap_cfn_slack_first_below(const ap_cfn_slack_t *slack, int from, int to, double limit);
