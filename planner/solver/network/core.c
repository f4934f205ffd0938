/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storage of a core: the small problem that is left after the presolve. A core is built once, in
 * order, and never changes afterwards, so all values, usages, cells and segments lie in one array
 * each; sweeps of the dual go through them from front to back, which is what makes them fast. The
 * maker knows the sizes beforehand: adding a variable only moves a pointer and cannot fail.
 */

#include "planner/solver/network/core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct storage {
    ap_cfn_core_t core;
    xm_arena_t pool; /* everything that the core points to */
    double *capacity;
    int *links;
} storage_t;

/* The capacities begin at 0. */
xm_status_t ap_cfn_core_begin(const ap_cfn_core_size_t *size, ap_cfn_core_maker_t *maker)
{
    storage_t *made = calloc(1, sizeof(*made));
    ap_cfn_core_t *core = made != NULL ? &made->core : NULL;
    size_t variables = (size_t)size->variables, links = (size_t)size->links;
    int64_t *when;

    if (made != NULL) {
        core->variable = xm_arena_get(&made->pool, variables + 1, sizeof(*core->variable));
        core->link = xm_arena_take(&made->pool, links * sizeof(*core->link));
        made->links = xm_arena_take(&made->pool, 2 * links * sizeof(int));
        made->capacity = xm_arena_get(&made->pool, (size_t)size->times, sizeof(double));
        /* Capacities are handed out by pointer, as they are filled before anything else. */
        core->times = size->times;
        core->capacity = made->capacity;
        core->when = when = xm_arena_get(&made->pool, (size_t)size->times, sizeof(*when));
        core->storage = made;
        *maker = (ap_cfn_core_maker_t){
            .core = core,
            .when = when,
            .capacity = made->capacity,
            .value = xm_arena_take(&made->pool, size->values * sizeof(double)),
            .usage = xm_arena_take(&made->pool, size->usages * sizeof(double)),
            .cell = xm_arena_take(&made->pool, size->cells * sizeof(double)),
            .segment = xm_arena_take(&made->pool, size->segments * sizeof(ap_cfn_segment_t))};
    }
    if (made == NULL || made->pool.failed) {
        ap_cfn_core_destroy(core);
        return XM_NO_MEMORY("%d variables and %zu costs", size->variables, size->cells);
    }
    return XM_OK;
}

/* The caller writes the costs to the array that is returned, then adds the variable's segments;
 * they belong to the variable that was added last. */
double *ap_cfn_core_add_variable(ap_cfn_core_maker_t *maker, int size)
{
    double *cost = maker->value;

    maker->core->variable[maker->core->variables++] =
        (ap_cfn_variable_t){.size = size, .cost = cost, .segment = maker->segment};
    maker->value += size;
    return cost;
}

double *ap_cfn_core_add_segment(ap_cfn_core_maker_t *maker, int from, int to)
{
    ap_cfn_variable_t *variable = &maker->core->variable[maker->core->variables - 1];
    double *usage = maker->usage;

    *maker->segment++ = (ap_cfn_segment_t){from, to, usage};
    ++variable->segments;
    maker->usage += variable->size;
    return usage;
}

/* Both variables must have been added before, as their sizes give the table's. */
double *ap_cfn_core_add_link(ap_cfn_core_maker_t *maker, int a, int b)
{
    const ap_cfn_variable_t *variable = maker->core->variable;
    double *table = maker->cell;

    ap_cfn_core_borrow_link(maker, a, b, table);
    maker->cell += (size_t)variable[a].size * (size_t)variable[b].size;
    return table;
}

void ap_cfn_core_borrow_link(ap_cfn_core_maker_t *maker, int a, int b, const double *table)
{
    maker->core->link[maker->core->links++] = (ap_cfn_link_t){a, b, table};
}

/* Lists the links of every variable by a counting sort: degrees first, then the start of each
 * list, then the links in their order. The links of a variable ascend, so every pass over them
 * takes the same order. */
ap_cfn_core_t *ap_cfn_core_finish(ap_cfn_core_maker_t *maker)
{
    ap_cfn_core_t *core = maker->core;
    storage_t *storage = core->storage;
    int *next = storage->links;

    for (int k = 0; k < core->links; ++k) {
        ++core->variable[core->link[k].a].degree;
        ++core->variable[core->link[k].b].degree;
    }
    for (int v = 0; v < core->variables; ++v) {
        core->variable[v].link = next;
        next += core->variable[v].degree;
        core->variable[v].degree = 0;
    }
    for (int k = 0; k < core->links; ++k) {
        for (int end = 0; end < 2; ++end) {
            ap_cfn_variable_t *v = &core->variable[end ? core->link[k].b : core->link[k].a];

            storage->links[(v->link - storage->links) + v->degree++] = k;
        }
    }
    return core;
}

/* Only the core's maker calls this, before others see the core: for them capacities are
 * constant. */
double *ap_cfn_core_capacity(ap_cfn_core_t *core)
{
    return ((storage_t *)core->storage)->capacity;
}

/* Adds up changes at the ends of the segments and then their prefix sums. The cost is the number of
 * segments and of times, not the length of the segments. */
void ap_cfn_core_loads(const ap_cfn_core_t *core, const int *value, double *load)
{
    memset(load, 0, ((size_t)core->times + 1) * sizeof(*load));
    for (int v = 0; v < core->variables; ++v) {
        for (int k = 0; k < core->variable[v].segments; ++k) {
            const ap_cfn_segment_t *segment = &core->variable[v].segment[k];

            load[segment->from] += segment->usage[value[v]];
            load[segment->to] -= segment->usage[value[v]];
        }
    }
    for (int t = 1; t < core->times; ++t) {
        load[t] += load[t - 1];
    }
}

/* The loads are sums of integers, so the comparison is exact below 2^53. A capacity may be negative
 * after values were settled; then nothing fits, not even a load of 0. */
bool ap_cfn_core_fits(const ap_cfn_core_t *core, const int *value, double *load)
{
    ap_cfn_core_loads(core, value, load);
    for (int t = 0; t < core->times; ++t) {
        if (load[t] > core->capacity[t]) {
            return false;
        }
    }
    return true;
}

void ap_cfn_copy_table(const ap_cfn_core_t *core, const ap_cfn_link_t *link, const bool *rows,
                       const bool *columns, double *to)
{
    int width = core->variable[link->b].size;

    for (int x = 0; x < core->variable[link->a].size; ++x) {
        if (rows[x]) {
            to = ap_cfn_copy_kept(columns, link->table + (size_t)x * (size_t)width, width, to);
        }
    }
}

/* HUGE_VAL in any cell makes the sum HUGE_VAL: forbidden cells need no test of their own. */
double ap_cfn_core_cost(const ap_cfn_core_t *core, const int *value)
{
    double cost = 0.0;

    for (int v = 0; v < core->variables; ++v) {
        cost += core->variable[v].cost[value[v]];
    }
    for (int k = 0; k < core->links; ++k) {
        const ap_cfn_link_t *link = &core->link[k];

        cost += ap_cfn_cell(core, link, value[link->a], value[link->b]);
    }
    return cost;
}

/* The cost of changing one variable is a difference of two such sums. */
double ap_cfn_core_cost_of(const ap_cfn_core_t *core, int variable, int x, const int *value)
{
    double cost = core->variable[variable].cost[x];

    for (int k = 0; k < core->variable[variable].degree; ++k) {
        const ap_cfn_link_t *link = &core->link[core->variable[variable].link[k]];
        int a = link->a == variable ? x : value[link->a];
        int b = link->b == variable ? x : value[link->b];

        cost += ap_cfn_cell(core, link, a, b);
    }
    return cost;
}

void ap_cfn_core_destroy(ap_cfn_core_t *core)
{
    if (core != NULL) {
        storage_t *storage = core->storage;

        xm_arena_clear(&storage->pool);
        free(storage);
    }
}
