/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Propagation by what links cost. A link between two operators costs nothing where both have a
 * tensor alike, so the values of least link cost beside decided neighbours are those that GSPMD's
 * rules would carry over; how few they are takes the place of its priorities. Sums over decided
 * neighbours are kept per value, so deciding a variable costs its links and no more.
 */

#include "planner/published/choice/completion.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Stands for what is forbidden where sums are taken back. */
static const double FORBIDDEN = 1e15;

struct ap_choice_completion {
    const ap_cfn_core_t *network;
    xm_arena_t arena;
    int *at;       /* the assignment */
    int *left;     /* per variable: values of least link cost; of what nothing reaches: INT_MAX */
    int *best;     /* per variable: the most hopeful of these */
    double *links; /* per value of all variables */
    double *hope;  /* per value: its cost, and what its other links cost at best */
    double *start; /* the same where nothing is decided */
    double *ahead; /* per value of each link's first end, then second: the least at the other end */
    size_t *at_link;
};

static double *of_variable(const ap_choice_completion_t *c, double *values, int v)
{
    return values + (c->network->variable[v].cost - ap_cfn_core_costs(c->network));
}

/* What each value of a link's end costs at best: the other end's cheapest answer. */
static double *ahead_of(const ap_choice_completion_t *c, int link, int end)
{
    const ap_cfn_link_t *of = &c->network->link[link];

    return c->ahead + c->at_link[link] + (of->a == end ? 0 : c->network->variable[of->a].size);
}

static void look_ahead(ap_choice_completion_t *c, int k, int end)
{
    const ap_cfn_link_t *link = &c->network->link[k];
    const ap_cfn_variable_t *other = &c->network->variable[ap_cfn_other(link, end)];
    double *ahead = ahead_of(c, k, end), *start = of_variable(c, c->start, end);

    for (int x = 0; x < c->network->variable[end].size; ++x) {
        ahead[x] = HUGE_VAL;
        for (int y = 0; y < other->size; ++y) {
            double cell = link->a == end ? ap_cfn_cell(c->network, link, x, y)
                                         : ap_cfn_cell(c->network, link, y, x);

            ahead[x] = fmin(ahead[x], cell + other->cost[y]);
        }
        ahead[x] = fmin(ahead[x], FORBIDDEN);
        start[x] += ahead[x];
    }
}

static void prepare(ap_choice_completion_t *c)
{
    size_t cells = 0;

    memcpy(c->start, ap_cfn_core_costs(c->network),
           ap_cfn_core_values(c->network) * sizeof(double));
    for (int k = 0; k < c->network->links; ++k) {
        const ap_cfn_link_t *link = &c->network->link[k];

        c->at_link[k] = cells;
        cells += (size_t)(c->network->variable[link->a].size + c->network->variable[link->b].size);
        look_ahead(c, k, link->a);
        look_ahead(c, k, link->b);
    }
}

xm_status_t ap_choice_completion_create(const ap_cfn_core_t *network,
                                        ap_choice_completion_t **completion)
{
    size_t count = (size_t)network->variables + 1, values = ap_cfn_core_values(network) + 1;
    size_t cells = 1;
    ap_choice_completion_t *made = calloc(1, sizeof(*made));

    XM_NEED_MEMORY(made, "a completion");
    made->network = network;
    made->left = xm_arena_take(&made->arena, count * sizeof(int));
    made->best = xm_arena_take(&made->arena, count * sizeof(int));
    for (int k = 0; k < network->links; ++k) {
        cells += (size_t)(network->variable[network->link[k].a].size +
                          network->variable[network->link[k].b].size);
    }
    made->links = xm_arena_take(&made->arena, values * sizeof(double));
    made->hope = xm_arena_take(&made->arena, values * sizeof(double));
    made->start = xm_arena_take(&made->arena, values * sizeof(double));
    made->ahead = xm_arena_take(&made->arena, cells * sizeof(double));
    made->at_link = xm_arena_take(&made->arena, ((size_t)network->links + 1) * sizeof(size_t));
    if (made->arena.failed) {
        ap_choice_completion_destroy(made);
        return XM_NO_MEMORY("a completion");
    }
    prepare(made);
    *completion = made;
    return XM_OK;
}

void ap_choice_completion_destroy(ap_choice_completion_t *completion)
{
    if (completion != NULL) {
        xm_arena_clear(&completion->arena);
        free(completion);
    }
}

/* A tolerance takes what rounding leaves of the sums. Values that are forbidden by themselves are
 * none. */
static void look(ap_choice_completion_t *c, int v)
{
    const ap_cfn_variable_t *of = &c->network->variable[v];
    const double *links = of_variable(c, c->links, v), *hope = of_variable(c, c->hope, v);
    double least = HUGE_VAL;

    for (int x = 0; x < of->size; ++x) {
        least = of->cost[x] < HUGE_VAL ? fmin(least, links[x]) : least;
    }
    c->left[v] = c->best[v] = 0;
    for (int x = 0; x < of->size; ++x) {
        if (of->cost[x] < HUGE_VAL && links[x] <= least + 1e-9 * fabs(least)) {
            c->best[v] = c->left[v]++ == 0 || hope[x] < hope[c->best[v]] ? x : c->best[v];
        }
    }
}

static void spread(ap_choice_completion_t *c, int v)
{
    const ap_cfn_variable_t *of = &c->network->variable[v];

    for (int i = 0; i < of->degree; ++i) {
        const ap_cfn_link_t *link = &c->network->link[of->link[i]];
        int other = ap_cfn_other(link, v), x = c->at[v];
        double *links = of_variable(c, c->links, other), *hope = of_variable(c, c->hope, other);
        const double *ahead = ahead_of(c, of->link[i], other);

        for (int y = 0; y < c->network->variable[other].size && c->at[other] < 0; ++y) {
            double cell = link->a == v ? ap_cfn_cell(c->network, link, x, y)
                                       : ap_cfn_cell(c->network, link, y, x);

            links[y] += cell;
            hope[y] += fmin(cell, FORBIDDEN) - ahead[y];
        }
        if (c->at[other] < 0) {
            look(c, other);
        }
    }
}

/* The undecided variable with the fewest values left; -1: none. */
static int narrowest(const ap_choice_completion_t *c)
{
    int found = -1;

    for (int v = 0; v < c->network->variables; ++v) {
        if (c->at[v] < 0 && (found < 0 || c->left[v] < c->left[found])) {
            found = v;
        }
    }
    return found;
}

void ap_choice_complete(ap_choice_completion_t *c, bool all, int *assignment)
{
    c->at = assignment;
    memset(c->links, 0, ap_cfn_core_values(c->network) * sizeof(double));
    memcpy(c->hope, c->start, ap_cfn_core_values(c->network) * sizeof(double));
    for (int v = 0; v < c->network->variables; ++v) {
        look(c, v);
        c->left[v] = INT_MAX;
    }
    for (int v = 0; v < c->network->variables; ++v) {
        if (c->at[v] >= 0) {
            spread(c, v);
        }
    }
    for (int v = narrowest(c); v >= 0 && (all || c->left[v] == 1); v = narrowest(c)) {
        c->at[v] = c->best[v];
        spread(c, v);
    }
}
