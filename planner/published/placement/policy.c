/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement by a policy that learns from how good what it proposed was (REINFORCE: Williams, 1992).
 * A policy has a preference for each cluster and device; a placement is drawn from their softmax;
 * preferences move along the gradient of its probability, by how much better it was than the others
 * of its batch. Mirhoseini and others group operators by hand (ColocRL, ICML'17) or learn to (HDP,
 * ICLR'18), GDP and Spotlight propose otherwise for the same reward; here clusters are what
 * coarsening joins, the reward is the load of the busiest device as it is computed here, and the
 * first policy prefers the best placement known, as one that was trained before would.
 *
 * The other form (Placeto: Addanki and others, NeurIPS'19) goes from operator to operator and draws
 * each one's device anew, knowing the rest of the placement: what it prefers is what the placement
 * is worth then, the more sharply the longer it has learned.
 */

#include <float.h>
#include <math.h>
#include <string.h>

#include "planner/published/placement/state.h"

enum { CLUSTERS_PER_DEVICE = 16, BATCH = 24 };

static const double FIRST_PREFERENCE = 3.0, RATE = 1.0, FIRST_HEAT = 0.08;

/* Draws an index with the probabilities of a softmax; an index of -DBL_MAX is never drawn. */
static int draw(xm_random_t *random, const double *preferences, int count, double *chances)
{
    double most = -DBL_MAX, sum = 0.0, at;

    for (int i = 0; i < count; ++i) {
        most = fmax(most, preferences[i]);
    }
    for (int i = 0; i < count; ++i) {
        chances[i] = preferences[i] > -DBL_MAX ? exp(preferences[i] - most) : 0.0;
        sum += chances[i];
    }
    at = xm_random_unit(xm_random_next(random)) * sum;
    for (int i = 0; i < count; ++i) {
        chances[i] /= sum;
    }
    for (int i = 0; i < count; ++i) {
        at -= chances[i] * sum;
        if (at < 0.0 && chances[i] > 0.0) {
            return i;
        }
    }
    for (int i = count - 1; i > 0; --i) {
        if (chances[i] > 0.0) {
            return i;
        }
    }
    return 0;
}

/* A number to learn from: the largest load, and a little of their mean square, which tells apart
 * what does not touch the busiest device. Memory beyond a device's weighs more than any load. */
static double cost_of(const ap_placement_state_t *state, const ap_placement_value_t *value)
{
    double load = value->largest + 0.1 * sqrt(value->squares / state->devices);

    return load * (value->excess > 0.0 ? 2.0 + value->excess / state->problem->memory : 1.0);
}

typedef struct policy {
    ap_placement_state_t *state;
    const int *cluster_of;
    int clusters;
    double *preferences; /* [cluster][device] */
    double *chances;     /* [cluster][device]: of the last draw */
    int *drawn;          /* [BATCH][cluster] */
    int *device_of;      /* [group] */
} policy_t;

static double propose(const policy_t *policy, int *drawn)
{
    ap_placement_state_t *state = policy->state;
    ap_placement_value_t value;
    double cost;

    for (int cluster = 0; cluster < policy->clusters; ++cluster) {
        size_t row = (size_t)cluster * (size_t)state->devices;

        drawn[cluster] =
            draw(&state->random, policy->preferences + row, state->devices, policy->chances + row);
    }
    for (int group = 0; group < state->groups->count; ++group) {
        policy->device_of[group] = drawn[policy->cluster_of[group]];
    }
    value = ap_placement_score(state, policy->device_of);
    cost = cost_of(state, &value);
    (void)ap_placement_keep(state, &value);
    return cost;
}

/* One step along the gradient: d log p(device) / d preference = [device drawn] - p(device). */
static void learn(const policy_t *policy, const double *costs)
{
    int devices = policy->state->devices;
    double mean = 0.0, deviation = 0.0;

    for (int i = 0; i < BATCH; ++i) {
        mean += costs[i] / BATCH;
    }
    for (int i = 0; i < BATCH; ++i) {
        deviation += (costs[i] - mean) * (costs[i] - mean) / BATCH;
    }
    deviation = sqrt(deviation);
    for (int i = 0; i < BATCH && deviation > 0.0; ++i) {
        double advantage = RATE * (mean - costs[i]) / deviation / BATCH;

        for (int cluster = 0; cluster < policy->clusters; ++cluster) {
            size_t row = (size_t)cluster * (size_t)devices;

            for (int device = 0; device < devices; ++device) {
                double *preference = &policy->preferences[row + (size_t)device];
                bool was = policy->drawn[i * policy->clusters + cluster] == device;

                if (*preference > -DBL_MAX) {
                    *preference +=
                        advantage * ((was ? 1.0 : 0.0) - policy->chances[row + (size_t)device]);
                }
            }
        }
    }
}

void ap_placement_policy(ap_placement_state_t *state)
{
    size_t count = (size_t)state->groups->count;
    int *cluster_of = xm_arena_get(state->arena, count, sizeof(int));
    policy_t policy = {.state = state, .cluster_of = cluster_of};
    size_t cells;

    if (cluster_of == NULL) {
        return;
    }
    policy.clusters = ap_placement_coarsen(state, CLUSTERS_PER_DEVICE * state->devices, cluster_of);
    cells = (size_t)policy.clusters * (size_t)state->devices;
    policy.preferences = xm_arena_get(state->arena, cells, sizeof(double));
    policy.chances = xm_arena_get(state->arena, cells, sizeof(double));
    policy.drawn = xm_arena_get(state->arena, BATCH * (size_t)policy.clusters, sizeof(int));
    policy.device_of = xm_arena_get(state->arena, count, sizeof(int));
    if (state->arena->failed) {
        return;
    }
    for (size_t group = 0; group < count; ++group) {
        double *row = policy.preferences + (size_t)cluster_of[group] * (size_t)state->devices;

        for (int device = 0; device < state->devices; ++device) {
            if (!ap_placement_can_be_on(state, (int)group, device)) {
                row[device] = -DBL_MAX;
            } else if (device == state->best[group] && row[device] > -DBL_MAX) {
                row[device] = FIRST_PREFERENCE;
            }
        }
    }
    while (state->tries < state->budget) {
        double costs[BATCH];

        for (int i = 0; i < BATCH; ++i) {
            costs[i] = propose(&policy, policy.drawn + (ptrdiff_t)i * policy.clusters);
        }
        learn(&policy, costs);
    }
    ap_placement_polish(state);
}

/* Draws a device for one group: what the placement would cost with it on each. */
static void redraw(ap_placement_state_t *state, int group, double heat, double *preferences,
                   double *chances)
{
    for (int device = 0; device < state->devices; ++device) {
        preferences[device] = -DBL_MAX;
        if (ap_placement_can_be_on(state, group, device)) {
            ap_placement_value_t value;

            ap_placement_move(state, group, device);
            value = ap_placement_value(state);
            preferences[device] = -cost_of(state, &value) / (heat * state->best_value.largest);
        }
    }
    ap_placement_move(state, group, draw(&state->random, preferences, state->devices, chances));
}

void ap_placement_stepwise(ap_placement_state_t *state)
{
    double *preferences = xm_arena_get(state->arena, (size_t)state->devices, sizeof(double));
    double *chances = xm_arena_get(state->arena, (size_t)state->devices, sizeof(double));

    if (state->arena->failed) {
        return;
    }
    (void)ap_placement_score(state, state->best);
    while (state->tries < state->budget) {
        double heat = FIRST_HEAT * (1.0 - (double)state->tries / (double)state->budget) + 1e-6;
        ap_placement_value_t value;

        ap_placement_recount(state);
        for (int group = 0; group < state->groups->count; ++group) {
            redraw(state, group, heat, preferences, chances);
        }
        value = ap_placement_value(state);
        if (state->problem->chain) {
            value = ap_placement_score(state, state->device_of);
        }
        (void)ap_placement_keep(state, &value);
    }
    ap_placement_polish(state);
}
