/**
 * @file plan_print.h
 * A plan for people: as an aligned table, and as a figure.
 *
 * Threads: no shared state.
 */
#ifndef AP_PLANNER_PLAN_PRINT_H
#define AP_PLANNER_PLAN_PRINT_H

#include <stdio.h>

#include "planner/plan.h"

/** Writes the plan as a table: settings, one line per stage, one per resharding, the totals. */
XM_API void ap_plan_print(const ap_plan_t *plan, FILE *stream);

/**
 * Writes a figure of the plan as SVG 1.1: hosts and devices from top to bottom, stages as boxes on
 * their devices with layers, mesh, times and memory, the reshardings between them, and the
 * pipeline's first micro-batches along the time axis underneath.
 */
XM_API xm_status_t ap_plan_plot(const ap_plan_t *plan, const char *path);

#endif
