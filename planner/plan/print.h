/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/plan/print.h
 * A plan for people: as an aligned table, and as a figure.
 *
 * Threads: no shared state.
 */
#pragma once

#include <autopar/plan.h>

#include <stdio.h>

#include "planner/plan/plan.h"

/** Writes the plan as a table: settings, one line per stage, one per resharding, the totals. */
void ap_plan_print(const ap_plan_t *plan, FILE *stream);
