/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small problems with a limit, for tests that hold a search against every assignment.
 *
 * They come from a generator that each test seeds for each of its problems, so that one that fails
 * can be made alone.
 */
#pragma once

#include <stdint.h>

#include "planner/solver/network.h"

enum { VARIABLES = 8, SIZE = 3, TIMES = 5 };

/* What comes next depends on this alone. */
void seed_cores(uint64_t seed);

/* A number below a limit. */
int random_below(int limit);

/* Costs and usages that are against each other, in one to three components of at most VARIABLES
 * variables with at most SIZE values, at TIMES times. Some have no solution. */
ap_cfn_core_t *random_core(void);

/* The least cost of an assignment that fits; HUGE_VAL: there is none. */
double least_of_all(const ap_cfn_core_t *core);
