/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The presolve's frame: builds the graph from the problem, runs the steps in order, writes what is
 * left as a core, and turns solutions back. planner/solver/reduce.h lists the steps. Contest
 * problems have tens of thousands of nodes of which most merely copy a neighbour's choice, so the
 * presolve, not the search, decides whether a problem is tractable.
 *
 * Every step keeps at least one optimal solution, and every removal of a node appends to a log how
 * its strategy follows from those that stay. Costs are doubles from here on: integers, exact below
 * 2^53.
 */

#include "planner/solver/reduce.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver/reduce/reduce_private.h"

/* Costs that forbid become infinity, so that sums of them need no clamping. */
static double to_cost(int64_t cost)
{
    return cost >= AP_CFN_INFINITE ? HUGE_VAL : (double)cost;
}

static size_t arity_of(const ap_cfn_t *cfn, size_t edge)
{
    return cfn->scope_at[edge + 1] - cfn->scope_at[edge];
}

/* Makes a node of every node, and one of every edge of three nodes, whose values are the edge's
 * cells (the hidden variable encoding of constraint programming). All later steps then know edges
 * of two nodes only. Contraction undoes most of the growth: the cell determines the strategies of
 * the edge's three nodes, so those usually go into it. */
static xm_status_t make_nodes(ap_cfn_reduction_t *self)
{
    const ap_cfn_t *cfn = self->cfn;
    size_t count = cfn->nodes;

    for (size_t e = 0; e < cfn->edges; ++e) {
        count += arity_of(cfn, e) == 3;
    }
    self->node = xm_arena_get(&self->pool, count, sizeof(*self->node));
    self->strategies = xm_arena_take(&self->pool, count * sizeof(*self->strategies));
    self->mark = xm_arena_take(&self->pool, count * sizeof(*self->mark));
    if (self->pool.failed) {
        return ap_reduce_no_memory();
    }
    self->nodes = (int)count;
    count = 0;
    /* The first rounds make the nodes, the further ones look at one edge each. */
    for (size_t e = 0; count < (size_t)self->nodes; ++e) {
        bool is_node = count < cfn->nodes;
        size_t edge = is_node ? 0 : e - cfn->nodes;
        const int64_t *costs;
        ap_reduce_node_t *node = &self->node[count];

        if (!is_node && arity_of(cfn, edge) != 3) {
            continue;
        }
        /* The cells' costs become those of the values, so the edge itself has none left. */
        costs = is_node ? cfn->costs + cfn->node_at[count] : cfn->cells + cfn->cell_at[edge];
        node->size = is_node ? (int)ap_cfn_strategies(cfn, count)
                             : (int)(cfn->cell_at[edge + 1] - cfn->cell_at[edge]);
        self->strategies[count] = node->size;
        self->mark[count] = -1;
        self->largest = node->size > self->largest ? node->size : self->largest;
        node->cost = xm_arena_take(&self->graph, (size_t)node->size * sizeof(double));
        node->origin = xm_arena_take(&self->pool, (size_t)node->size * sizeof(int));
        if (self->pool.failed || self->graph.failed) {
            return ap_reduce_no_memory();
        }
        for (int s = 0; s < node->size; ++s) {
            node->cost[s] = to_cost(costs[s]);
            node->origin[s] = s;
        }
        ++count;
    }
    /* Nodes only get smaller. */
    self->keep = xm_arena_take(&self->graph, (size_t)self->largest * sizeof(*self->keep));
    self->partner = xm_arena_take(&self->graph, (size_t)self->largest * sizeof(*self->partner));
    return self->graph.failed ? ap_reduce_no_memory() : XM_OK;
}

/* Ties a node made of an edge's cells to the edge's k-th node: a table that is 0 where the cell has
 * the node's strategy, and forbids all else. `inner` is the stride of node k in the row-major
 * cells. */
static xm_status_t tie(ap_cfn_reduction_t *self, size_t edge, int made, size_t k)
{
    const int *scope = self->cfn->scope + self->cfn->scope_at[edge];
    int size = self->node[scope[k]].size, cells = self->node[made].size, inner = 1;
    double *table = malloc((size_t)size * (size_t)cells * sizeof(double));

    if (table == NULL) {
        return ap_reduce_no_memory();
    }
    /* The nodes after the k-th vary faster. */
    for (size_t j = k + 1; j < 3; ++j) {
        inner *= self->node[scope[j]].size;
    }
    for (int s = 0; s < size; ++s) {
        for (int cell = 0; cell < cells; ++cell) {
            table[(size_t)s * (size_t)cells + (size_t)cell] =
                cell / inner % size == s ? 0.0 : HUGE_VAL;
        }
    }
    return ap_reduce_add_edge(self, scope[k], made, table);
}

/* Adds an edge of two nodes to the one that is between them already, if there is one; `mark` has
 * those of a. Parallel edges add up cell by cell, and later steps can rely on one edge per pair. */
static xm_status_t join(ap_cfn_reduction_t *self, size_t edge, int a, int b)
{
    const int *scope = self->cfn->scope + self->cfn->scope_at[edge];
    const int64_t *cells = self->cfn->cells + self->cfn->cell_at[edge];
    bool swapped = scope[0] != a;
    int rows = self->node[a].size, columns = self->node[b].size;
    double *table = self->mark[b] >= 0 ? self->edge[self->mark[b]].table
                                       : calloc((size_t)rows * (size_t)columns, sizeof(double));

    if (table == NULL) {
        return ap_reduce_no_memory();
    }
    for (int s = 0; s < rows; ++s) {
        for (int t = 0; t < columns; ++t) {
            size_t from = swapped ? (size_t)t * (size_t)rows + (size_t)s
                                  : (size_t)s * (size_t)columns + (size_t)t;

            table[(size_t)s * (size_t)columns + (size_t)t] += to_cost(cells[from]);
        }
    }
    /* The edge was there, and its table has been added to. */
    if (self->mark[b] >= 0) {
        return XM_OK;
    }
    self->mark[b] = self->edges;
    return ap_reduce_add_edge(self, a, b, table);
}

/* Makes the edges. They are gathered by their lower node first, so that parallel edges are found
 * with one mark per neighbour: the whole takes time linear in the cells, where a search among a
 * node's edges would be quadratic in its degree. */
static xm_status_t make_edges(ap_cfn_reduction_t *self)
{
    const ap_cfn_t *cfn = self->cfn;
    int *first = xm_arena_take(&self->graph, cfn->nodes * sizeof(*first)); /* by lower node */
    int *next = xm_arena_take(&self->graph, cfn->edges * sizeof(*next));
    int made = (int)cfn->nodes;
    xm_status_t status = XM_OK;

    if (self->graph.failed) {
        return ap_reduce_no_memory();
    }
    for (size_t n = 0; n < cfn->nodes; ++n) {
        first[n] = -1;
    }
    for (size_t k = 0; status == XM_OK && k < cfn->edges; ++k) {
        size_t edge = cfn->edges - 1 - k; /* so that the lists ascend */
        const int *scope = cfn->scope + cfn->scope_at[edge];

        if (arity_of(cfn, edge) == 1) {
            for (int s = 0; s < self->node[scope[0]].size; ++s) {
                self->node[scope[0]].cost[s] += to_cost(cfn->cells[cfn->cell_at[edge] + (size_t)s]);
            }
        } else if (arity_of(cfn, edge) == 2) {
            int lower = scope[0] < scope[1] ? scope[0] : scope[1];

            next[edge] = first[lower];
            first[lower] = (int)edge;
        }
    }
    for (size_t n = 0; n < cfn->nodes; ++n) {
        for (int edge = first[n]; status == XM_OK && edge >= 0; edge = next[edge]) {
            const int *scope = cfn->scope + cfn->scope_at[edge];

            status = join(self, (size_t)edge, (int)n, scope[0] == (int)n ? scope[1] : scope[0]);
        }
        /* The marks go back to -1, for these neighbours only. */
        for (int edge = first[n]; edge >= 0; edge = next[edge]) {
            const int *scope = cfn->scope + cfn->scope_at[edge];

            self->mark[scope[0] == (int)n ? scope[1] : scope[0]] = -1;
        }
    }
    for (size_t edge = 0; status == XM_OK && edge < cfn->edges; ++edge) {
        if (arity_of(cfn, edge) == 3) {
            for (size_t k = 0; status == XM_OK && k < 3; ++k) {
                status = tie(self, edge, made, k);
            }
            ++made;
        }
    }
    return status;
}

/* The first step: values of infinite cost go, and an empty node ends the presolve with its
 * number. */
static xm_status_t drop_infinite(ap_cfn_reduction_t *self)
{
    xm_status_t status = XM_OK;

    for (int n = 0; status == XM_OK && n < self->nodes; ++n) {
        const ap_reduce_node_t *node = &self->node[n];

        for (int s = 0; s < node->size; ++s) {
            self->keep[s] = node->cost[s] < HUGE_VAL;
        }
        status = ap_reduce_shrink(self, n, self->keep);
    }
    return status;
}

/* Writes down what is left as a core. Variables are numbered in the order of the nodes, so
 * neighbouring operators stay neighbours in memory and in the order of the sweeps. Links are turned
 * so that a < b, as the core demands. */
xm_status_t ap_reduce_make_core(ap_cfn_reduction_t *self)
{
    ap_cfn_core_size_t size = {.times = self->times};
    ap_cfn_core_maker_t maker;
    int *number = self->mark; /* of a node among the variables */
    xm_status_t status;

    /* The sizes are counted first; the core's maker allocates once. */
    for (int n = 0; n < self->nodes; ++n) {
        const ap_reduce_node_t *node = &self->node[n];

        number[n] = node->gone ? -1 : size.variables++;
        if (!node->gone) {
            size.values += (size_t)node->size;
            size.segments += (size_t)node->segments;
            size.usages += (size_t)node->segments * (size_t)node->size;
        }
    }
    for (int e = 0; e < self->edges; ++e) {
        const ap_reduce_edge_t *edge = &self->edge[e];

        if (!edge->gone) {
            ++size.links;
            size.cells += (size_t)self->node[edge->a].size * (size_t)self->node[edge->b].size;
        }
    }
    self->root = xm_arena_take(&self->pool, (size_t)size.variables * sizeof(*self->root));
    if (self->pool.failed) {
        return ap_reduce_no_memory();
    }
    status = ap_cfn_core_begin(&size, &maker);
    if (status != XM_OK) {
        return status;
    }
    /* Capacities, variables with their segments, and links, each in the order that the maker
     * wants. */
    for (int t = 0; t < self->times; ++t) {
        maker.capacity[t] = self->capacity[t];
        maker.when[t] = self->when[t];
    }
    for (int n = 0; n < self->nodes; ++n) {
        const ap_reduce_node_t *node = &self->node[n];
        size_t bytes = (size_t)node->size * sizeof(double);

        if (!node->gone) {
            /* The way back needs to know which node a variable was. */
            self->root[number[n]] = n;
            memcpy(ap_cfn_core_add_variable(&maker, node->size), node->cost, bytes);
            for (int k = 0; k < node->segments; ++k) {
                const ap_reduce_segment_t *segment = &node->segment[k];

                memcpy(ap_cfn_core_add_segment(&maker, segment->from, segment->to), segment->usage,
                       bytes);
            }
        }
    }
    for (int e = 0; e < self->edges; ++e) {
        const ap_reduce_edge_t *edge = &self->edge[e];

        if (!edge->gone) {
            int a = number[edge->a], b = number[edge->b];
            int rows = self->node[edge->a].size, columns = self->node[edge->b].size;
            double *table = ap_cfn_core_add_link(&maker, a < b ? a : b, a < b ? b : a);

            for (int s = 0; s < rows; ++s) {
                for (int t = 0; t < columns; ++t) {
                    table[a < b ? (size_t)s * (size_t)columns + (size_t)t
                                : (size_t)t * (size_t)rows + (size_t)s] =
                        edge->table[(size_t)s * (size_t)columns + (size_t)t];
                }
            }
        }
    }
    self->core = ap_cfn_core_finish(&maker);
    self->core->constant = self->constant;
    /* The graph may be worked on further, which finds every mark at -1. */
    for (int n = 0; n < self->nodes; ++n) {
        self->mark[n] = -1;
    }
    return XM_OK;
}

/* Frees the graph as soon as the core has all that matters. The way back needs only the log and the
 * origins, and the tables are by far the largest part. */
static void free_graph(ap_cfn_reduction_t *self)
{
    for (int e = 0; e < self->edges; ++e) {
        free(self->edge[e].table);
    }
    free(self->edge);
    self->edge = NULL;
    self->edges = 0;
    for (int n = 0; self->node != NULL && n < self->nodes; ++n) {
        free(self->node[n].edge);
        self->node[n].edge = NULL;
    }
    xm_arena_clear(&self->graph);
    free(self->work);
    self->work = NULL;
}

/* First the graph, with edges of two nodes only. Then everything goes that is impossible on its
 * own: forbidden values, and those too large to fit. Propagation comes before the profile of usage,
 * because contracted nodes share one profile then, and after it again, because the profile drops
 * values that do not fit. Dominance needs final usages, since a value that uses less must not be
 * dropped for one that is only cheaper. What is left goes to the solver. */
static xm_status_t (*const steps[])(ap_cfn_reduction_t *) = {
    make_nodes,          make_edges,
    drop_infinite,       ap_reduce_fit,
    ap_reduce_propagate, ap_reduce_profile,
    ap_reduce_propagate, ap_reduce_values,
    ap_reduce_make_core, ap_reduce_fit_together};

xm_status_t ap_cfn_reduce(const ap_cfn_t *cfn, double work, int64_t deadline, bool noted,
                          ap_cfn_reduction_t **reduction)
{
    ap_cfn_reduction_t *self = calloc(1, sizeof(*self));
    xm_status_t status = XM_OK;

    if (self == NULL) {
        return ap_reduce_no_memory();
    }
    self->cfn = cfn;
    self->most = work;
    self->deadline = deadline;
    self->noted = noted;
    for (size_t k = 0; status == XM_OK && k < sizeof(steps) / sizeof(steps[0]); ++k) {
        status = steps[k](self);
    }
    free_graph(self);
    if (status != XM_OK) {
        ap_cfn_reduction_destroy(self);
        return status;
    }
    *reduction = self;
    return XM_OK;
}

ap_cfn_cut_t ap_cfn_reduction_cut(const ap_cfn_reduction_t *reduction, double *spent)
{
    *spent = reduction->spent;
    return reduction->cut;
}

const int (*ap_cfn_reduction_events(const ap_cfn_reduction_t *reduction, size_t *count))[4]
{
    *count = reduction->events;
    return (const int(*)[4])reduction->event;
}

const ap_cfn_core_t *ap_cfn_reduction_core(const ap_cfn_reduction_t *reduction)
{
    return reduction->core;
}

/* Replays the log backwards. The last step's leaders are in the core, and each earlier step's
 * leaders are known when its turn comes. Strategies are those of the original problem throughout,
 * so that the log need not follow renumbered values. */
void ap_cfn_restore(const ap_cfn_reduction_t *reduction, const int *value, int *choice)
{
    int *strategy = reduction->mark; /* also of the nodes made of edges */

    for (int v = 0; v < reduction->core->variables; ++v) {
        const ap_reduce_node_t *node = &reduction->node[reduction->root[v]];

        strategy[reduction->root[v]] = node->origin[value[v]];
    }
    for (int k = reduction->steps - 1; k >= 0; --k) {
        const ap_reduce_step_t *step = &reduction->step[k];
        size_t at = 0;

        for (int leader = 0; leader < step->leaders; ++leader) {
            at = at * (size_t)step->width + (size_t)strategy[step->leader[leader]];
        }
        strategy[step->node] = step->value[at];
    }
    /* The nodes made of edges come last, so the choice is the front of the array. */
    memcpy(choice, strategy, reduction->cfn->nodes * sizeof(*choice));
}

/* Translates a choice for the whole problem into one of the core's variables. Nothing is checked:
 * the presolve may have dropped the strategy (dominated, or replaced by an equal one), and value 0
 * then stands in. The result is a start for the search and need not be a solution. */
void ap_cfn_adopt(const ap_cfn_reduction_t *reduction, const int *choice, int *value)
{
    for (int v = 0; v < reduction->core->variables; ++v) {
        int root = reduction->root[v];
        const ap_reduce_node_t *node = &reduction->node[root];

        value[v] = 0; /* also of nodes made of edges, which the search puts right */
        for (int x = 0; x < node->size && (size_t)root < reduction->cfn->nodes; ++x) {
            value[v] = node->origin[x] == choice[root] ? x : value[v];
        }
    }
}

/* Accepts a reduction that is only partly made, and NULL. */
void ap_cfn_reduction_destroy(ap_cfn_reduction_t *reduction)
{
    if (reduction == NULL) {
        return;
    }
    free_graph(reduction);
    free(reduction->step);
    free(reduction->event);
    xm_arena_clear(&reduction->pool);
    ap_cfn_core_destroy(reduction->core);
    free(reduction);
}
