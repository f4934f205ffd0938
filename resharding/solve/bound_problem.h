/**
 * @file bound_problem.h
 * The lower bound (bound.h) of a resharding as the network's hosts see it. Not installed.
 */
#ifndef XM_RESHARDING_SOLVE_BOUND_PROBLEM_H
#define XM_RESHARDING_SOLVE_BOUND_PROBLEM_H

#include "resharding/solve/bound.h"
#include "resharding/solve/problem.h"

/* Of any schedule, relays and parts included; device_ns is left 0. */
xm_status_t xm_bound_compute_problem(const xm_problem_t *problem, xm_bound_t *bound);

#endif
