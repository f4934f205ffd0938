/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Searches over placements, by what published planners search with. All move the same groups, see
 * the same loads and count the same budget; what differs is how they propose. Each starts from
 * multilevel partitioning, which needs no search, and so is never worse than that; what it ends
 * with is improved group by group.
 */

#include <math.h>
#include <string.h>

#include "planner/published/placement/state.h"

static ap_placement_search_fn *const searches[] = {
    [AP_PLACEMENT_LOCAL] = ap_placement_local,
    [AP_PLACEMENT_PART] = ap_placement_polish,
    [AP_PLACEMENT_LPT] = ap_placement_lpt,
    [AP_PLACEMENT_KARMARKAR] = ap_placement_karmarkar,
    [AP_PLACEMENT_BRANCH] = ap_placement_branch,
    [AP_PLACEMENT_POLICY] = ap_placement_policy,
    [AP_PLACEMENT_STEPWISE] = ap_placement_stepwise,
    [AP_PLACEMENT_BRKGA] = ap_placement_brkga,
};

/* The placement to be improved: the caller's, or what partitioning makes of all on one device. What
 * it takes is not of the search's budget. */
static void begin(ap_placement_state_t *state, const ap_placement_t *start)
{
    const ap_placement_groups_t *groups = state->groups;
    ap_placement_value_t value;

    for (int i = 0; i < state->problem->node_count && start != NULL; ++i) {
        state->best[groups->group_of[i]] = start->device_of[i];
    }
    for (int group = 0; group < groups->count && start == NULL; ++group) {
        state->best[group] = isinf(groups->accelerator[group]) ? state->problem->accelerators : 0;
    }
    value = ap_placement_score(state, state->best);
    memcpy(state->best, state->device_of, (size_t)groups->count * sizeof(*state->best));
    state->best_value = value;
    if (start == NULL) {
        ap_placement_part(state);
        ap_placement_polish(state);
    }
    state->tries = 0;
}

static xm_status_t search_groups(ap_placement_groups_t *groups, const ap_placement_query_t *query,
                                 const ap_placement_problem_t *problem, ap_placement_t *found)
{
    size_t count = (size_t)groups->count, devices = (size_t)found->devices;
    xm_arena_t *arena = &groups->arena;
    ap_placement_state_t state = {.problem = problem,
                                  .groups = groups,
                                  .devices = found->devices,
                                  .random = {query->seed},
                                  .budget = query->budget,
                                  .arena = arena};

    state.best = xm_arena_get(arena, count, sizeof(int));
    state.device_of = xm_arena_get(arena, count, sizeof(int));
    state.takers = xm_arena_get(arena, (size_t)groups->source_count * devices, sizeof(int));
    state.times = xm_arena_get(arena, devices, sizeof(double));
    state.sizes = xm_arena_get(arena, devices, sizeof(double));
    if (!arena->failed) {
        begin(&state, query->start);
        searches[query->kind](&state);
    }
    XM_NEED_MEMORY(!arena->failed, "%zu groups", count);
    if (state.best_value.excess > 0.0) {
        return XM_NO_SOLUTION("no placement was found that fits %d devices with %g of memory each",
                              problem->accelerators, problem->memory);
    }
    return ap_placement_finish(problem, groups, state.best, found);
}

xm_status_t ap_placement_search(const ap_placement_problem_t *problem,
                                const ap_placement_query_t *query, ap_placement_t *placement)
{
    ap_placement_groups_t groups;
    ap_placement_t found = {0};
    xm_status_t status;

    XM_TRY(ap_placement_groups_create(problem, false, &groups));
    status = ap_placement_init(problem, &found);
    XM_THEN(status, search_groups(&groups, query, problem, &found));
    ap_placement_groups_clear(&groups);
    if (status != XM_OK) {
        ap_placement_clear(&found);
        return status;
    }
    *placement = found;
    return XM_OK;
}

const char *ap_placement_search_name(ap_placement_kind_t kind)
{
    static const char *const names[] = {
        [AP_PLACEMENT_LOCAL] = "local search",
        [AP_PLACEMENT_PART] = "multilevel partitioning",
        [AP_PLACEMENT_LPT] = "longest first",
        [AP_PLACEMENT_KARMARKAR] = "Karmarkar-Karp",
        [AP_PLACEMENT_BRANCH] = "branch and bound of clusters",
        [AP_PLACEMENT_POLICY] = "policy gradient",
        [AP_PLACEMENT_STEPWISE] = "one operator a step",
        [AP_PLACEMENT_BRKGA] = "BRKGA",
    };

    return names[kind];
}
