/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Local search over placements that need not be contiguous. There is no bound for these, and a
 * dynamic programme does not apply; so it descends by the best move of one group, then moves a few
 * groups at random and descends again. The number of moves is the budget, not time, so a seed gives
 * the same answer on every machine.
 *
 * It starts from the contiguous optimum and keeps the best, so it is never worse.
 */

#include <math.h>
#include <string.h>

#include "comm/base.h"
#include "planner/published/placement/groups.h"

/* How many moves may be looked at, how many kicks may be in vain before it ends, and how many
 * groups are moved at random at a time. */
enum { MOST_TRIES = 4000000, MOST_VAIN = 400, LEAST_KICK = 2, MOST_KICK = 6 };

/* Savings below this are rounding. */
static const double SAVING = 1e-9;

typedef struct state {
    const ap_placement_problem_t *problem;
    const ap_placement_groups_t *groups;
    int devices;
    int *device_of; /* [group] */
    int *takers;    /* [source][device]: groups there that take its output */
    double *times;  /* [device]: operators and transfers */
    double *sizes;  /* [device] */
    xm_random_t random;
    int64_t tries;
} state_t;

/* What is made small: the largest load first, then the sum of squares, so that there is a direction
 * where the largest load does not change. */
typedef struct value {
    double largest, squares;
} value_t;

static int random_below(state_t *state, int limit)
{
    return (int)(xm_random_below(&state->random, (uint64_t)limit));
}

static bool is_better(const value_t *a, const value_t *b)
{
    if (fabs(a->largest - b->largest) > SAVING) {
        return a->largest < b->largest;
    }
    return a->squares < b->squares * (1.0 - SAVING);
}

static value_t value_of(const state_t *state)
{
    value_t value = {0.0, 0.0};

    for (int device = 0; device < state->devices; ++device) {
        double load = state->times[device];

        if (device < state->problem->accelerators &&
            state->sizes[device] > state->problem->memory) {
            load = INFINITY;
        }
        value.largest = load > value.largest ? load : value.largest;
        value.squares += load * load;
    }
    return value;
}

/* Adds (sign 1) or takes away what one source costs the devices. */
static void add_source(state_t *state, int index, double sign)
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

static void add_group(state_t *state, int group, double sign)
{
    int device = state->device_of[group];
    bool cpu = device >= state->problem->accelerators;

    state->times[device] +=
        sign * (cpu ? state->groups->cpu[group] : state->groups->accelerator[group]);
    state->sizes[device] += sign * state->groups->size[group];
}

/* Sources are taken out before the move and put back after it; each costs time proportional to the
 * number of devices. */
static void move(state_t *state, int group, int device)
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

static bool can_be_on(const state_t *state, int group, int device)
{
    return device >= state->problem->accelerators || !isinf(state->groups->accelerator[group]);
}

/* Counts everything anew from device_of, so that rounding does not add up over many moves. */
static void recount(state_t *state)
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

/* Takes the best move of one group as long as there is one that helps. Every trial move is undone,
 * and every move taken is strictly better, so it ends even without the budget. */
static value_t descend(state_t *state)
{
    value_t now;

    recount(state);
    now = value_of(state);
    while (state->tries < MOST_TRIES) {
        int best_group = -1, best_device = -1;
        value_t best = now;

        for (int group = 0; group < state->groups->count; ++group) {
            int home = state->device_of[group];

            for (int device = 0; device < state->devices; ++device) {
                if (device != home && can_be_on(state, group, device)) {
                    value_t value;

                    move(state, group, device);
                    value = value_of(state);
                    if (is_better(&value, &best)) {
                        best = value;
                        best_group = group;
                        best_device = device;
                    }
                }
            }
            if (state->device_of[group] != home) {
                move(state, group, home);
            }
        }
        if (best_group < 0) {
            break;
        }
        move(state, best_group, best_device);
        now = best;
    }
    return now;
}

static void kick(state_t *state)
{
    int moves = LEAST_KICK + random_below(state, MOST_KICK - LEAST_KICK + 1);

    for (int i = 0; i < moves; ++i) {
        int group = random_below(state, state->groups->count);
        int device = random_below(state, state->devices);

        if (can_be_on(state, group, device)) {
            state->device_of[group] = device;
        }
    }
}

/* Descends, moves a few groups at random, and goes back unless that led somewhere as good. */
static void improve(state_t *state, int *best)
{
    size_t bytes = (size_t)state->groups->count * sizeof(*best);
    value_t best_value = descend(state);
    int vain = 0;

    memcpy(best, state->device_of, bytes);
    while (state->tries < MOST_TRIES && vain < MOST_VAIN) {
        value_t value;

        kick(state);
        value = descend(state);
        vain = is_better(&value, &best_value) ? 0 : vain + 1;
        if (!is_better(&best_value, &value)) {
            best_value = value;
            memcpy(best, state->device_of, bytes);
        } else {
            memcpy(state->device_of, best, bytes);
        }
    }
}

static xm_status_t search_groups(const ap_placement_problem_t *problem,
                                 ap_placement_groups_t *groups, const ap_placement_t *start,
                                 uint64_t seed, ap_placement_t *found)
{
    size_t count = (size_t)groups->count, devices = (size_t)start->devices;
    state_t state = {
        .problem = problem, .groups = groups, .devices = start->devices, .random = {seed}};
    xm_arena_t *arena = &groups->arena;
    int *best = xm_arena_get(arena, count, sizeof(*best));

    state.device_of = xm_arena_get(arena, count, sizeof(int));
    state.takers = xm_arena_get(arena, (size_t)groups->source_count * devices, sizeof(int));
    state.times = xm_arena_get(arena, devices, sizeof(double));
    state.sizes = xm_arena_get(arena, devices, sizeof(double));
    if (arena->failed) {
        return XM_NO_MEMORY("%zu groups", count);
    }
    for (int i = 0; i < problem->node_count; ++i) {
        state.device_of[groups->group_of[i]] = start->device_of[i];
    }
    improve(&state, best);
    return ap_placement_finish(problem, groups, best, found);
}

xm_status_t ap_placement_search(const ap_placement_problem_t *problem, const ap_placement_t *start,
                                uint64_t seed, ap_placement_t *placement)
{
    ap_placement_groups_t groups;
    ap_placement_t found = {0};
    xm_status_t status = ap_placement_groups_create(problem, false, &groups);

    if (status != XM_OK) {
        return status;
    }
    status = ap_placement_init(problem, &found);
    if (status == XM_OK) {
        status = search_groups(problem, &groups, start, seed, &found);
    }
    ap_placement_groups_clear(&groups);
    if (status != XM_OK) {
        ap_placement_clear(&found);
        return status;
    }
    *placement = found;
    return XM_OK;
}
