/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For problems too wide to eliminate at once: a lower bound by moving costs between nodes and edges
 * (min-sum diffusion), a good choice decoded from it, and with both the strategies that no better
 * choice can contain. Private to the intra-operator solver.
 */
#pragma once

#include "tests/planner/solver/elimination/pairwise_reduce.h"

/*
 * Reparametrises `reduced`: costs move, the cost of every assignment stays. Writes an assignment
 * and its cost, and a lower bound on every assignment; stops early when they meet within
 * `tolerance` (relative to the cost).
 */
xm_status_t ap_intra_op_diffuse(ap_reduced_t *reduced, double tolerance, int *assignment,
                                double *cost, double *bound);

/*
 * After diffusion: drops every strategy whose own lower bound exceeds `cost`, the cost of a known
 * assignment. What is left still contains every better assignment.
 * Strategies are renumbered.
 */
xm_status_t ap_intra_op_fix(ap_reduced_t *reduced, double cost);
