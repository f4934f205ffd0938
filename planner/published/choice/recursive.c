/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One mesh axis after the other. Tofu (EuroSys'19) halves the devices recursively and solves each
 * level by itself; Double Recursive (Euro-Par'21) does so greedily. Each level is a network of its
 * own: the values that agree with what the earlier axes do and use no later axis. Solving one level
 * is much cheaper than all together, and the price is that a first axis is never taken back.
 */

#include "planner/published/choice/recursive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/published/choice/ordering.h"

static uint8_t part_of(const uint8_t *part, int value, int axis)
{
    return part == NULL ? 0 : part[value * AP_CHOICE_LEVELS + axis];
}

/* Whether a value does what was decided with the earlier axes, and nothing with the axes from
 * `axis` + 1 on that are before `until`. */
static bool may_choose(const uint8_t *part, int value, int decided, int axis, int until)
{
    for (int a = 0; a < until; ++a) {
        if ((a < axis && part_of(part, value, a) != part_of(part, decided, a)) ||
            (a > axis && part_of(part, value, a) != 0)) {
            return false;
        }
    }
    return true;
}

/* Marks the values of a variable that a level may choose from, and returns how many those are.
 * Where every value uses a later axis too, all that agree with the earlier ones are left; the
 * decided value is one of them, so the second round finds some. */
static int mark_values(const uint8_t *part, int size, int decided, int axis, bool *marked)
{
    int count = 0;

    for (int until = AP_CHOICE_LEVELS; count == 0; until = axis) {
        for (int x = 0; x < size; ++x) {
            marked[x] = may_choose(part, x, decided, axis, until);
            count += marked[x];
        }
    }
    return count;
}

/* The marks of a variable's values, which lie as the costs do. */
static bool *of_variable(const ap_cfn_core_t *core, bool *marked, int v)
{
    return marked + (core->variable[v].cost - ap_cfn_core_costs(core));
}

/* The network on the values that one level may choose from, which are marked. */
static xm_status_t make_level(const ap_cfn_core_t *core, const uint8_t *const *part, int axis,
                              const int *decided, bool *marked, ap_cfn_core_t **level)
{
    ap_cfn_core_size_t size = {
        .variables = core->variables, .links = core->links, .values = ap_cfn_core_values(core)};
    ap_cfn_core_maker_t maker;

    for (int k = 0; k < core->links; ++k) { /* at most */
        size.cells += (size_t)core->variable[core->link[k].a].size *
                      (size_t)core->variable[core->link[k].b].size;
    }
    XM_TRY(ap_cfn_core_begin(&size, &maker));
    for (int v = 0; v < core->variables; ++v) {
        int count = mark_values(part[v], core->variable[v].size, decided[v], axis,
                                of_variable(core, marked, v));

        (void)ap_cfn_copy_kept(of_variable(core, marked, v), core->variable[v].cost,
                               core->variable[v].size, ap_cfn_core_add_variable(&maker, count));
    }
    for (int k = 0; k < core->links; ++k) {
        const ap_cfn_link_t *link = &core->link[k];

        ap_cfn_copy_table(core, link, of_variable(core, marked, link->a),
                          of_variable(core, marked, link->b),
                          ap_cfn_core_add_link(&maker, link->a, link->b));
    }
    *level = ap_cfn_core_finish(&maker);
    return XM_OK;
}

typedef struct ranked {
    double weight;
    int variable;
} ranked_t;

static int dearest_first(const void *a, const void *b)
{
    const ranked_t *x = a, *y = b;

    XM_ORDER_BY(y->weight, x->weight);
    return x->variable < y->variable ? -1 : x->variable > y->variable;
}

/* A lower bound on a link when one end has a value and the other is not decided. */
static double least_at(const ap_cfn_core_t *core, const ap_cfn_link_t *link, int end, int value)
{
    int rows = core->variable[link->a].size, columns = core->variable[link->b].size;
    double least = INFINITY;

    for (int x = 0; x < (link->a == end ? columns : rows); ++x) {
        least =
            fmin(least, link->table[link->a == end ? value * columns + x : x * columns + value]);
    }
    return least;
}

/* The cost of a value beside what is decided; -1 in `assignment` means not decided. */
static double greedy_cost(const ap_cfn_core_t *core, int v, int value, const int *assignment)
{
    double cost = core->variable[v].cost[value];

    for (int i = 0; i < core->variable[v].degree; ++i) {
        const ap_cfn_link_t *link = &core->link[core->variable[v].link[i]];
        int other = assignment[ap_cfn_other(link, v)], columns = core->variable[link->b].size;

        cost += other < 0      ? least_at(core, link, v, value)
                : link->a == v ? link->table[value * columns + other]
                               : link->table[other * columns + value];
    }
    return cost;
}

/* The dearest variables choose first, for they have most to lose. */
static xm_status_t solve_greedily(const ap_cfn_core_t *core, int *assignment)
{
    int count = core->variables;
    ranked_t *order = malloc(((size_t)count + 1) * sizeof(*order));

    XM_NEED_MEMORY(order, "%d variables", count);
    for (int v = 0; v < count; ++v) {
        order[v] = (ranked_t){0.0, v};
        for (int x = 0; x < core->variable[v].size; ++x) {
            order[v].weight = fmax(order[v].weight, core->variable[v].cost[x]);
        }
        assignment[v] = -1;
    }
    qsort(order, (size_t)count, sizeof(*order), dearest_first);
    for (int i = 0; i < count; ++i) {
        int v = order[i].variable, best = 0;
        double least = INFINITY;

        for (int x = 0; x < core->variable[v].size; ++x) {
            double cost = greedy_cost(core, v, x, assignment);

            best = cost < least ? x : best;
            least = fmin(least, cost);
        }
        assignment[v] = best;
    }
    free(order);
    return XM_OK;
}

/* The marked value of a number. */
static int find_value(const bool *marked, int number)
{
    int x = 0;

    while (!marked[x] || number-- > 0) {
        ++x;
    }
    return x;
}

xm_status_t ap_search_recursive(const ap_cfn_core_t *network, const uint8_t *const *part,
                                int levels, bool greedy, int *assignment)
{
    size_t count = (size_t)network->variables, values = ap_cfn_core_values(network);
    xm_arena_t pool = {0};
    int *chosen = xm_arena_take(&pool, count * sizeof(*chosen));
    bool *marked = xm_arena_take(&pool, values * sizeof(*marked));
    xm_status_t status = XM_OK;

    if (pool.failed) {
        status = XM_NO_MEMORY("%zu variables", count);
    }
    memset(assignment, 0, count * sizeof(*assignment));
    for (int axis = 0; axis < levels && status == XM_OK; ++axis) {
        ap_cfn_core_t *level = NULL;

        status = make_level(network, part, axis, assignment, marked, &level);
        XM_THEN(status, greedy ? solve_greedily(level, chosen) : ap_search_ordering(level, chosen));
        for (int v = 0; v < network->variables && status == XM_OK; ++v) {
            assignment[v] = find_value(of_variable(network, marked, v), chosen[v]);
        }
        ap_cfn_core_destroy(level);
    }
    xm_arena_clear(&pool);
    return status;
}
