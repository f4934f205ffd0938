/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/choice/network.h
 * The problem that published searches over shardings share: variables with a few values each, which
 * cost seconds and bytes, and edges that cost seconds for every pair of values. A variable is an
 * operator with its ways of sharding, or a tensor between two layers with its layouts.
 *
 * The searches are files of their own, `search_*.h`; each takes a network and gives an assignment,
 * the index of a value per variable.
 *
 * Units: seconds, bytes. Ownership: tables are borrowed and must outlive the network; many edges
 * may share one. Threads: shared freely once made.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"

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
    int variable_count, edge_count;
    ap_choice_variable_t *variables;
    ap_choice_edge_t *edges;
    int *first; /**< [variable_count + 1]: range of a variable's edges in `touching` */
    int *touching;
} ap_choice_network_t;

/** Copies the lists, not the tables. Refused: an empty domain, an edge to itself or to nowhere. */
xm_status_t ap_choice_network_create(const ap_choice_variable_t *variables, int variable_count,
                                     const ap_choice_edge_t *edges, int edge_count,
                                     ap_choice_network_t **network);

double ap_choice_network_seconds(const ap_choice_network_t *network, const int *assignment);
double ap_choice_network_bytes(const ap_choice_network_t *network, const int *assignment);

/** Seconds of one variable's value with all its edges, the other variables as assigned. */
double ap_choice_local_seconds(const ap_choice_network_t *network, int variable, int value,
                               const int *assignment);

/** NULL is accepted. */
void ap_choice_network_destroy(ap_choice_network_t *network);
