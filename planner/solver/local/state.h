/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An assignment of all variables of a core, with its cost and its slack over time kept up to date.
 * Private to the solver.
 *
 * A forbidden cell counts as `forbidden`, a large number, so that bad assignments can be compared
 * and left step by step.
 */
#pragma once

#include "planner/solver/network.h"
#include "planner/solver/local/slack.h"

typedef struct ap_cfn_state {
    const ap_cfn_core_t *core;
    int *value;
    xm_arena_t arena;     /* the arrays */
    ap_cfn_slack_t slack; /* of capacity, less the load; unused when the core has no times */
    double cost;          /* with the constant, and `forbidden` for each forbidden cell */
    double forbidden;
} ap_cfn_state_t;

xm_status_t ap_cfn_state_create(const ap_cfn_core_t *core, const int *value, double forbidden,
                                ap_cfn_state_t *state);

/* Gives variables new values. */
void ap_cfn_state_assign(ap_cfn_state_t *state, const int *variable, const int *value, int count);

/* Least slack at any time; 0 or more: it fits. */
double ap_cfn_state_least_slack(const ap_cfn_state_t *state);

/* Whether it fits and has no forbidden cell. */
bool ap_cfn_state_is_solution(const ap_cfn_state_t *state);

void ap_cfn_state_destroy(ap_cfn_state_t *state);
