/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/choice/network.h
 * The problem that published searches over shardings share, as a network of the solver
 * (planner/solver/network/core.h): variables with a few values each, which cost seconds and use
 * bytes, and links that cost seconds for every pair of values. A variable is an operator with its
 * ways of sharding, or a tensor between two layers with its layouts.
 *
 * The searches are files of their own; each takes a network and gives an assignment, the index of a
 * value per variable.
 *
 * Units: seconds, bytes. Ownership: tables of edges and `part` are borrowed and must outlive the
 * network; many edges may share one. Threads: shared freely once made.
 */
#pragma once

#include "planner/solver/network.h"

enum { AP_CHOICE_LEVELS = 3 /**< mesh axes, for searches that decide one after the other */ };

typedef struct ap_choice_variable {
    int domain;            /**< values, at least 1 */
    const double *seconds; /**< [domain] */
    const double *bytes;   /**< [domain]; NULL: none */
    /** [domain][AP_CHOICE_LEVELS] what a value does with each mesh axis, 0 = nothing; NULL: nothing
     *  with any. */
    const uint8_t *part;
} ap_choice_variable_t;

typedef struct ap_choice_edge {
    int a, b;
    const double *seconds; /**< [domain of a][domain of b] */
} ap_choice_edge_t;

typedef struct ap_choice_network {
    ap_cfn_core_t *core;  /**< costs are seconds; usage, at its one time, is bytes */
    const uint8_t **part; /**< per variable */
} ap_choice_network_t;

/** Copies all but tables of edges and parts. Refused: an empty domain, an edge to itself or to
 *  nowhere. */
xm_status_t ap_choice_network_create(const ap_choice_variable_t *variables, int variable_count,
                                     const ap_choice_edge_t *edges, int edge_count,
                                     ap_choice_network_t **network);

static inline double ap_choice_network_seconds(const ap_choice_network_t *network,
                                               const int *assignment)
{
    return ap_cfn_core_cost(network->core, assignment);
}

double ap_choice_network_bytes(const ap_choice_network_t *network, const int *assignment);

/** Bytes of one variable's value. */
static inline double ap_choice_bytes(const ap_choice_network_t *network, int variable, int value)
{
    const ap_cfn_variable_t *of = &network->core->variable[variable];

    return of->segments > 0 ? of->segment[0].usage[value] : 0.0;
}

/** NULL is accepted. */
void ap_choice_network_destroy(ap_choice_network_t *network);
