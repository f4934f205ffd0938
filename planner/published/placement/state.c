/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A placement of groups and its loads, which follow each move of a group. Loads are sums over
 * operators and over borders that outputs cross, so a move changes only what touches the group.
 */

#include "planner/published/placement/state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Savings below this are rounding. */
static const double SAVING = 1e-9;

bool ap_placement_is_better(const ap_placement_value_t *a, const ap_placement_value_t *b)
{
    if (fabs(a->excess - b->excess) > SAVING) {
        return a->excess < b->excess;
    }
    if (fabs(a->largest - b->largest) > SAVING) {
        return a->largest < b->largest;
    }
    return a->squares < b->squares * (1.0 - SAVING);
}

ap_placement_value_t ap_placement_value(const ap_placement_state_t *state)
{
    ap_placement_value_t value = {0};

    for (int device = 0; device < state->devices; ++device) {
        double load = state->times[device];

        if (device < state->problem->accelerators) {
            value.excess += fmax(0.0, state->sizes[device] - state->problem->memory);
        }
        value.largest = load > value.largest ? load : value.largest;
        value.squares += load * load;
    }
    return value;
}

/* Adds (sign 1) or takes away what one source costs the devices. */
static void add_source(ap_placement_state_t *state, int index, double sign)
{
    const ap_group_source_t *source = &state->groups->sources[index];
    const int *takers = state->takers + (size_t)index * (size_t)state->devices;
    int home = state->device_of[source->group];
    bool leaves = false;

    for (int device = 0; device < state->devices; ++device) {
        if (device != home && takers[device] > 0) {
            leaves = true;
            state->times[device] +=
                device < state->problem->accelerators ? sign * source->transfer : 0.0;
        }
    }
    if (leaves && home < state->problem->accelerators) {
        state->times[home] += sign * source->transfer;
    }
}

static void add_group(ap_placement_state_t *state, int group, double sign)
{
    int device = state->device_of[group];
    bool cpu = device >= state->problem->accelerators;

    state->times[device] +=
        sign * (cpu ? state->groups->cpu[group] : state->groups->accelerator[group]);
    state->sizes[device] += sign * state->groups->size[group];
}

/* Sources are taken out before the move and put back after it; each costs time proportional to the
 * number of devices. */
void ap_placement_move(ap_placement_state_t *state, int group, int device)
{
    const ap_placement_groups_t *groups = state->groups;

    add_group(state, group, -1.0);
    for (int i = groups->first_own[group]; i < groups->first_own[group + 1]; ++i) {
        add_source(state, groups->own[i], -1.0);
    }
    for (int i = groups->first_into[group]; i < groups->first_into[group + 1]; ++i) {
        int *takers = state->takers + (size_t)groups->into[i] * (size_t)state->devices;

        add_source(state, groups->into[i], -1.0);
        --takers[state->device_of[group]];
        ++takers[device];
        add_source(state, groups->into[i], 1.0);
    }
    state->device_of[group] = device;
    for (int i = groups->first_own[group]; i < groups->first_own[group + 1]; ++i) {
        add_source(state, groups->own[i], 1.0);
    }
    add_group(state, group, 1.0);
    ++state->tries;
}

bool ap_placement_can_be_on(const ap_placement_state_t *state, int group, int device)
{
    return device >= state->problem->accelerators || !isinf(state->groups->accelerator[group]);
}

/* Counts everything anew from device_of, so that rounding does not add up over many moves. */
void ap_placement_recount(ap_placement_state_t *state)
{
    const ap_placement_groups_t *groups = state->groups;

    memset(state->takers, 0,
           (size_t)groups->source_count * (size_t)state->devices * sizeof(*state->takers));
    memset(state->times, 0, (size_t)state->devices * sizeof(*state->times));
    memset(state->sizes, 0, (size_t)state->devices * sizeof(*state->sizes));
    for (int i = 0; i < groups->source_count; ++i) {
        const ap_group_source_t *source = &groups->sources[i];

        for (int j = 0; j < source->count; ++j) {
            ++state->takers[i * state->devices +
                            state->device_of[groups->takers[source->first + j]]];
        }
        add_source(state, i, 1.0);
    }
    for (int group = 0; group < groups->count; ++group) {
        add_group(state, group, 1.0);
    }
}

/* A group that goes to a device, and one that comes to its place or -1. */
typedef struct step {
    ap_placement_value_t value;
    int group, device, other;
} step_t;

/* Looks whether what was moved is better than the best step so far. */
static void look(const ap_placement_state_t *state, int group, int other, step_t *best)
{
    ap_placement_value_t value = ap_placement_value(state);

    if (ap_placement_is_better(&value, &best->value)) {
        *best = (step_t){value, group, state->device_of[group], other};
    }
}

static void try_moves(ap_placement_state_t *state, int group, step_t *best)
{
    int home = state->device_of[group];

    for (int device = 0; device < state->devices; ++device) {
        if (device != home && ap_placement_can_be_on(state, group, device)) {
            ap_placement_move(state, group, device);
            look(state, group, -1, best);
        }
    }
    if (state->device_of[group] != home) {
        ap_placement_move(state, group, home);
    }
}

/* A group of the busiest device changes places with each of another one (Kernighan and Lin, 1970):
 * what moves of one group cannot do where devices are full. */
static void try_swaps(ap_placement_state_t *state, int group, step_t *best)
{
    int home = state->device_of[group];

    for (int other = 0; other < state->groups->count && state->tries < state->budget; ++other) {
        int there = state->device_of[other];

        if (there != home && ap_placement_can_be_on(state, group, there) &&
            ap_placement_can_be_on(state, other, home)) {
            ap_placement_move(state, group, there);
            ap_placement_move(state, other, home);
            look(state, group, other, best);
            ap_placement_move(state, other, there);
            ap_placement_move(state, group, home);
        }
    }
}

/* Takes the best move of one group as long as there is one that helps, or else of two. Every trial
 * is undone, and every step taken is strictly better, so it ends even without the budget. */
ap_placement_value_t ap_placement_descend(ap_placement_state_t *state)
{
    step_t best;

    ap_placement_recount(state);
    best = (step_t){.value = ap_placement_value(state)};
    do {
        int busiest = 0;

        best.group = -1;
        for (int group = 0; group < state->groups->count; ++group) {
            try_moves(state, group, &best);
        }
        for (int device = 1; device < state->devices; ++device) {
            busiest = state->times[device] > state->times[busiest] ? device : busiest;
        }
        for (int group = 0; group < state->groups->count && best.group < 0; ++group) {
            if (state->device_of[group] == busiest) {
                try_swaps(state, group, &best);
            }
        }
        if (best.group >= 0) {
            int home = state->device_of[best.group];

            ap_placement_move(state, best.group, best.device);
            if (best.other >= 0) {
                ap_placement_move(state, best.other, home);
            }
        }
    } while (best.group >= 0 && state->tries < state->budget);
    return best.value;
}

ap_placement_value_t ap_placement_score(ap_placement_state_t *state, const int *device_of)
{
    size_t count = (size_t)state->groups->count;

    memmove(state->device_of, device_of, count * sizeof(*device_of));
    if (state->problem->chain) {
        qsort(state->device_of, count, sizeof(*device_of), xm_order_ints);
    }
    ap_placement_recount(state);
    state->tries += (int64_t)count;
    return ap_placement_value(state);
}

bool ap_placement_keep(ap_placement_state_t *state, const ap_placement_value_t *value)
{
    if (!ap_placement_is_better(value, &state->best_value)) {
        return false;
    }
    state->best_value = *value;
    memcpy(state->best, state->device_of, (size_t)state->groups->count * sizeof(*state->best));
    return true;
}

void ap_placement_polish(ap_placement_state_t *state)
{
    if (!state->problem->chain) {
        int64_t budget = state->budget;
        ap_placement_value_t value;

        (void)ap_placement_score(state, state->best);
        state->budget = state->tries + budget / 4;
        value = ap_placement_descend(state);
        (void)ap_placement_keep(state, &value);
        state->budget = budget;
    }
}
