/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A biased random-key genetic algorithm (Goncalves and Resende, "Biased random-key genetic
 * algorithms for combinatorial optimization", 2011), which REGAL (Paliwal and others, ICLR'20) runs
 * on placements. A key of [0, 1) for each group stands for its device; the best of a generation
 * live on, a few are made anew, and the others have one parent of the best, whose keys they take
 * more often. REGAL learns how to draw first keys; here those of the first individual are the best
 * placement known, and others of the first generation are near it.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/published/placement/state.h"

enum { POPULATION = 60, ELITE = 12, MUTANTS = 9 };

static const double BIAS = 0.7, FIRST_CHANGES = 0.1;

typedef struct individual {
    ap_placement_value_t value;
    double *keys; /* [group] */
} individual_t;

static int by_value(const void *a, const void *b)
{
    const individual_t *left = a, *right = b;

    if (ap_placement_is_better(&left->value, &right->value)) {
        return -1;
    }
    return ap_placement_is_better(&right->value, &left->value) ? 1 : 0;
}

static double unit(ap_placement_state_t *state)
{
    return xm_random_unit(xm_random_next(&state->random));
}

/* Groups that no accelerator can run have keys of CPUs only. */
static double random_key(ap_placement_state_t *state, int group)
{
    double first = isinf(state->groups->accelerator[group])
                       ? (double)state->problem->accelerators / state->devices
                       : 0.0;

    return first + (1.0 - first) * unit(state);
}

static double key_of(const ap_placement_state_t *state, int device)
{
    return (device + 0.5) / state->devices;
}

static void judge(ap_placement_state_t *state, individual_t *individual, int *device_of)
{
    for (int group = 0; group < state->groups->count; ++group) {
        int device = (int)(individual->keys[group] * state->devices);

        device_of[group] = device < state->devices ? device : state->devices - 1;
    }
    individual->value = ap_placement_score(state, device_of);
    (void)ap_placement_keep(state, &individual->value);
}

static void breed(ap_placement_state_t *state, const individual_t *population, double *keys)
{
    const double *best = population[xm_random_below(&state->random, ELITE)].keys;
    const double *other =
        population[ELITE + (int)xm_random_below(&state->random, POPULATION - ELITE)].keys;

    for (int group = 0; group < state->groups->count; ++group) {
        keys[group] = unit(state) < BIAS ? best[group] : other[group];
    }
}

void ap_placement_brkga(ap_placement_state_t *state)
{
    size_t count = (size_t)state->groups->count;
    individual_t population[POPULATION];
    double *keys = xm_arena_get(state->arena, (POPULATION * 2) * count, sizeof(*keys));
    double *children = keys + POPULATION * count;
    int *device_of = xm_arena_get(state->arena, count, sizeof(*device_of));

    if (state->arena->failed) {
        return;
    }
    for (size_t i = 0; i < POPULATION; ++i) {
        population[i].keys = keys + i * count;
        for (int group = 0; group < state->groups->count; ++group) {
            bool keeps = i < POPULATION / 2 && (i == 0 || unit(state) > FIRST_CHANGES);

            population[i].keys[group] =
                keeps ? key_of(state, state->best[group]) : random_key(state, group);
        }
    }
    for (size_t i = 0; i < POPULATION; ++i) {
        judge(state, &population[i], device_of);
    }
    while (state->tries < state->budget) {
        qsort(population, POPULATION, sizeof(*population), by_value);
        for (size_t i = ELITE; i < POPULATION; ++i) {
            double *child = children + i * count;

            if (i < POPULATION - MUTANTS) {
                breed(state, population, child);
            } else {
                for (int group = 0; group < state->groups->count; ++group) {
                    child[group] = random_key(state, group);
                }
            }
        }
        for (size_t i = ELITE; i < POPULATION; ++i) {
            memcpy(population[i].keys, children + i * count, count * sizeof(*keys));
            judge(state, &population[i], device_of);
        }
    }
    ap_placement_polish(state);
}
