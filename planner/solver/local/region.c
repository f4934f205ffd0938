/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large-neighbourhood moves: the best values of up to 128 variables while all others keep theirs. A
 * local search that moves one variable at a time is stuck at once, because tensors that a table
 * ties together must change together; here a table-based elimination finds the region's exact
 * optimum at given prices, and a few Polyak steps on prices for just this region deal with the
 * limit.
 *
 * All memory of a call comes from the elimination's pool, since thousands of regions are tried each
 * second and each needs hundreds of small arrays.
 */

#include "planner/solver/local/region.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver/network.h"
#include "planner/solver/local/local_private.h"

/* What the set-up of a region takes, each of its variables, a solution of it, and each cell that
 * this looks at, in nanoseconds of a usual core: on 3,350 regions of seven problems, nine of ten
 * took 0.6 to 1.5 times as long. Where this counts too much, searches get less than their share,
 * and problems with wide gaps end at worse solutions. */
enum { SET_UP = 1000, SET_UP_EACH = 800, SOLVE = 1500 };
static const double cell_time = 0.65;

/* A region object serves one searcher for all its regions. */
xm_status_t ap_cfn_region_create(const ap_cfn_core_t *core, ap_cfn_region_t **region)
{
    ap_cfn_region_t *made = calloc(1, sizeof(*made));
    xm_status_t status;

    if (made == NULL) {
        return XM_NO_MEMORY("a search");
    }
    made->core = core;
    status = ap_elimination_create(core, &made->elimination);
    if (status != XM_OK) {
        ap_cfn_region_destroy(made);
        return status;
    }
    *region = made;
    return XM_OK;
}

/* Adds what a link costs with the value of its fixed end to the other end's costs. A forbidden cell
 * costs a large but finite number: regions may start from a state that breaks something, and must
 * be able to compare how much. */
static void condition(ap_cfn_region_t *self, const ap_cfn_state_t *state, const ap_cfn_link_t *link,
                      int v)
{
    int id = self->elimination->id[v], other = ap_cfn_other(link, id);
    size_t width = (size_t)self->core->variable[link->b].size, there = (size_t)state->value[other];
    double *unary = self->unary + self->elimination->at[v];

    for (size_t x = 0; x < (size_t)self->elimination->size[v]; ++x) {
        double cost = link->table[link->a == id ? x * width + there : there * width + x];

        unary[x] += cost < HUGE_VAL ? cost : state->forbidden;
    }
}

/* What the values cost by themselves, with links to variables that keep their values. */
static void find_unary(ap_cfn_region_t *self, const ap_cfn_state_t *state)
{
    const ap_elimination_t *e = self->elimination;

    for (int v = 0; v < e->count; ++v) {
        const ap_cfn_variable_t *variable = ap_region_variable(self, v);

        memcpy(self->unary + e->at[v], variable->cost, (size_t)variable->size * sizeof(double));
        for (int k = 0; k < variable->degree; ++k) {
            const ap_cfn_link_t *link = &self->core->link[variable->link[k]];
            int other = e->local[ap_cfn_other(link, e->id[v])];

            if (other < 0 || e->position[other] < 0) {
                condition(self, state, link, v);
            }
        }
    }
}

/* Adds what is not a real cost to the values: noise, which makes searches from the same assignment
 * differ, and a part of the price of usage, which makes the region leave room that others can use.
 * Both are kept in `extra`, so that cost_of() counts them on both sides of a comparison. */
static void add_extra(ap_cfn_region_t *self, const ap_cfn_region_params_t *params)
{
    const ap_elimination_t *e = self->elimination;

    for (size_t k = 0; k < e->at[e->count]; ++k) {
        self->extra[k] =
            params->noise > 0.0 ? params->noise * ap_cfn_random_unit(params->random) : 0.0;
    }
    for (int v = 0; v < e->count; ++v) {
        const ap_cfn_variable_t *variable = ap_region_variable(self, v);
        double *extra = self->extra + e->at[v];

        for (int k = 0; k < variable->segments && params->worth > 0.0; ++k) {
            const ap_cfn_segment_t *segment = &variable->segment[k];

            ap_cfn_charge(segment, variable->size,
                          params->worth *
                              (params->price_sums[segment->to] - params->price_sums[segment->from]),
                          extra);
        }
    }
    for (size_t k = 0; k < e->at[e->count]; ++k) {
        self->unary[k] += self->extra[k];
    }
}

/* Lays the region out. Variables that would make a table too large keep their values, so every
 * region has an answer; it is the optimum for the variables that are left. */
static bool set_up(ap_cfn_region_t *self, const ap_cfn_state_t *state, const int *variables,
                   int count, const ap_cfn_region_params_t *params)
{
    const ap_elimination_params_t plan = {.variables = variables,
                                          .count = count,
                                          .cells = (double)params->cells,
                                          .fix = true,
                                          .forbidden = state->forbidden};
    bool extra = params->noise > 0.0 || params->worth > 0.0;
    ap_elimination_t *e = self->elimination;
    size_t bytes;

    if (ap_elimination_plan(e, &plan) != XM_OK) {
        return false;
    }
    bytes = e->at[count] * sizeof(double);
    self->unary = xm_arena_take(&e->pool, bytes);
    self->priced = xm_arena_take(&e->pool, bytes);
    self->extra = extra ? xm_arena_take(&e->pool, bytes) : NULL;
    if (e->pool.failed) {
        return false;
    }
    for (int v = 0; v < count; ++v) {
        self->current[v] = state->value[variables[v]];
    }
    find_unary(self, state);
    if (extra) {
        add_extra(self, params);
    }
    return ap_region_find_intervals(self, state);
}

/* The cost of the region's links and values, all else being as it is. A link inside the region
 * counts once, at its end with the lower number. Forbidden cells count as a large number, so that a
 * state with fewer of them is better. */
static double cost_of(const ap_cfn_region_t *self, const ap_cfn_state_t *state, const int *value)
{
    double cost = 0.0;

    for (int v = 0; v < self->elimination->count; ++v) {
        const ap_cfn_variable_t *variable = ap_region_variable(self, v);

        cost += variable->cost[value[v]];
        if (self->extra != NULL) {
            cost += self->extra[self->elimination->at[v] + (size_t)value[v]];
        }
        for (int k = 0; k < variable->degree; ++k) {
            const ap_cfn_link_t *link = &self->core->link[variable->link[k]];
            int other = ap_cfn_other(link, self->elimination->id[v]);
            int there = self->elimination->local[other];
            int theirs = there >= 0 ? value[there] : state->value[other];
            int a = link->a == other ? theirs : value[v], b = link->a == other ? value[v] : theirs;
            double cell = ap_cfn_cell(self->core, link, a, b);

            if (there < 0 || there > v) {
                cost += cell < HUGE_VAL ? cell : state->forbidden;
            }
        }
    }
    return cost;
}

/* Sets the prices of the intervals to begin with: the shared dual's prices of their times.
 * ap_region_find_intervals() left the times in `price` and `used`. */
static void first_prices(ap_cfn_region_t *self, const ap_cfn_region_params_t *params)
{
    for (int j = 0; j < self->intervals; ++j) {
        int from = (int)self->price[j], to = (int)self->used[j];

        self->price[j] = params->price_factor * (params->price_sums[to] - params->price_sums[from]);
    }
}

/* Moves the prices by the violation, as far as the distance between the bound and the cost to be
 * beaten says (Polyak's step). False when there is nothing to move: no interval is exceeded, and
 * none has a price. */
static bool move_prices(ap_cfn_region_t *self, double distance, double factor)
{
    double length = 0.0;

    for (int j = 0; j < self->intervals; ++j) {
        double slope = self->used[j] - self->room[j];

        if (self->price[j] > 0.0 || slope > 0.0) {
            length += slope * slope;
        }
    }
    if (!(length > 0.0)) {
        return false;
    }
    for (int j = 0; j < self->intervals; ++j) {
        double price =
            self->price[j] + factor * distance / length * (self->used[j] - self->room[j]);

        self->price[j] = price > 0.0 ? price : 0.0;
    }
    return true;
}

/* Looks for something better than (excess, cost); leaves the best in `best`. Each step solves
 * the region at the present prices. The minimum less what the prices pay for the room is a lower
 * bound by weak duality, so the loop ends when it reaches the best cost. Fixed variables' costs
 * are not in the bound, which therefore ends the loop later where there are some. */
static bool search(ap_cfn_region_t *self, const ap_cfn_state_t *state,
                   const ap_cfn_region_params_t *params, double *excess, double *cost, bool *better)
{
    double factor = 1.0, target = *cost, bound_best = -HUGE_VAL;
    bool found = false;
    int stale = 0;

    for (int step = 0; step < params->steps && !ap_cfn_shared_is_over(params->shared); ++step) {
        double bound, new_excess, new_cost;

        ap_region_price(self);
        /* Fixed variables keep their values; all others are overwritten. */
        memcpy(self->value, self->current, (size_t)self->elimination->count * sizeof(int));
        bound = ap_elimination_solve(self->elimination, self->priced, self->value);
        ap_cfn_shared_spend(params->shared, SOLVE + cell_time * self->elimination->work);
        for (int j = 0; j < self->intervals; ++j) {
            bound -= self->price[j] * self->room[j];
        }
        /* The assignment at these prices is a candidate, whatever the bound says; it is compared
         * by its true costs. */
        new_excess = ap_region_use(self, self->value);
        new_cost = cost_of(self, state, self->value);
        /* Equal ones are taken as well: a different assignment of the same cost leads the search
         * elsewhere. */
        if (new_excess < *excess || (new_excess == *excess && new_cost <= *cost)) {
            *better = *better || new_excess < *excess || new_cost < *cost;
            *excess = new_excess;
            *cost = new_cost;
            memcpy(self->best, self->value, (size_t)self->elimination->count * sizeof(int));
            found = true;
        }
        /* Nothing can be exceeded, so the first solve is the optimum. */
        if (self->intervals == 0) {
            break;
        }
        if (*excess == 0.0) {
            target = *cost < target ? *cost : target;
            if (bound >= target - 0.5) {
                break; /* costs are integers: nothing better is here */
            }
        } else {
            /* Nothing fits yet, so there is no cost to aim at. A little above the bound is a usual
             * guess for Polyak's step. */
            target = fabs(bound) * 1.05 > target ? bound + fabs(bound) * 0.05 : target;
        }
        /* Three steps without a better bound mean that the steps are too long. */
        if (bound > bound_best) {
            bound_best = bound;
            stale = 0;
        } else if (++stale >= 3) {
            factor *= 0.5;
            stale = 0;
        }
        if (!move_prices(self, target - bound, factor)) {
            break;
        }
    }
    return found;
}

/* Improves a state in place. The state is changed only by what search() found to be no worse, so a
 * call that runs out of time does no harm. */
xm_status_t ap_cfn_region_improve(ap_cfn_region_t *self, ap_cfn_state_t *state,
                                  const ap_cfn_region_params_t *params, const int *variables,
                                  int count, bool *changed, bool *better)
{
    double excess, cost;

    *changed = *better = false;
    if (!set_up(self, state, variables, count, params)) {
        return XM_NO_MEMORY("the tables of %d variables", count);
    }
    ap_cfn_shared_spend(params->shared, SET_UP + (double)count * SET_UP_EACH);
    first_prices(self, params);
    /* What the region is now is what must be beaten. */
    excess = ap_region_use(self, self->current);
    cost = cost_of(self, state, self->current);
    if (search(self, state, params, &excess, &cost, better)) {
        *changed = memcmp(self->best, self->current, (size_t)count * sizeof(int)) != 0;
        ap_cfn_state_assign(state, variables, self->best, count);
    }
    return XM_OK;
}

void ap_cfn_region_destroy(ap_cfn_region_t *region)
{
    if (region == NULL) {
        return;
    }
    ap_elimination_destroy(region->elimination);
    free(region);
}
