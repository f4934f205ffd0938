/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Branch and bound over the devices of clusters, as Pesto solves its integer programme after
 * coarsening (Hafeez and others, "Towards optimal placement and scheduling of DNN operations with
 * Pesto", Middleware'21). Loads only grow as clusters are placed, so the largest so far is a bound;
 * the mean of what is left is another. Devices that are still empty are alike, and one of them is
 * enough. What it ends with is improved group by group.
 */

#include <math.h>
#include <string.h>

#include "planner/published/placement/state.h"

enum { MOST_CLUSTERS = 16 };

typedef struct search {
    ap_placement_state_t *state;
    const int *cluster_of;
    int clusters;
    int *device_of;     /* [cluster] */
    double *time;       /* [cluster] on an accelerator */
    const double *left; /* [cluster]: least time of it and of those after it */
} search_t;

/* No placement that goes on from here has a smaller largest load. */
static double bound(const search_t *search, int placed)
{
    const ap_placement_state_t *state = search->state;
    double largest = 0.0, sum = 0.0;

    for (int device = 0; device < state->devices; ++device) {
        largest = fmax(largest, state->times[device]);
        sum += state->times[device];
    }
    return fmax(largest, (sum + search->left[placed]) / state->devices);
}

/* Loads of the clusters that are placed so far. */
static void count_loads(const search_t *search, int placed)
{
    ap_placement_state_t *state = search->state;
    const ap_placement_groups_t *groups = state->groups;

    memset(state->times, 0, (size_t)state->devices * sizeof(*state->times));
    memset(state->sizes, 0, (size_t)state->devices * sizeof(*state->sizes));
    for (int group = 0; group < groups->count; ++group) {
        if (search->cluster_of[group] < placed) {
            int device = search->device_of[search->cluster_of[group]];
            bool cpu = device >= state->problem->accelerators;

            state->device_of[group] = device;
            state->times[device] += cpu ? groups->cpu[group] : groups->accelerator[group];
            state->sizes[device] += groups->size[group];
        }
    }
    for (int i = 0; i < groups->source_count; ++i) {
        const ap_group_source_t *source = &groups->sources[i];
        uint64_t paid = 0;

        for (int j = 0; j < source->count && search->cluster_of[source->group] < placed; ++j) {
            int taker = groups->takers[source->first + j];

            if (search->cluster_of[taker] < placed) {
                int home = state->device_of[source->group], away = state->device_of[taker];
                const int ends[] = {home, away};

                for (int end = 0; end < 2 && home != away; ++end) {
                    if (ends[end] < state->problem->accelerators &&
                        (paid & (UINT64_C(1) << (ends[end] & 63))) == 0) {
                        paid |= UINT64_C(1) << (ends[end] & 63);
                        state->times[ends[end]] += source->transfer;
                    }
                }
            }
        }
    }
}

static void place(search_t *search, int cluster, int used)
{
    ap_placement_state_t *state = search->state;
    int accelerators = state->problem->accelerators;

    if (cluster == search->clusters) {
        ap_placement_value_t value;

        value = ap_placement_score(state, state->device_of);
        (void)ap_placement_keep(state, &value);
        return;
    }
    for (int device = 0; device < state->devices && state->tries < state->budget; ++device) {
        bool cpu = device >= accelerators;

        if (!cpu && (device > used || isinf(search->time[cluster]))) {
            continue;
        }
        search->device_of[cluster] = device;
        count_loads(search, cluster + 1);
        state->tries += state->groups->count / 8;
        if (bound(search, cluster + 1) < state->best_value.largest ||
            state->best_value.excess > 0.0) {
            place(search, cluster + 1, !cpu && device == used ? used + 1 : used);
        }
    }
}

void ap_placement_branch(ap_placement_state_t *state)
{
    size_t count = (size_t)state->groups->count;
    double left[MOST_CLUSTERS + 1] = {0.0}, time[MOST_CLUSTERS] = {0.0};
    double least[MOST_CLUSTERS] = {0.0};
    int device_of[MOST_CLUSTERS], *cluster_of = xm_arena_get(state->arena, count, sizeof(int));
    search_t search = {state, cluster_of, 0, device_of, time, left};

    /* Clusters that cannot be joined to so few are left to the local search. */
    if (state->arena->failed || state->devices > 63) {
        return;
    }
    search.clusters = ap_placement_coarsen(state, MOST_CLUSTERS, cluster_of);
    if (search.clusters > 0 && search.clusters <= MOST_CLUSTERS) {
        for (size_t group = 0; group < count; ++group) {
            double on = state->groups->accelerator[group], off = state->groups->cpu[group];

            time[cluster_of[group]] += on;
            least[cluster_of[group]] += state->problem->cpus > 0 ? fmin(on, off) : on;
        }
        for (int cluster = search.clusters - 1; cluster >= 0; --cluster) {
            left[cluster] = left[cluster + 1] + least[cluster];
        }
        place(&search, 0, 0);
    }
    ap_placement_polish(state);
}
