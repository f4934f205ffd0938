/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OptCNN's node and edge elimination (Jia, ICML'18): a variable between two others becomes an edge
 * that holds the minimum over its values, parallel edges become their sum. Both keep the optimum,
 * and chains with residual connections shrink to two variables, which are enumerated. Where many
 * are left, the remaining network goes to the dynamic programme over an order, which is exact as
 * well.
 */

#include "tests/planner/published/choice/reduction.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/published/choice/ordering.h"

enum { MOST_STEPS = 1 << 18 };

/* An edge of the shrinking graph, [domain of a][domain of b]. */
typedef struct link {
    int a, b;
    double *seconds;
    bool alive;
} link_t;

/* An elimination, to be undone: `best` is the value of `variable` for each pair of its
 * neighbours. */
typedef struct undo {
    int variable, a, b;
    int *best;
} undo_t;

typedef struct reduction {
    const ap_cfn_core_t *network;
    link_t *links;
    int link_count;
    undo_t *undos;
    int undo_count;
    bool *gone; /* per variable: eliminated */
} reduction_t;

static int domain_of(const reduction_t *r, int variable)
{
    return r->network->variable[variable].size;
}

static double link_seconds(const reduction_t *r, const link_t *link, int end, int at, int other)
{
    return link->a == end
               ? link->seconds[(size_t)at * (size_t)domain_of(r, link->b) + (size_t)other]
               : link->seconds[(size_t)other * (size_t)domain_of(r, end) + (size_t)at];
}

static void reduction_close(reduction_t *r)
{
    for (int i = 0; i < r->link_count && r->links != NULL; ++i) {
        free(r->links[i].seconds);
    }
    for (int i = 0; i < r->undo_count; ++i) {
        free(r->undos[i].best);
    }
    free(r->links);
    free(r->undos);
    free(r->gone);
}

static xm_status_t no_memory(void)
{
    return XM_NO_MEMORY("eliminations");
}

static xm_status_t reduction_open(reduction_t *r, const ap_cfn_core_t *network)
{
    size_t variables = (size_t)network->variables, edges = (size_t)network->links;

    *r = (reduction_t){.network = network};
    /* Every elimination adds a link. */
    r->links = calloc(edges + variables + 1, sizeof(*r->links));
    r->undos = calloc(variables + 1, sizeof(*r->undos));
    r->gone = calloc(variables + 1, sizeof(*r->gone));
    if (r->links == NULL || r->undos == NULL || r->gone == NULL) {
        return no_memory();
    }
    for (int e = 0; e < network->links; ++e) {
        const ap_cfn_link_t *edge = &network->link[e];
        size_t cells = (size_t)domain_of(r, edge->a) * (size_t)domain_of(r, edge->b);
        link_t *link = &r->links[r->link_count++];

        *link = (link_t){edge->a, edge->b, malloc(cells * sizeof(double)), true};
        if (link->seconds == NULL) {
            return no_memory();
        }
        memcpy(link->seconds, edge->table, cells * sizeof(double));
    }
    return XM_OK;
}

/* Adds the second of two parallel links to the first, whichever way round it is. */
static void merge(const reduction_t *r, link_t *into, link_t *link)
{
    int rows = domain_of(r, into->a), columns = domain_of(r, into->b);

    for (int i = 0; i < rows; ++i) {
        for (int j = 0; j < columns; ++j) {
            into->seconds[i * columns + j] += link_seconds(r, link, into->a, i, j);
        }
    }
    link->alive = false;
}

/* Merges every pair of parallel links of a variable. Returns how many links it has then; the first
 * two of them in `found`. */
static int settle(reduction_t *r, int variable, link_t *found[2])
{
    int count = 0;

    for (int i = 0; i < r->link_count; ++i) {
        link_t *link = &r->links[i];
        int other = link->a == variable ? link->b : link->a;
        link_t *same = NULL;

        if (!link->alive || (link->a != variable && link->b != variable)) {
            continue;
        }
        for (int j = 0; j < i && same == NULL; ++j) {
            link_t *earlier = &r->links[j];
            bool parallel = (earlier->a == variable && earlier->b == other) ||
                            (earlier->b == variable && earlier->a == other);

            same = earlier->alive && parallel ? earlier : NULL;
        }
        if (same != NULL) {
            merge(r, same, link);
            continue;
        }
        if (count < 2) {
            found[count] = link;
        }
        ++count;
    }
    return count;
}

/* Ties go to the first value, so the answer is the same in every run. */
static xm_status_t eliminate(reduction_t *r, int variable, link_t *const ends[2])
{
    int a = ends[0]->a == variable ? ends[0]->b : ends[0]->a;
    int b = ends[1]->a == variable ? ends[1]->b : ends[1]->a;
    int rows = domain_of(r, a), columns = domain_of(r, b);
    size_t cells = (size_t)rows * (size_t)columns;
    double *seconds = malloc(cells * sizeof(*seconds));
    int *best = malloc(cells * sizeof(*best));

    if (seconds == NULL || best == NULL) {
        free(seconds);
        free(best);
        return no_memory();
    }
    for (int i = 0; i < rows; ++i) {
        for (int j = 0; j < columns; ++j) {
            double least = INFINITY;
            int at = 0;

            for (int x = 0; x < domain_of(r, variable); ++x) {
                double cost = r->network->variable[variable].cost[x] +
                              link_seconds(r, ends[0], variable, x, i) +
                              link_seconds(r, ends[1], variable, x, j);

                at = cost < least ? x : at;
                least = cost < least ? cost : least;
            }
            seconds[i * columns + j] = least;
            best[i * columns + j] = at;
        }
    }
    ends[0]->alive = ends[1]->alive = false;
    r->gone[variable] = true;
    r->undos[r->undo_count++] = (undo_t){variable, a, b, best};
    r->links[r->link_count++] = (link_t){a, b, seconds, true};
    return XM_OK;
}

/* Every elimination removes a variable, so there are at most as many rounds as variables. */
static xm_status_t shrink(reduction_t *r)
{
    bool changed = true;
    xm_status_t status = XM_OK;

    while (changed && status == XM_OK) {
        changed = false;
        for (int v = 0; v < r->network->variables && status == XM_OK; ++v) {
            link_t *ends[2] = {NULL, NULL};

            if (!r->gone[v] && settle(r, v, ends) == 2) {
                status = eliminate(r, v, ends);
                changed = true;
            }
        }
    }
    return status;
}

/* Enumerates the variables that are left, in order, cutting what cannot beat the best. */
typedef struct enumeration {
    const reduction_t *reduction;
    int *left; /* the variables */
    int count;
    double *rest; /* [count + 1]: the others from here on cost at least so much */
    int *at, *best;
    double least;
    int64_t steps;
} enumeration_t;

/* The cost of the value of the depth-th variable with those before it. */
static double cost_at(const enumeration_t *e, int depth)
{
    const reduction_t *r = e->reduction;
    int v = e->left[depth];
    double cost = r->network->variable[v].cost[e->at[v]];

    for (int i = 0; i < r->link_count; ++i) {
        const link_t *link = &r->links[i];
        int other = link->a == v ? link->b : link->a;

        if (link->alive && (link->a == v || link->b == v) && e->at[other] >= 0) {
            cost += link_seconds(r, link, v, e->at[v], e->at[other]);
        }
    }
    return cost;
}

static void enumerate(enumeration_t *e, int depth, double cost)
{
    int v;

    if (depth == e->count) {
        e->least = cost;
        memcpy(e->best, e->at, (size_t)e->reduction->network->variables * sizeof(*e->at));
        return;
    }
    v = e->left[depth];
    for (int x = 0; x < domain_of(e->reduction, v) && ++e->steps <= MOST_STEPS; ++x) {
        double with;

        e->at[v] = x;
        with = cost + cost_at(e, depth);
        if (with + e->rest[depth + 1] < e->least) {
            enumerate(e, depth + 1, with);
        }
    }
    e->at[v] = -1;
}

static double least_of(const double *values, size_t count)
{
    double least = values[0];

    for (size_t i = 1; i < count; ++i) {
        least = fmin(least, values[i]);
    }
    return least;
}

/* Lower bounds on the rest: each variable at its cheapest, with the cheapest cells of its links to
 * those before it. So every link is charged once. */
static void bound_rest(enumeration_t *e)
{
    const reduction_t *r = e->reduction;

    e->rest[e->count] = 0.0;
    for (int depth = e->count - 1; depth >= 0; --depth) {
        int v = e->left[depth];
        const ap_cfn_variable_t *variable = &r->network->variable[v];

        e->rest[depth] = e->rest[depth + 1] + least_of(variable->cost, (size_t)variable->size);
        for (int i = 0; i < r->link_count; ++i) {
            const link_t *link = &r->links[i];
            int later = link->a > link->b ? link->a : link->b;

            if (link->alive && later == v) {
                e->rest[depth] += least_of(link->seconds, (size_t)domain_of(r, link->a) *
                                                              (size_t)domain_of(r, link->b));
            }
        }
    }
}

/* Makes what is left a network of its own, for a dynamic programme over an order. */
static xm_status_t order_rest(const reduction_t *r, const int *left, int count, int *assignment)
{
    size_t variables = (size_t)r->network->variables;
    ap_choice_variable_t *variable = malloc((variables + 1) * sizeof(*variable));
    ap_choice_edge_t *edges = malloc(((size_t)r->link_count + 1) * sizeof(*edges));
    int *index = calloc(2 * variables + 2, sizeof(*index)), *values = NULL, edge_count = 0;
    ap_choice_network_t *rest = NULL;
    xm_status_t status = XM_OK;

    if (variable == NULL || edges == NULL || index == NULL) {
        status = no_memory();
        goto release;
    }
    values = index + variables + 1;
    for (int i = 0; i < count; ++i) {
        index[left[i]] = i;
        variable[i] = (ap_choice_variable_t){.domain = domain_of(r, left[i]),
                                             .seconds = r->network->variable[left[i]].cost};
    }
    for (int i = 0; i < r->link_count; ++i) {
        const link_t *link = &r->links[i];

        if (link->alive) {
            edges[edge_count++] = (ap_choice_edge_t){index[link->a], index[link->b], link->seconds};
        }
    }
    status = ap_choice_network_create(variable, count, edges, edge_count, &rest);
    if (status == XM_OK) {
        status = ap_search_ordering(rest->core, values);
    }
    for (int i = 0; i < count && status == XM_OK; ++i) {
        assignment[left[i]] = values[i];
    }

release:
    ap_choice_network_destroy(rest);
    free(index);
    free(edges);
    free(variable);
    return status;
}

/* Forgets the links that are gone: the enumeration looks at all of them at every step. */
static void drop_dead_links(reduction_t *r)
{
    int kept = 0;

    for (int i = 0; i < r->link_count; ++i) {
        if (r->links[i].alive) {
            r->links[kept++] = r->links[i];
        } else {
            free(r->links[i].seconds);
        }
    }
    r->link_count = kept;
}

static xm_status_t enumerate_rest(const reduction_t *r, int *assignment, int *left)
{
    size_t variables = (size_t)r->network->variables;
    enumeration_t e = {.reduction = r, .best = assignment, .least = INFINITY};
    xm_status_t status = XM_OK;

    e.left = malloc((variables + 1) * sizeof(*e.left));
    e.at = malloc((variables + 1) * sizeof(*e.at));
    e.rest = malloc((variables + 1) * sizeof(*e.rest));
    if (e.left == NULL || e.at == NULL || e.rest == NULL) {
        status = no_memory();
        goto release;
    }
    for (int v = 0; v < r->network->variables; ++v) {
        e.at[v] = -1;
        if (!r->gone[v]) {
            e.left[e.count++] = v;
        }
    }
    bound_rest(&e);
    enumerate(&e, 0, 0.0);
    if (e.steps > MOST_STEPS) {
        status = order_rest(r, e.left, e.count, assignment);
    }
    if (left != NULL) {
        *left = e.count;
    }

release:
    free(e.rest);
    free(e.at);
    free(e.left);
    return status;
}

/* Eliminations are undone in reverse, for a variable's neighbours may have been eliminated after
 * it. */
xm_status_t ap_search_reduction(const ap_cfn_core_t *network, int *assignment, int *left)
{
    reduction_t r;
    xm_status_t status = reduction_open(&r, network);

    if (status == XM_OK) {
        status = shrink(&r);
    }
    if (status == XM_OK) {
        drop_dead_links(&r);
        status = enumerate_rest(&r, assignment, left);
    }
    for (int i = r.undo_count - 1; i >= 0 && status == XM_OK; --i) {
        const undo_t *undo = &r.undos[i];

        assignment[undo->variable] =
            undo->best[assignment[undo->a] * domain_of(&r, undo->b) + assignment[undo->b]];
    }
    reduction_close(&r);
    return status;
}
