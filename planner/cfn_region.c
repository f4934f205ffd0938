#include "planner/cfn_region.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cfn_random.h"
#include "planner/cfn_region_private.h"

enum { POOL_START = 1 << 22 };

void *ap_region_take(ap_cfn_region_t *self, size_t bytes)
{
    size_t at = self->pool.used;

    bytes = (bytes + 63) / 64 * 64;
    self->pool.used += bytes;
    return self->pool.used <= self->pool.size ? self->pool.base + at : NULL;
}

xm_status_t ap_cfn_region_create(const ap_cfn_core_t *core, ap_cfn_region_t **region)
{
    ap_cfn_region_t *made = calloc(1, sizeof(*made));

    if (made == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a search");
    }
    made->core = core;
    made->largest = 1;
    for (int v = 0; v < core->variables; ++v) {
        made->largest =
            core->variable[v].size > made->largest ? core->variable[v].size : made->largest;
    }
    made->local = malloc(((size_t)core->variables + 1) * sizeof(int));
    made->sum = malloc((size_t)made->largest * sizeof(double));
    made->ids = malloc(AP_CFN_REGION_MAX * sizeof(int));
    made->pool.size = POOL_START;
    made->pool.base = aligned_alloc(64, POOL_START);
    if (made->local == NULL || made->sum == NULL || made->ids == NULL || made->pool.base == NULL) {
        ap_cfn_region_destroy(made);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a search among %d variables",
                            core->variables);
    }
    for (int v = 0; v < core->variables; ++v) {
        made->local[v] = -1;
    }
    *region = made;
    return XM_OK;
}

static void add_extra(ap_cfn_region_t *self, const ap_cfn_region_params_t *params)
{
    for (int v = 0; v < self->count && self->variable[v].extra != NULL; ++v) {
        const ap_cfn_variable_t *variable = &self->core->variable[self->variable[v].id];
        double *extra = self->variable[v].extra;

        for (int x = 0; x < variable->size; ++x) {
            extra[x] =
                params->noise > 0.0 ? params->noise * ap_cfn_random_unit(params->random) : 0.0;
        }
        for (int k = 0; k < variable->segments && params->worth > 0.0; ++k) {
            const ap_cfn_segment_t *segment = &variable->segment[k];
            double price = params->worth *
                           (params->price_sums[segment->to] - params->price_sums[segment->from]);

            for (int x = 0; x < variable->size && price > 0.0; ++x) {
                extra[x] += price * segment->usage[x];
            }
        }
        for (int x = 0; x < variable->size; ++x) {
            self->variable[v].unary[x] += extra[x];
        }
    }
}

/* Lays the region out in the pool. False when that is too small. */
static bool set_up(ap_cfn_region_t *self, const ap_cfn_state_t *state, const int *variables,
                   int count, const ap_cfn_region_params_t *params)
{
    bool extra = params->noise > 0.0 || params->worth > 0.0;

    self->pool.used = 0;
    self->count = count;
    for (int v = 0; v < count; ++v) {
        ap_region_variable_t *variable = &self->variable[v];
        size_t bytes = (size_t)self->core->variable[variables[v]].size * sizeof(double);

        variable->id = variables[v];
        variable->size = self->core->variable[variables[v]].size;
        variable->unary = ap_region_take(self, bytes);
        variable->priced = ap_region_take(self, bytes);
        variable->extra = extra ? ap_region_take(self, bytes) : NULL;
        self->current[v] = state->value[variables[v]];
        if (variable->priced == NULL || (extra && variable->extra == NULL)) {
            return false;
        }
    }
    if (!ap_region_plan(self, state, params->cells)) {
        return false;
    }
    add_extra(self, params);
    return ap_region_find_intervals(self, state);
}

static bool enlarge_pool(ap_cfn_region_t *self)
{
    char *larger = aligned_alloc(64, 2 * self->pool.size);

    if (larger == NULL) {
        return false;
    }
    free(self->pool.base);
    self->pool.base = larger;
    self->pool.size *= 2;
    return true;
}

/* Cost of the region's links and values, all else being as it is. */
static double cost_of(const ap_cfn_region_t *self, const ap_cfn_state_t *state, const int *value)
{
    double cost = 0.0;

    for (int v = 0; v < self->count; ++v) {
        const ap_cfn_variable_t *variable = &self->core->variable[self->variable[v].id];

        cost += variable->cost[value[v]];
        if (self->variable[v].extra != NULL) {
            cost += self->variable[v].extra[value[v]];
        }
        for (int k = 0; k < variable->degree; ++k) {
            const ap_cfn_link_t *link = &self->core->link[variable->link[k]];
            int other = ap_cfn_other(link, self->variable[v].id), there = self->local[other];
            int theirs = there >= 0 ? value[there] : state->value[other];
            int a = link->a == other ? theirs : value[v], b = link->a == other ? value[v] : theirs;
            double cell =
                link->table[(size_t)a * (size_t)self->core->variable[link->b].size + (size_t)b];

            if (there < 0 || there > v) {
                cost += cell < HUGE_VAL ? cell : state->forbidden;
            }
        }
    }
    return cost;
}

/* Prices of the intervals to begin with; find_intervals() left their times in `price` and `used`.
 */
static void first_prices(ap_cfn_region_t *self, const ap_cfn_region_params_t *params)
{
    for (int j = 0; j < self->intervals; ++j) {
        int from = (int)self->price[j], to = (int)self->used[j];

        self->price[j] = params->price_factor * (params->price_sums[to] - params->price_sums[from]);
    }
}

/*
 * Moves the prices by the violation, as far as the distance between the bound and what is to be
 * beaten says (Polyak's step). False when there is nothing to move.
 */
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

/* Looks for something better than (excess, cost); leaves the best in `best`. */
static bool search(ap_cfn_region_t *self, const ap_cfn_state_t *state,
                   const ap_cfn_region_params_t *params, double *excess, double *cost, bool *better)
{
    double factor = 1.0, target = *cost, bound_best = -HUGE_VAL;
    bool found = false;
    int stale = 0;

    for (int step = 0; step < params->steps && !ap_cfn_shared_is_over(params->shared); ++step) {
        double bound, new_excess, new_cost;

        ap_region_price(self);
        bound = ap_region_solve(self);
        for (int j = 0; j < self->intervals; ++j) {
            bound -= self->price[j] * self->room[j];
        }
        new_excess = ap_region_use(self, self->value);
        new_cost = cost_of(self, state, self->value);
        if (new_excess < *excess || (new_excess == *excess && new_cost <= *cost)) {
            *better = *better || new_excess < *excess || new_cost < *cost;
            *excess = new_excess;
            *cost = new_cost;
            memcpy(self->best, self->value, (size_t)self->count * sizeof(int));
            found = true;
        }
        if (self->intervals == 0) {
            break;
        }
        if (*excess == 0.0) {
            target = *cost < target ? *cost : target;
            if (bound >= target - 0.5) {
                break; /* costs are integers: nothing better is here */
            }
        } else {
            target = fabs(bound) * 1.05 > target ? bound + fabs(bound) * 0.05 : target;
        }
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

xm_status_t ap_cfn_region_improve(ap_cfn_region_t *self, ap_cfn_state_t *state,
                                  const ap_cfn_region_params_t *params, const int *variables,
                                  int count, bool *changed, bool *better)
{
    double excess, cost;
    bool ready;

    *changed = *better = false;
    for (int v = 0; v < count; ++v) {
        self->local[variables[v]] = v;
    }
    while (!(ready = set_up(self, state, variables, count, params)) && enlarge_pool(self)) {
    }
    if (ready) {
        first_prices(self, params);
        excess = ap_region_use(self, self->current);
        cost = cost_of(self, state, self->current);
        if (search(self, state, params, &excess, &cost, better)) {
            *changed = memcmp(self->best, self->current, (size_t)count * sizeof(int)) != 0;
            ap_cfn_state_assign(state, variables, self->best, count);
        }
    }
    for (int v = 0; v < count; ++v) {
        self->local[variables[v]] = -1;
    }
    return ready
               ? XM_OK
               : xm_error_set(XM_ERR_NO_MEMORY, "no memory for the tables of %d variables", count);
}

void ap_cfn_region_destroy(ap_cfn_region_t *region)
{
    if (region == NULL) {
        return;
    }
    free(region->local);
    free(region->sum);
    free(region->ids);
    free(region->term);
    free(region->pool.base);
    free(region);
}
