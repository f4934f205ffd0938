/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file choice_network.h
 * A network of choices from lists of variables and edges, as tests write them down.
 */
#pragma once

#include "planner/published/choice/network.h"

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

/** NULL is accepted. */
void ap_choice_network_destroy(ap_choice_network_t *network);
