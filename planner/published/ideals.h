/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file ideals.h
 * All down-sets of a directed acyclic graph: the sets of nodes that hold every predecessor of what
 * they hold. A set between two of them is a contiguous part of the graph, so a dynamic programme
 * over down-sets tries every way to cut a graph into contiguous parts (Tarnawski, NeurIPS'20 and
 * '21).
 *
 * Down-sets are numbered by size: 0 is empty, the last has every node. Each has links to those with
 * one node less. Threads: immutable once made.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "comm/base.h"

typedef struct ap_ideals ap_ideals_t;

/** An edge: the node `after` needs the node `before`. */
typedef struct ap_precedence {
    int before, after;
} ap_precedence_t;

/** A down-set with one node less. */
typedef struct ap_ideal_link {
    int32_t ideal; /**< its number */
    int32_t node;  /**< that it lacks */
} ap_ideal_link_t;

/**
 * Enumerates the down-sets of @p nodes nodes. XM_ERR_INVALID_ARGUMENT: the edges have a cycle;
 * XM_ERR_NO_SOLUTION: there are more than @p most.
 */
xm_status_t ap_ideals_create(int nodes, const ap_precedence_t *edges, int edge_count, int most,
                             ap_ideals_t **ideals);

int ap_ideals_count(const ap_ideals_t *ideals);

/** Whether down-set @p ideal holds @p node. */
bool ap_ideals_has(const ap_ideals_t *ideals, int ideal, int node);

/** Links of @p ideal to those with one node less, and their number. */
const ap_ideal_link_t *ap_ideals_below(const ap_ideals_t *ideals, int ideal, int *count);

/** NULL is accepted. */
void ap_ideals_destroy(ap_ideals_t *ideals);
