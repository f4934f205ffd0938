/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exact presolve of a cost function network: a smaller problem (planner/solver/network/core.h) with
 * the same optimum, and the way back. Private to the solver.
 *
 *  1. Values without a finite partner over some edge go, as do those that do not fit into memory
 *     beside the least that everything else uses (arc consistency).
 *  2. Functional contraction: where every value of x leaves at most one finite partner in y,
 *     y = f(x) is put into x, with y's costs, edges and usage. Parallel edges add up, tables that
 *     are sums of two vectors go into the nodes, nodes with one value into their neighbours.
 *  3. Times at which the limit cannot be exceeded, or not without being exceeded next to them, go.
 *  4. Values that another one dominates go (in cost whatever the neighbours do, and in usage at
 *     every time); nodes without usage and at most two neighbours are eliminated.
 *  5. Values with which more is used at some time than there is, whatever the others do, go.
 *
 * What happened is kept in a log whose reversal turns a solution of the core into one of the
 * original problem.
 */
#pragma once

#include "planner/solver/network.h"

typedef struct ap_cfn_reduction ap_cfn_reduction_t;

/* Of a solve's time and work, what its presolve may spend on what need not be done. */
#define AP_CFN_PRESOLVE_PART 0.4

/* XM_ERR_NO_SOLUTION when no choice of finite cost exists, or none can fit into memory; the
 * sentence says which node has nothing left. The problem is borrowed. After `work` (nanoseconds of
 * a usual core, counted in cells), and after `deadline` (monotonic nanoseconds), only what must be
 * done is; the core is larger then. */
xm_status_t ap_cfn_reduce(const ap_cfn_t *cfn, double work, int64_t deadline, bool noted,
                          ap_cfn_reduction_t **reduction);

/* What ended a presolve before all was done. */
typedef enum ap_cfn_cut { AP_CFN_CUT_NOT, AP_CFN_CUT_BY_WORK, AP_CFN_CUT_BY_CLOCK } ap_cfn_cut_t;

/* It, and what was spent of the work. */
ap_cfn_cut_t ap_cfn_reduction_cut(const ap_cfn_reduction_t *reduction, double *spent);

/* What a presolve that was `noted` did, in order; nodes and values are those of the problem. */
typedef enum ap_cfn_event {
    AP_CFN_EVENT_DROP,      /* value x of a node goes: y is no worse; -1: it has no partner */
    AP_CFN_EVENT_CONTRACT,  /* a node follows from node x */
    AP_CFN_EVENT_SEPARATE,  /* the edge of a node and node x is a sum of two vectors */
    AP_CFN_EVENT_ELIMINATE, /* a node, into its neighbours */
} ap_cfn_event_t;

/* Kind, node, x and y of every event. */
const int (*ap_cfn_reduction_events(const ap_cfn_reduction_t *reduction, size_t *count))[4];

const ap_cfn_core_t *ap_cfn_reduction_core(const ap_cfn_reduction_t *reduction);

/* The strategies of all nodes, given the values of the core's variables. */
void ap_cfn_restore(const ap_cfn_reduction_t *reduction, const int *value, int *choice);

/* The core's values in a choice of strategies. A strategy that is not there any more is replaced by
 * another one. */
void ap_cfn_adopt(const ap_cfn_reduction_t *reduction, const int *choice, int *value);

void ap_cfn_reduction_destroy(ap_cfn_reduction_t *reduction);
