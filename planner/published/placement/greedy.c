/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placements by size, which look at no edge: the longest processing time first (Graham, "Bounds on
 * multiprocessing timing anomalies", 1969), which FTPipe merges blocks by and which tables of
 * embeddings are dealt by; and Karmarkar's and Karp's differencing ("The differencing method of set
 * partitioning", 1982), which Neo deals them by. Where edges cost something, longest first takes
 * the device on which the group costs least with its transfers.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/published/placement/state.h"

typedef struct sized {
    double time;
    int group;
} sized_t;

static int by_time(const void *a, const void *b)
{
    const sized_t *left = a, *right = b;

    XM_ORDER_BY(right->time, left->time);
    return left->group - right->group;
}

/* Groups that accelerators can run, the longest first. */
static int sort_by_time(ap_placement_state_t *state, sized_t *sorted)
{
    int count = 0;

    for (int group = 0; group < state->groups->count; ++group) {
        if (!isinf(state->groups->accelerator[group]) && state->problem->accelerators > 0) {
            sorted[count++] = (sized_t){state->groups->accelerator[group], group};
        }
    }
    qsort(sorted, (size_t)count, sizeof(*sorted), by_time);
    return count;
}

void ap_placement_lpt(ap_placement_state_t *state)
{
    sized_t *sorted = xm_arena_get(state->arena, (size_t)state->groups->count, sizeof(*sorted));
    ap_placement_value_t value;
    int count;

    if (sorted == NULL) {
        return;
    }
    count = sort_by_time(state, sorted);
    (void)ap_placement_score(state, state->best);
    for (int i = 0; i < count; ++i) {
        int best_device = state->device_of[sorted[i].group];
        ap_placement_value_t best = ap_placement_value(state);

        for (int device = 0; device < state->problem->accelerators; ++device) {
            ap_placement_move(state, sorted[i].group, device);
            value = ap_placement_value(state);
            if (ap_placement_is_better(&value, &best)) {
                best = value;
                best_device = device;
            }
        }
        ap_placement_move(state, sorted[i].group, best_device);
    }
    value = ap_placement_score(state, state->device_of);
    (void)ap_placement_keep(state, &value);
    ap_placement_polish(state);
}

/* Sets of groups, one for each device, the fullest first: its time, and its first and last group in
 * a list. */
typedef struct bin {
    double time;
    int first, last;
} bin_t;

static int by_bin(const void *a, const void *b)
{
    const bin_t *left = a, *right = b;

    XM_ORDER_BY(right->time, left->time);
    return left->first - right->first;
}

/* The fullest set of one joins the emptiest of the other, and so on: what is left to be evened out
 * is the differences. */
static void difference(bin_t *into, const bin_t *from, int devices, int *next)
{
    for (int i = 0; i < devices; ++i) {
        bin_t *mine = &into[i];
        const bin_t *theirs = &from[devices - 1 - i];

        if (theirs->first >= 0) {
            mine->time += theirs->time;
            if (mine->first >= 0) {
                next[mine->last] = theirs->first;
            } else {
                mine->first = theirs->first;
            }
            mine->last = theirs->last;
        }
    }
    qsort(into, (size_t)devices, sizeof(*into), by_bin);
}

static double spread(const bin_t *bins, int devices)
{
    return bins[0].time - bins[devices - 1].time;
}

/* Always joins the two lists of sets whose spread is largest. A scan finds them: groups are
 * hundreds. */
void ap_placement_karmarkar(ap_placement_state_t *state)
{
    int devices = state->problem->accelerators, *next, *device_of, count;
    size_t groups = (size_t)state->groups->count;
    sized_t *sorted = xm_arena_get(state->arena, groups, sizeof(*sorted));
    bin_t *bins = xm_arena_get(state->arena, groups * (size_t)devices, sizeof(*bins));
    ap_placement_value_t value;

    next = xm_arena_get(state->arena, groups, sizeof(*next));
    device_of = xm_arena_get(state->arena, groups, sizeof(*device_of));
    if (state->arena->failed || devices == 0) {
        return;
    }
    count = sort_by_time(state, sorted);
    for (int i = 0; i < count; ++i) {
        for (int device = 0; device < devices; ++device) {
            bins[i * devices + device] = (bin_t){0.0, -1, -1};
        }
        bins[i * devices] = (bin_t){sorted[i].time, sorted[i].group, sorted[i].group};
        next[sorted[i].group] = -1;
    }
    for (int left = count; left > 1; --left) {
        int one = 0, two = -1;

        for (int i = 1; i < left; ++i) {
            double wide = spread(&bins[i * devices], devices);

            if (wide > spread(&bins[one * devices], devices)) {
                two = one;
                one = i;
            } else if (two < 0 || wide > spread(&bins[two * devices], devices)) {
                two = i;
            }
        }
        difference(&bins[one * devices], &bins[two * devices], devices, next);
        memmove(&bins[two * devices], &bins[(left - 1) * devices], (size_t)devices * sizeof(*bins));
    }
    memcpy(device_of, state->best, groups * sizeof(*device_of));
    for (int device = 0; device < devices && count > 0; ++device) {
        for (int group = bins[device].first; group >= 0; group = next[group]) {
            device_of[group] = device;
        }
    }
    value = ap_placement_score(state, device_of);
    (void)ap_placement_keep(state, &value);
    ap_placement_polish(state);
}
