/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a region uses over time, and what that costs. A core can have thousands of times, but a
 * region of a few variables has few segments. Between two ends of those nothing that the region
 * does can differ from one time to the next, so time shrinks to the intervals between them, each
 * with the smallest slack inside; and of these only the ones that the region could exceed are kept.
 * The Lagrangian prices of a region are thus a handful.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver/local/local_private.h"

/* Lists all ends of segments, ascending and without repetition, and returns how many there are. */
static int find_cuts(ap_cfn_region_t *self, int **cuts)
{
    int count = 0, kept = 0, *cut;

    for (int v = 0; v < self->elimination->count; ++v) {
        count += 2 * ap_region_variable(self, v)->segments;
    }
    *cuts = cut = xm_arena_take(&self->elimination->pool, ((size_t)count + 1) * sizeof(int));
    if (cut == NULL) {
        return 0;
    }
    count = 0;
    for (int v = 0; v < self->elimination->count; ++v) {
        const ap_cfn_variable_t *variable = ap_region_variable(self, v);

        for (int k = 0; k < variable->segments; ++k) {
            cut[count++] = variable->segment[k].from;
            cut[count++] = variable->segment[k].to;
        }
    }
    qsort(cut, (size_t)count, sizeof(int), xm_order_ints);
    for (int k = 0; k < count; ++k) {
        if (kept == 0 || cut[kept - 1] != cut[k]) {
            cut[kept++] = cut[k];
        }
    }
    return kept;
}

/* The index of the cut at time t, which is one of them. */
static int cut_of(const int *cuts, int count, int t)
{
    int low = 0, high = count - 1;

    while (low < high) {
        int middle = (low + high) / 2;

        if (cuts[middle] < t) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Adds the smallest and the largest usage of every variable to the intervals between cuts. A fixed
 * variable has only the usage of its value. */
static void add_extremes(const ap_cfn_region_t *self, double *least, double *most)
{
    for (int v = 0; v < self->elimination->count; ++v) {
        const ap_cfn_variable_t *core = ap_region_variable(self, v);

        for (int k = 0; k < core->segments; ++k) {
            double low = HUGE_VAL, high = 0.0;

            for (int x = 0; x < core->size; ++x) {
                double usage = core->segment[k].usage[x];

                low = usage < low ? usage : low;
                high = usage > high ? usage : high;
            }
            if (self->elimination->position[v] < 0) {
                low = high = core->segment[k].usage[self->current[v]];
            }
            for (int j = self->range[v][k][0]; j < self->range[v][k][1]; ++j) {
                least[j] += low;
                most[j] += high;
            }
        }
    }
}

/* Finds the intervals in which the region might use more than is left. What is left is the slack of
 * the state, which has the region's present usage in it, plus that usage. False only when
 * memory ran out. */
bool ap_region_find_intervals(ap_cfn_region_t *self, const ap_cfn_state_t *state)
{
    int *cuts, *number, count = find_cuts(self, &cuts), kept = 0;
    double *least, *most, *own;

    self->intervals = 0;
    /* No segment has any usage, so nothing can be exceeded. */
    if (count < 2) {
        for (int v = 0; v < self->elimination->count; ++v) {
            self->range[v] = NULL;
        }
        return !self->elimination->pool.failed;
    }
    least = xm_arena_take(&self->elimination->pool, 3 * (size_t)count * sizeof(double));
    number = xm_arena_take(&self->elimination->pool, ((size_t)count + 1) * sizeof(int));
    self->room = xm_arena_take(&self->elimination->pool, 4 * ((size_t)count + 1) * sizeof(double));
    self->sums = xm_arena_take(&self->elimination->pool, ((size_t)count + 1) * sizeof(double));
    if (self->elimination->pool.failed) {
        return false;
    }
    /* Several arrays share an allocation, as the pool rounds each one up to a cache line. */
    most = least + count;
    own = most + count;
    self->truth = self->room + count + 1;
    self->price = self->truth + count + 1;
    self->used = self->price + count + 1;
    memset(least, 0, 3 * (size_t)count * sizeof(double));
    for (int v = 0; v < self->elimination->count; ++v) {
        const ap_cfn_variable_t *core = ap_region_variable(self, v);

        self->range[v] = xm_arena_take(&self->elimination->pool,
                                       ((size_t)core->segments + 1) * sizeof(*self->range[v]));
        if (self->range[v] == NULL) {
            return false;
        }
        for (int k = 0; k < core->segments; ++k) {
            /* Ranges are in cuts at first, and are renumbered once it is known which intervals
             * are kept. */
            int from = cut_of(cuts, count, core->segment[k].from);
            int to = cut_of(cuts, count, core->segment[k].to);

            self->range[v][k][0] = from;
            self->range[v][k][1] = to;
            /* What the region uses now, which is part of the state's load. */
            for (int j = from; j < to; ++j) {
                own[j] += core->segment[k].usage[self->current[v]];
            }
        }
    }
    add_extremes(self, least, most);
    for (int j = 0; j < count; ++j) {
        number[j] = kept;
        /* An interval counts if usages differ in it, and if the largest together exceed the
         * room. */
        if (j + 1 < count && most[j] > least[j]) {
            double room = ap_cfn_slack_least(&state->slack, cuts[j], cuts[j + 1]) + own[j];

            if (most[j] > room) {
                self->truth[kept] = room;
                /* Where even the smallest usages exceed the room, prices aim at those: no price
                 * could reach the true room, and they would grow without end. The true room still
                 * measures the excess. */
                self->room[kept] = room > least[j] ? room : least[j];
                /* The times where the prices of the interval begin and end, for first_prices() of
                 * planner/solver/local/region.c, which replaces them by prices. */
                self->price[kept] = (double)cuts[j];
                self->used[kept] = (double)cuts[j + 1];
                ++kept;
            }
        }
    }
    /* Ranges go from cuts to the intervals that are kept. */
    for (int v = 0; v < self->elimination->count; ++v) {
        const ap_cfn_variable_t *core = ap_region_variable(self, v);

        for (int k = 0; k < core->segments; ++k) {
            self->range[v][k][0] = number[self->range[v][k][0]];
            self->range[v][k][1] = number[self->range[v][k][1]];
        }
    }
    self->intervals = kept;
    return true;
}

/* Adds the prices of usage to the unary costs, by prefix sums over the intervals. */
void ap_region_price(ap_cfn_region_t *self)
{
    double sum = 0.0;

    for (int j = 0; j < self->intervals; ++j) {
        self->sums[j] = sum;
        sum += self->price[j];
    }
    if (self->intervals > 0) {
        self->sums[self->intervals] = sum;
    }
    /* Prices always start from the unpriced costs, so nothing accumulates over the steps. */
    memcpy(self->priced, self->unary,
           self->elimination->at[self->elimination->count] * sizeof(double));
    for (int v = 0; v < self->elimination->count; ++v) {
        const ap_cfn_variable_t *core = ap_region_variable(self, v);

        double *priced = self->priced + self->elimination->at[v];

        for (int k = 0; k < core->segments && self->intervals > 0; ++k) {
            ap_cfn_charge(&core->segment[k], core->size,
                          self->sums[self->range[v][k][1]] - self->sums[self->range[v][k][0]],
                          priced);
        }
    }
}

/* Adds up what the values use in every interval. The sum of the excesses tells two assignments
 * apart that both do not fit. */
double ap_region_use(ap_cfn_region_t *self, const int *value)
{
    double excess = 0.0;

    for (int j = 0; j < self->intervals; ++j) {
        self->used[j] = 0.0;
    }
    for (int v = 0; v < self->elimination->count; ++v) {
        const ap_cfn_variable_t *core = ap_region_variable(self, v);

        for (int k = 0; k < core->segments && self->intervals > 0; ++k) {
            double usage = core->segment[k].usage[value[v]];

            for (int j = self->range[v][k][0]; j < self->range[v][k][1]; ++j) {
                self->used[j] += usage;
            }
        }
    }
    for (int j = 0; j < self->intervals; ++j) {
        excess += self->used[j] > self->truth[j] ? self->used[j] - self->truth[j] : 0.0;
    }
    return excess;
}
