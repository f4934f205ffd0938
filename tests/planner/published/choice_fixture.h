/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file choice_fixture.h
 * Random choice networks, and the answers that trying every assignment gives.
 */
#pragma once

#include "tests/planner/published/choice_network.h"

enum { CHOICE_VARIABLES = 8, CHOICE_VALUES = 6, CHOICE_EDGES = 16 };

typedef struct choice_fixture {
    unsigned random;
    double seconds[CHOICE_VARIABLES][CHOICE_VALUES], bytes[CHOICE_VARIABLES][CHOICE_VALUES];
    uint8_t part[CHOICE_VARIABLES][CHOICE_VALUES * AP_CHOICE_LEVELS];
    double table[CHOICE_EDGES][CHOICE_VALUES * CHOICE_VALUES];
    ap_choice_network_t *network;
} choice_fixture_t;

/** Up to 7 variables of up to 5 values, whole numbers for costs; connected by a random tree and
 * @p more edges, which may be parallel. */
void choice_fixture_random(choice_fixture_t *fixture, unsigned seed, int more);

/** A chain of blocks with a residual edge over each, as transformers are. */
void choice_fixture_residual(choice_fixture_t *fixture, unsigned seed);

/** Next assignment in counting order; false after the last, which is followed by the first. */
bool choice_fixture_next(const ap_choice_network_t *network, int *assignment);

/** Least seconds over all assignments. */
double choice_fixture_least(const ap_choice_network_t *network);
