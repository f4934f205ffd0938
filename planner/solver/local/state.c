/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An assignment with its cost and slack kept up to date. A step of the search changes a few
 * variables of many, so both are changed by differences: a variable costs its links and, per
 * segment, O(log times). Cells that forbid count as a large finite cost, because infinity less
 * infinity would leave the sum undefined.
 */

#include "planner/solver/local/state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double cell(const ap_cfn_state_t *state, int link)
{
    const ap_cfn_link_t *l = &state->core->link[link];
    double cost = ap_cfn_cell(state->core, l, state->value[l->a], state->value[l->b]);

    return cost < HUGE_VAL ? cost : state->forbidden;
}

/* Computes everything once from the values; the loads start at 0 and end as slacks. */
xm_status_t ap_cfn_state_create(const ap_cfn_core_t *core, const int *value, double forbidden,
                                ap_cfn_state_t *state)
{
    double *load;
    xm_status_t status = XM_OK;

    *state = (ap_cfn_state_t){.core = core, .cost = core->constant, .forbidden = forbidden};
    load = xm_arena_take(&state->arena, ((size_t)core->times + 1) * sizeof(*load));
    state->value = xm_arena_take(&state->arena, (size_t)core->variables * sizeof(int));
    if (state->arena.failed) {
        return XM_NO_MEMORY("%d values", core->variables);
    }
    memcpy(state->value, value, (size_t)core->variables * sizeof(int));
    for (int v = 0; v < core->variables; ++v) {
        state->cost += core->variable[v].cost[value[v]];
    }
    for (int k = 0; k < core->links; ++k) {
        state->cost += cell(state, k);
    }
    ap_cfn_core_loads(core, value, load);
    for (int t = 0; t < core->times; ++t) {
        /* Slack may be negative: the search may start from what does not fit, and repairs it. */
        load[t] = core->capacity[t] - load[t];
    }
    if (core->times > 0) {
        status = ap_cfn_slack_create(core->times, load, &state->arena, &state->slack);
    }
    return status;
}

/* Moves one variable. The links' old cells go before the value changes and the new ones come after
 * it, so several variables may be moved one after the other although links join them. */
static void assign_one(ap_cfn_state_t *state, int v, int value)
{
    const ap_cfn_variable_t *variable = &state->core->variable[v];
    int old = state->value[v];

    if (old == value) {
        return;
    }
    for (int k = 0; k < variable->degree; ++k) {
        state->cost -= cell(state, variable->link[k]);
    }
    state->cost += variable->cost[value] - variable->cost[old];
    state->value[v] = value;
    for (int k = 0; k < variable->degree; ++k) {
        state->cost += cell(state, variable->link[k]);
    }
    for (int k = 0; k < variable->segments; ++k) {
        const ap_cfn_segment_t *segment = &variable->segment[k];

        /* Values of equal usage leave the slack alone. */
        if (segment->usage[old] != segment->usage[value]) {
            ap_cfn_slack_add(&state->slack, segment->from, segment->to,
                             segment->usage[old] - segment->usage[value]);
        }
    }
}

void ap_cfn_state_assign(ap_cfn_state_t *state, const int *variable, const int *value, int count)
{
    for (int k = 0; k < count; ++k) {
        assign_one(state, variable[k], value[k]);
    }
}

/* The tree's root has the minimum of all times. Without times there is nothing to exceed. */
double ap_cfn_state_least_slack(const ap_cfn_state_t *state)
{
    return state->core->times > 0 ? state->slack.least[1] : HUGE_VAL;
}

/* The cost of a forbidden cell is so large that half of it cannot be reached without one. */
bool ap_cfn_state_is_solution(const ap_cfn_state_t *state)
{
    return ap_cfn_state_least_slack(state) >= 0.0 && state->cost < state->forbidden / 2.0;
}

void ap_cfn_state_destroy(ap_cfn_state_t *state)
{
    xm_arena_clear(&state->arena);
}
