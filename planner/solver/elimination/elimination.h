/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file elimination.h
 * Minimising a sum of tables over discrete variables by eliminating one variable after another.
 *
 * The exact core of the intra-operator solver: each table is a cost over the values of a few
 * variables. Eliminating a variable replaces the tables that mention it by one table over their
 * other variables that holds the minimum; the order is min-size greedy (the variable whose new
 * table is smallest, then the lowest number), which is dynamic programming over a tree
 * decomposition (Dechter, "Bucket elimination", 1999). Variables may be *kept*: then the result is
 * the exact table of the minimum for every combination of their values, and any cell can be traced
 * back to an assignment of all variables.
 *
 * Deterministic: of equal values the lowest wins. A forbidden combination is simply very expensive.
 * Threads: one object by one thread at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "comm/base.h"

typedef struct ap_elimination ap_elimination_t;

enum { AP_ELIMINATION_SCOPE = 12 /**< variables in one table */ };

/** @p domain[v] values (1 … 65535) of each of @p variables variables. */
xm_status_t ap_elimination_create(int variables, const int *domain, ap_elimination_t **elimination);

/** Adds a table over @p count distinct variables, row-major, first variable slowest. Copied. */
xm_status_t ap_elimination_add(ap_elimination_t *elimination, const int *variables, int count,
                               const double *values);

/**
 * Eliminates all variables but those with keep[v] (NULL: keeps none). XM_ERR_UNSUPPORTED when a
 * table would exceed @p max_cells or AP_ELIMINATION_SCOPE variables; the object is then spent.
 */
xm_status_t ap_elimination_run(ap_elimination_t *elimination, const bool *keep, size_t max_cells);

/** After a run: the minimum given values for the kept variables (others are ignored). */
double ap_elimination_minimum(const ap_elimination_t *elimination, const int *assignment);

/** After a run: completes @p assignment, whose kept variables are set, to one that attains it. */
void ap_elimination_trace(const ap_elimination_t *elimination, int *assignment);

void ap_elimination_destroy(ap_elimination_t *elimination);
