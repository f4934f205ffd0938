/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Partitioning by least transfers under balance, as Scotch and METIS do it: clusters that cost much
 * to part are joined first (heavy edges), the clusters are placed, and passes of Kernighan and Lin
 * in the form of Fiduccia and Mattheyses improve that, on clusters and then on single groups: in a
 * pass each moves once, the best first, also where it costs, and the best beginning of the pass is
 * what remains. (Karypis and Kumar, "Multilevel k-way partitioning scheme for irregular graphs",
 * 1998; Fiduccia and Mattheyses, DAC'82.)
 */

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/published/placement/state.h"

enum { CLUSTERS_PER_DEVICE = 12, MOST_PASSES = 12, MOST_VAIN = 120 };

/* By how much more than its share a device may hold. */
static const double slacks[] = {0.02, 0.1, 0.3, 0.6, 1.0};

typedef struct heavy {
    double transfer;
    int from, to;
} heavy_t;

static int by_transfer(const void *a, const void *b)
{
    const heavy_t *left = a, *right = b;

    XM_ORDER_BY(right->transfer, left->transfer);
    return left->from != right->from ? left->from - right->from : left->to - right->to;
}

/* What a group weighs: its time where it can run. */
static double weight_of(const ap_placement_groups_t *groups, int group)
{
    return isinf(groups->accelerator[group]) ? groups->cpu[group] : groups->accelerator[group];
}

static int list_edges(const ap_placement_groups_t *groups, heavy_t *edges)
{
    int count = 0;

    for (int i = 0; i < groups->source_count; ++i) {
        const ap_group_source_t *source = &groups->sources[i];

        for (int j = 0; j < source->count; ++j) {
            int taker = groups->takers[source->first + j];

            /* Never one that runs on accelerators with one that cannot. */
            if (isinf(groups->accelerator[source->group]) == isinf(groups->accelerator[taker])) {
                edges[count++] = (heavy_t){source->transfer, source->group, taker};
            }
        }
    }
    qsort(edges, (size_t)count, sizeof(*edges), by_transfer);
    return count;
}

/* Joins along the edges, the dearest first, as long as a cluster stays below the caps. */
static int join_below(const heavy_t *edges, int count, int left, int most, const double caps[2],
                      int *parent, double *weight, double *size)
{
    for (int i = 0; i < count && left > most; ++i) {
        int a = ap_set_root(parent, edges[i].from), b = ap_set_root(parent, edges[i].to);

        if (a != b && weight[a] + weight[b] <= caps[0] && size[a] + size[b] <= caps[1]) {
            parent[b] = a;
            weight[a] += weight[b];
            size[a] += size[b];
            --left;
        }
    }
    return left;
}

int ap_placement_coarsen(ap_placement_state_t *state, int most, int *cluster_of)
{
    const ap_placement_groups_t *groups = state->groups;
    size_t count = (size_t)groups->count, takers = 0;
    double *weight = xm_arena_get(state->arena, count, sizeof(*weight));
    double *size = xm_arena_get(state->arena, count, sizeof(*size));
    int *parent = xm_arena_get(state->arena, count, sizeof(*parent));
    double share = 0.0;
    int left = groups->count, edge_count, clusters = 0;
    heavy_t *edges;

    for (int i = 0; i < groups->source_count; ++i) {
        takers += (size_t)groups->sources[i].count;
    }
    edges = xm_arena_get(state->arena, takers, sizeof(*edges));
    if (state->arena->failed) {
        return 0;
    }
    for (int group = 0; group < groups->count; ++group) {
        parent[group] = group;
        weight[group] = weight_of(groups, group);
        size[group] = groups->size[group];
        share += weight[group] / most;
    }
    edge_count = list_edges(groups, edges);
    /* A cap that grows keeps clusters even; it ends at half of a device's share. */
    for (double cap = share; left > most && cap <= share * most / state->devices; cap *= 1.5) {
        const double caps[2] = {cap, state->problem->memory / 4.0};

        left = join_below(edges, edge_count, left, most, caps, parent, weight, size);
    }
    for (int group = 0; group < groups->count; ++group) {
        cluster_of[group] = ap_set_root(parent, group) == group ? clusters++ : -1;
    }
    for (int group = 0; group < groups->count; ++group) {
        cluster_of[group] = cluster_of[ap_set_root(parent, group)];
    }
    return clusters;
}

/* A pass of moves of units: clusters, or single groups. */
typedef struct pass {
    ap_placement_state_t *state;
    const int *first, *members; /* of each unit, [units + 1] and [groups] */
    const int *unit_of;
    int units;
    double limit; /* time of a device's operators */
    double *held; /* [device]: time of its operators */
    double *gain; /* [unit], of its best move */
    int *target;  /* [unit], -1: none */
    bool *locked;
} pass_t;

static double transfers(const pass_t *pass)
{
    double sum = 0.0;

    for (int device = 0; device < pass->state->devices; ++device) {
        sum += pass->state->times[device] - pass->held[device];
    }
    return sum;
}

static double time_on(const pass_t *pass, int group, int device)
{
    const ap_placement_groups_t *groups = pass->state->groups;

    return device < pass->state->problem->accelerators ? groups->accelerator[group]
                                                       : groups->cpu[group];
}

static void move_unit(const pass_t *pass, int unit, int device)
{
    for (int i = pass->first[unit]; i < pass->first[unit + 1]; ++i) {
        int group = pass->members[i], home = pass->state->device_of[group];

        if (home != device) {
            pass->held[home] -= time_on(pass, group, home);
            pass->held[device] += time_on(pass, group, device);
            ap_placement_move(pass->state, group, device);
        }
    }
}

/* The move of a unit that saves most transfers and leaves its device within the limit. */
static void choose(const pass_t *pass, int unit)
{
    const ap_placement_state_t *state = pass->state;
    int group = pass->members[pass->first[unit]], home = state->device_of[group];
    double before = transfers(pass);

    pass->target[unit] = -1;
    pass->gain[unit] = -DBL_MAX;
    for (int device = 0; device < state->devices; ++device) {
        if (device != home && ap_placement_can_be_on(state, group, device)) {
            double after;
            bool fits;

            move_unit(pass, unit, device);
            after = transfers(pass);
            fits = pass->held[device] <= pass->limit &&
                   (device >= state->problem->accelerators ||
                    state->sizes[device] <= state->problem->memory);
            if (fits && before - after > pass->gain[unit]) {
                pass->gain[unit] = before - after;
                pass->target[unit] = device;
            }
        }
    }
    move_unit(pass, unit, home);
}

/* What a unit touches may gain something else now. */
static void choose_beside(const pass_t *pass, int unit)
{
    const ap_placement_groups_t *groups = pass->state->groups;

    for (int i = pass->first[unit]; i < pass->first[unit + 1]; ++i) {
        int group = pass->members[i];

        for (int j = groups->first_into[group]; j < groups->first_into[group + 1]; ++j) {
            int other = pass->unit_of[groups->sources[groups->into[j]].group];

            if (!pass->locked[other]) {
                choose(pass, other);
            }
        }
        for (int j = groups->first_own[group]; j < groups->first_own[group + 1]; ++j) {
            const ap_group_source_t *source = &groups->sources[groups->own[j]];

            for (int k = 0; k < source->count; ++k) {
                int other = pass->unit_of[groups->takers[source->first + k]];

                if (!pass->locked[other]) {
                    choose(pass, other);
                }
            }
        }
    }
}

/* True: the pass found fewer transfers; the placement is the best that it saw, in any case. */
static bool run_pass(pass_t *pass, int *kept)
{
    ap_placement_state_t *state = pass->state;
    size_t bytes = (size_t)state->groups->count * sizeof(*kept);
    double least = transfers(pass);
    bool found = false;

    memcpy(kept, state->device_of, bytes);
    memset(pass->locked, 0, (size_t)pass->units * sizeof(*pass->locked));
    for (int unit = 0; unit < pass->units; ++unit) {
        choose(pass, unit);
    }
    for (int moved = 0, vain = 0; moved < pass->units && vain < MOST_VAIN; ++moved, ++vain) {
        int best = -1;

        for (int unit = 0; unit < pass->units; ++unit) {
            if (!pass->locked[unit] && pass->target[unit] >= 0 &&
                (best < 0 || pass->gain[unit] > pass->gain[best])) {
                best = unit;
            }
        }
        if (best < 0) {
            break;
        }
        /* Devices fill up, so a move that fitted once may not fit now. */
        choose(pass, best);
        pass->locked[best] = true;
        if (pass->target[best] < 0) {
            continue;
        }
        move_unit(pass, best, pass->target[best]);
        choose_beside(pass, best);
        if (transfers(pass) < least * (1.0 - 1e-9)) {
            least = transfers(pass);
            memcpy(kept, state->device_of, bytes);
            found = true;
            vain = 0;
        }
    }
    (void)ap_placement_score(state, kept);
    return found;
}

static void count_held(const pass_t *pass)
{
    const ap_placement_state_t *state = pass->state;

    memset(pass->held, 0, (size_t)state->devices * sizeof(*pass->held));
    for (int group = 0; group < state->groups->count; ++group) {
        int device = state->device_of[group];

        pass->held[device] += time_on(pass, group, device);
    }
}

/* Lists the groups of each unit. */
static void list_members(int groups, const int *unit_of, int units, int *first, int *members)
{
    memset(first, 0, ((size_t)units + 1) * sizeof(*first));
    for (int group = 0; group < groups; ++group) {
        ++first[unit_of[group] + 1];
    }
    for (int unit = 0; unit < units; ++unit) {
        first[unit + 1] += first[unit];
    }
    for (int group = 0; group < groups; ++group) {
        members[first[unit_of[group]]++] = group;
    }
    /* Each beginning stands at its unit's end now, which is where the next one begins. */
    memmove(first + 1, first, (size_t)units * sizeof(*first));
    first[0] = 0;
}

static void refine(ap_placement_state_t *state, const int *unit_of, int units, double limit)
{
    size_t count = (size_t)state->groups->count, unit_count = (size_t)units;
    xm_arena_t *arena = state->arena;
    int *first = xm_arena_get(arena, unit_count + 1, sizeof(int));
    int *members = xm_arena_get(arena, count, sizeof(int));
    int *kept = xm_arena_get(arena, count, sizeof(int));
    pass_t pass = {.state = state,
                   .first = first,
                   .members = members,
                   .unit_of = unit_of,
                   .units = units,
                   .limit = limit,
                   .held = xm_arena_get(arena, (size_t)state->devices, sizeof(double)),
                   .gain = xm_arena_get(arena, unit_count, sizeof(double)),
                   .target = xm_arena_get(arena, unit_count, sizeof(int)),
                   .locked = xm_arena_get(arena, unit_count, sizeof(bool))};

    if (arena->failed) {
        return;
    }
    list_members(state->groups->count, unit_of, units, first, members);
    for (int i = 0; i < MOST_PASSES && state->tries < state->budget; ++i) {
        count_held(&pass);
        if (!run_pass(&pass, kept)) {
            break;
        }
    }
}

/* Where partitioning starts: units in the order of the graph, cut into even parts. */
static void cut_in_order(const ap_placement_state_t *state, const int *order, int *device_of)
{
    const ap_placement_groups_t *groups = state->groups;
    int accelerators = state->problem->accelerators;
    double all = 0.0, sum = 0.0;

    for (int group = 0; group < groups->count; ++group) {
        all += isinf(groups->accelerator[group]) ? 0.0 : groups->accelerator[group];
    }
    for (int i = 0; i < groups->count; ++i) {
        int group = order[i];

        if (isinf(groups->accelerator[group]) || accelerators == 0) {
            device_of[group] = accelerators;
            continue;
        }
        device_of[group] = all > 0.0 ? (int)(sum / all * accelerators) : 0;
        device_of[group] = device_of[group] < accelerators ? device_of[group] : accelerators - 1;
        sum += groups->accelerator[group];
    }
}

/* Partitions from one start, with each slack. */
static void part_from(ap_placement_state_t *state, const int *start, const int *cluster_of,
                      int clusters, const int *single, double share)
{
    for (size_t i = 0; i < sizeof(slacks) / sizeof(slacks[0]); ++i) {
        ap_placement_value_t value = ap_placement_score(state, start);

        (void)ap_placement_keep(state, &value);
        refine(state, cluster_of, clusters, share * (1.0 + slacks[i]));
        refine(state, single, state->groups->count, share * (1.0 + slacks[i]));
        value = ap_placement_score(state, state->device_of);
        (void)ap_placement_keep(state, &value);
    }
}

void ap_placement_part(ap_placement_state_t *state)
{
    const ap_placement_groups_t *groups = state->groups;
    size_t count = (size_t)groups->count;
    int *cluster_of = xm_arena_get(state->arena, count, sizeof(int));
    int *first = xm_arena_get(state->arena, count, sizeof(int));
    int *single = xm_arena_get(state->arena, count, sizeof(int));
    int *order = xm_arena_get(state->arena, count, sizeof(int));
    int *start = xm_arena_get(state->arena, count, sizeof(int));
    int clusters = ap_placement_coarsen(state, CLUSTERS_PER_DEVICE * state->devices, cluster_of);
    double share = 0.0;

    if (state->arena->failed) {
        return;
    }
    for (int group = groups->count - 1; group >= 0; --group) {
        share += weight_of(groups, group) / state->devices;
        single[group] = group;
        first[cluster_of[group]] = group;
    }
    for (int deep = 0; deep < 2; ++deep) {
        int placed;

        if (ap_precedence_order(groups->count, groups->order, groups->order_count, deep != 0, order,
                                &placed) != XM_OK) {
            state->arena->failed = true;
            return;
        }
        cut_in_order(state, order, start);
        part_from(state, start, cluster_of, clusters, single, share);
        /* Once more with each cluster in one piece, which the cut does not respect. */
        for (int group = 0; group < groups->count; ++group) {
            start[group] = start[first[cluster_of[group]]];
        }
        part_from(state, start, cluster_of, clusters, single, share);
    }
}
