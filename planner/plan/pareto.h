/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/plan/pareto.h
 * The curve of time against memory: every plan that no other beats in both.
 *
 * It is walked from the fastest plan down: each next plan is the fastest of those that take less
 * memory than the last, so a search for the fastest plan within a limit is all that is needed, and
 * the curve is as complete as that search. Memory is told apart to a thousandth.
 *
 * Threads: values.
 */
#pragma once

#include <stdbool.h>

#include "comm/base.h"

typedef struct ap_pareto_point {
    double bytes, seconds;
    void *of; /**< the plan, owned by the curve */
} ap_pareto_point_t;

typedef struct ap_pareto {
    ap_pareto_point_t *points; /**< from the fastest to that of the least memory */
    int count;
    bool stopped; /**< time was up before its end */
} ap_pareto_t;

/** Finds the fastest plans. */
typedef struct ap_pareto_search {
    /** The fastest plan that takes at most @p cap bytes; 0: of all. XM_ERR_NO_SOLUTION: there is
     * none. XM_ERR_TIMEOUT: time is up. */
    xm_status_t (*fastest)(void *arg, double cap, ap_pareto_point_t *point);
    void (*release)(void *of);
    void *arg;
} ap_pareto_search_t;

/** Walks the curve. A failure is that of its first search, or one other than the two above. */
xm_status_t ap_pareto_walk(const ap_pareto_search_t *search, ap_pareto_t *curve);

/** Draws the curve as SVG. */
xm_status_t ap_pareto_plot(const ap_pareto_t *curve, const char *title, const char *path);

/** Frees the points and what they own. */
void ap_pareto_clear(const ap_pareto_search_t *search, ap_pareto_t *curve);
