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

/* The network on the values that one level may choose from. */
typedef struct level {
    const ap_choice_network_t *whole;
    ap_choice_variable_t *variables;
    ap_choice_edge_t *edges;
    int **value; /* per variable: index in the whole domain of each value left */
    double **tables;
    int table_count;
} level_t;

static void level_close(level_t *level)
{
    for (int v = 0; v < level->whole->variable_count && level->value != NULL; ++v) {
        free(level->value[v]);
    }
    for (int t = 0; t < level->table_count; ++t) {
        free(level->tables[t]);
    }
    free(level->tables);
    free(level->value);
    free(level->edges);
    free(level->variables);
}

static double *add_table(level_t *level, size_t cells)
{
    double *table = malloc((cells + 1) * sizeof(*table));

    if (table != NULL) {
        level->tables[level->table_count++] = table;
    }
    return table;
}

static uint8_t part_of(const ap_choice_variable_t *variable, int value, int axis)
{
    return variable->part == NULL ? 0 : variable->part[value * AP_CHOICE_LEVELS + axis];
}

/* Whether a value does what was decided with the earlier axes, and nothing with the later ones. */
static bool may_choose(const ap_choice_variable_t *variable, int value, int decided, int axis)
{
    for (int a = 0; a < AP_CHOICE_LEVELS; ++a) {
        if (a < axis && part_of(variable, value, a) != part_of(variable, decided, a)) {
            return false;
        }
        if (a > axis && part_of(variable, value, a) != 0) {
            return false;
        }
    }
    return true;
}

/* Lists the values of one variable. Where every value uses a later axis too, all that agree with
 * the earlier ones are left; the decided value is one of them, so the second round finds some. */
static xm_status_t restrict_variable(level_t *level, int v, int decided, int axis)
{
    const ap_choice_variable_t *whole = &level->whole->variables[v];
    ap_choice_variable_t *part = &level->variables[v];
    double *seconds = add_table(level, (size_t)whole->domain);

    level->value[v] = malloc((size_t)whole->domain * sizeof(int));
    if (level->value[v] == NULL || seconds == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for a level of the recursion");
    }
    *part = (ap_choice_variable_t){.seconds = seconds};
    for (int until = axis; part->domain == 0; until = AP_CHOICE_LEVELS) {
        for (int x = 0; x < whole->domain; ++x) {
            bool agrees = true;

            for (int a = 0; a < axis; ++a) {
                agrees = agrees && part_of(whole, x, a) == part_of(whole, decided, a);
            }
            if (agrees && (until > axis || may_choose(whole, x, decided, axis))) {
                level->value[v][part->domain] = x;
                seconds[part->domain++] = whole->seconds[x];
            }
        }
    }
    return XM_OK;
}

static xm_status_t restrict_edge(level_t *level, int e)
{
    const ap_choice_edge_t *whole = &level->whole->edges[e];
    int rows = level->variables[whole->a].domain, columns = level->variables[whole->b].domain;
    double *seconds = add_table(level, (size_t)rows * (size_t)columns);

    if (seconds == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for a level of the recursion");
    }
    level->edges[e] = (ap_choice_edge_t){whole->a, whole->b, seconds};
    for (int i = 0; i < rows; ++i) {
        for (int j = 0; j < columns; ++j) {
            seconds[i * columns + j] =
                whole->seconds[(size_t)level->value[whole->a][i] *
                                   (size_t)level->whole->variables[whole->b].domain +
                               (size_t)level->value[whole->b][j]];
        }
    }
    return XM_OK;
}

static xm_status_t level_open(level_t *level, const ap_choice_network_t *whole, int axis,
                              const int *decided)
{
    size_t variables = (size_t)whole->variable_count, edges = (size_t)whole->edge_count;
    xm_status_t status = XM_OK;

    *level = (level_t){.whole = whole};
    level->variables = calloc(variables + 1, sizeof(*level->variables));
    level->edges = calloc(edges + 1, sizeof(*level->edges));
    level->value = calloc(variables + 1, sizeof(*level->value));
    level->tables = calloc(variables + edges + 1, sizeof(*level->tables));
    if (level->variables == NULL || level->edges == NULL || level->value == NULL ||
        level->tables == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for a level of the recursion");
    }
    for (int v = 0; v < whole->variable_count && status == XM_OK; ++v) {
        status = restrict_variable(level, v, decided[v], axis);
    }
    for (int e = 0; e < whole->edge_count && status == XM_OK; ++e) {
        status = restrict_edge(level, e);
    }
    return status;
}

typedef struct ranked {
    double weight;
    int variable;
} ranked_t;

static int dearest_first(const void *a, const void *b)
{
    const ranked_t *x = a, *y = b;

    if (x->weight != y->weight) {
        return x->weight > y->weight ? -1 : 1;
    }
    return x->variable < y->variable ? -1 : x->variable > y->variable;
}

/* A lower bound on an edge when one end has a value and the other is not decided. */
static double least_at(const ap_choice_network_t *network, const ap_choice_edge_t *edge, int end,
                       int value)
{
    int rows = network->variables[edge->a].domain, columns = network->variables[edge->b].domain;
    double least = INFINITY;

    for (int x = 0; x < (edge->a == end ? columns : rows); ++x) {
        int cell = edge->a == end ? value * columns + x : x * columns + value;

        least = fmin(least, edge->seconds[cell]);
    }
    return least;
}

/* The cost of a value beside what is decided; -1 in `assignment` means not decided. */
static double greedy_cost(const ap_choice_network_t *network, int v, int value,
                          const int *assignment)
{
    double cost = network->variables[v].seconds[value];

    for (int i = network->first[v]; i < network->first[v + 1]; ++i) {
        const ap_choice_edge_t *edge = &network->edges[network->touching[i]];
        int other = edge->a == v ? edge->b : edge->a;
        int columns = network->variables[edge->b].domain;

        if (assignment[other] < 0) {
            cost += least_at(network, edge, v, value);
        } else {
            cost += edge->a == v ? edge->seconds[value * columns + assignment[other]]
                                 : edge->seconds[assignment[other] * columns + value];
        }
    }
    return cost;
}

/* The dearest variables choose first, for they have most to lose. */
static xm_status_t solve_greedily(const ap_choice_network_t *network, int *assignment)
{
    int count = network->variable_count;
    ranked_t *order = malloc(((size_t)count + 1) * sizeof(*order));

    if (order == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d variables", count);
    }
    for (int v = 0; v < count; ++v) {
        order[v] = (ranked_t){0.0, v};
        for (int x = 0; x < network->variables[v].domain; ++x) {
            order[v].weight = fmax(order[v].weight, network->variables[v].seconds[x]);
        }
        assignment[v] = -1;
    }
    qsort(order, (size_t)count, sizeof(*order), dearest_first);
    for (int i = 0; i < count; ++i) {
        int v = order[i].variable, best = 0;
        double least = INFINITY;

        for (int x = 0; x < network->variables[v].domain; ++x) {
            double cost = greedy_cost(network, v, x, assignment);

            best = cost < least ? x : best;
            least = fmin(least, cost);
        }
        assignment[v] = best;
    }
    free(order);
    return XM_OK;
}

xm_status_t ap_search_recursive(const ap_choice_network_t *network, int levels, bool greedy,
                                int *assignment)
{
    int count = network->variable_count;
    int *chosen = calloc((size_t)count + 1, sizeof(*chosen));
    xm_status_t status = XM_OK;

    if (chosen == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d variables", count);
    }
    memset(assignment, 0, (size_t)count * sizeof(*assignment));
    for (int axis = 0; axis < levels && status == XM_OK; ++axis) {
        ap_choice_network_t *part = NULL;
        level_t level;

        status = level_open(&level, network, axis, assignment);
        if (status == XM_OK) {
            status = ap_choice_network_create(level.variables, count, level.edges,
                                              network->edge_count, &part);
        }
        if (status == XM_OK) {
            status = greedy ? solve_greedily(part, chosen) : ap_search_ordering(part, chosen);
        }
        for (int v = 0; v < count && status == XM_OK; ++v) {
            assignment[v] = level.value[v][chosen[v]];
        }
        ap_choice_network_destroy(part);
        level_close(&level);
    }
    free(chosen);
    return status;
}
