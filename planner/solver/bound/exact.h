/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least cost of a core at given prices, exactly: its variables are eliminated one after the
 * other along an order of small tables (elimination.h tells the method). Private to the solver.
 *
 * Order and tables are laid out once; costs of values change with the prices, those of links do
 * not. Going back through the tables gives every value's *marginal*: the least cost of an
 * assignment that has it. Usage is not looked at; its prices are among the costs.
 */
#pragma once

#include "planner/solver/network.h"

typedef struct ap_cfn_exact ap_cfn_exact_t;

/* *exact becomes NULL where one pass would have to look at more than `work` cells. */
xm_status_t ap_cfn_exact_create(const ap_cfn_core_t *core, double work, ap_cfn_exact_t **exact);

/* Cells that a pass looks at. */
double ap_cfn_exact_work(const ap_cfn_exact_t *exact);

/*
 * The least cost without the core's constant, and an assignment that has it; HUGE_VAL, and any
 * assignment, when all are forbidden. Value x of variable v costs cost[at[v] + x].
 */
double ap_cfn_exact_solve(ap_cfn_exact_t *exact, const double *cost, const size_t *at, int *value);

/* After a solve with the same costs: marginal[at[v] + x] of every value. */
void ap_cfn_exact_marginals(ap_cfn_exact_t *exact, const double *cost, const size_t *at,
                            double *marginal);

void ap_cfn_exact_destroy(ap_cfn_exact_t *exact);
