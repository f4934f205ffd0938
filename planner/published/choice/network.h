/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/choice/network.h
 * The problem that published searches over shardings share is a network of the solver
 * (planner/solver/network/core.h): variables with a few values each, which cost seconds and use
 * bytes at the network's one time, and links that cost seconds for every pair of values. A variable
 * is an operator with its ways of sharding, or a tensor between two layers with its layouts.
 *
 * The searches are files of their own; each takes a network and gives an assignment, the index of a
 * value per variable.
 */
#pragma once

#include "planner/solver/network.h"

enum { AP_CHOICE_LEVELS = 4 /**< mesh axes, for searches that decide one after the other */ };

/** Bytes of one variable's value; a variable without a segment uses none. */
static inline double ap_choice_bytes(const ap_cfn_core_t *network, int variable, int value)
{
    const ap_cfn_variable_t *of = &network->variable[variable];

    return of->segments > 0 ? of->segment[0].usage[value] : 0.0;
}

static inline double ap_choice_network_bytes(const ap_cfn_core_t *network, const int *assignment)
{
    double sum = 0.0;

    for (int v = 0; v < network->variables; ++v) {
        sum += ap_choice_bytes(network, v, assignment[v]);
    }
    return sum;
}
