/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Local search: descends by the best move of one group, then moves a few groups at random and
 * descends again. The number of moves is the budget, not time, so a seed gives the same answer on
 * every machine.
 */

#include <string.h>

#include "planner/published/placement/state.h"

/* How many kicks may be in vain before it ends, and how many groups are moved at a time. */
enum { MOST_VAIN = 400, LEAST_KICK = 2, MOST_KICK = 6 };

static void kick(ap_placement_state_t *state)
{
    int moves = LEAST_KICK + (int)xm_random_below(&state->random, MOST_KICK - LEAST_KICK + 1);

    for (int i = 0; i < moves; ++i) {
        int group = (int)xm_random_below(&state->random, (uint64_t)state->groups->count);
        int device = (int)xm_random_below(&state->random, (uint64_t)state->devices);

        if (ap_placement_can_be_on(state, group, device)) {
            state->device_of[group] = device;
        }
    }
}

/* Goes back unless a kick and what follows led somewhere as good. On a chain a single layer has few
 * places to go to, and other searches do better. */
void ap_placement_local(ap_placement_state_t *state)
{
    size_t bytes = (size_t)state->groups->count * sizeof(*state->best);
    ap_placement_value_t value;
    int vain = 0;

    if (state->problem->chain) {
        return;
    }
    memcpy(state->device_of, state->best, bytes);
    value = ap_placement_descend(state);
    (void)ap_placement_keep(state, &value);
    while (state->tries < state->budget && vain < MOST_VAIN) {
        kick(state);
        value = ap_placement_descend(state);
        vain = ap_placement_keep(state, &value) ? 0 : vain + 1;
        if (vain > 0 && ap_placement_is_better(&state->best_value, &value)) {
            memcpy(state->device_of, state->best, bytes);
        }
    }
}
