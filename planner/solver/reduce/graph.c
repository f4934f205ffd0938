/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arc consistency and functional contraction on the presolve's graph. Both work from one list of
 * edges to look at again, as AC-3 (Mackworth, 1977) does: an edge is put on it when one of its ends
 * changes. The list ends because every change removes a value, an edge or a node.
 *
 * Contraction is what makes contest problems small: where each value of x leaves one partner in y,
 * y is a function of x and all that y has moves to x. A table of (x, z) can be larger than the one
 * of (y, z) that it replaces, which is worth it, for y with its edges is gone.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/solver/reduce/reduce_private.h"
#include "planner/solver/network.h"

xm_status_t ap_reduce_no_memory(void)
{
    return XM_NO_MEMORY("the presolve");
}

/* Nanoseconds of a usual core per cell, and cells that take as long as the rest of a look, and as
 * going to a neighbour. */
static const double cell_time = 0.6, look_cells = 50.0, neighbour_cells = 8.0;

void ap_reduce_spend(ap_cfn_reduction_t *self, double cells)
{
    self->spent += cell_time * cells;
}

/* The first limit that was met stays: from there on nothing more is done. */
bool ap_reduce_goes_on(ap_cfn_reduction_t *self)
{
    if (self->cut == AP_CFN_CUT_NOT) {
        self->cut = self->spent >= self->most         ? AP_CFN_CUT_BY_WORK
                    : xm_clock_ns() >= self->deadline ? AP_CFN_CUT_BY_CLOCK
                                                      : AP_CFN_CUT_NOT;
    }
    return self->cut == AP_CFN_CUT_NOT;
}

/* An edge is on the list at most once; `queued` says so. */
xm_status_t ap_reduce_touch(ap_cfn_reduction_t *self, int edge)
{
    if (self->edge[edge].queued || self->edge[edge].gone) {
        return XM_OK;
    }
    if (!xm_array_reserve(&self->work, &self->work_capacity, (size_t)self->work_count + 1,
                          sizeof(int))) {
        return ap_reduce_no_memory();
    }
    self->edge[edge].queued = true;
    self->work[self->work_count++] = edge;
    return XM_OK;
}

static xm_status_t touch_node(ap_cfn_reduction_t *self, int node)
{
    xm_status_t status = XM_OK;

    for (int k = 0; status == XM_OK && k < self->node[node].degree; ++k) {
        status = ap_reduce_touch(self, self->node[node].edge[k]);
    }
    return status;
}

/* Lists may keep edges that are gone, until ap_reduce_tidy() comes by: removing one at once would
 * mean a search in both ends' lists. */
static xm_status_t list_edge(ap_cfn_reduction_t *self, int node, int edge)
{
    ap_reduce_node_t *n = &self->node[node];

    if (!xm_array_reserve(&n->edge, &n->capacity, (size_t)n->degree + 1, sizeof(int))) {
        return ap_reduce_no_memory();
    }
    n->edge[n->degree++] = edge;
    return XM_OK;
}

/* Takes the table over, also when it fails. A new edge is put on the work list, since it may be
 * functional or separable. */
xm_status_t ap_reduce_add_edge(ap_cfn_reduction_t *self, int a, int b, double *table)
{
    xm_status_t status;

    if (!xm_array_reserve(&self->edge, &self->edge_capacity, (size_t)self->edges + 1,
                          sizeof(*self->edge))) {
        free(table);
        return ap_reduce_no_memory();
    }
    self->edge[self->edges++] = (ap_reduce_edge_t){.a = a, .b = b, .table = table};
    status = list_edge(self, a, self->edges - 1);
    if (status == XM_OK) {
        status = list_edge(self, b, self->edges - 1);
    }
    return status == XM_OK ? ap_reduce_touch(self, self->edges - 1) : status;
}

xm_status_t ap_reduce_join(ap_cfn_reduction_t *self, int a, int b, int *edge)
{
    double *table;
    xm_status_t status;

    if (*edge >= 0) {
        return ap_reduce_touch(self, *edge);
    }
    table = calloc((size_t)self->node[a].size * (size_t)self->node[b].size, sizeof(*table));
    if (table == NULL) {
        return ap_reduce_no_memory();
    }
    status = ap_reduce_add_edge(self, a, b, table);
    *edge = status == XM_OK ? self->edges - 1 : -1;
    return status;
}

void ap_reduce_drop_edge(ap_cfn_reduction_t *self, int edge)
{
    free(self->edge[edge].table);
    self->edge[edge].table = NULL;
    self->edge[edge].gone = true;
}

/* Keeps the order of the edges that are left, so that later passes see them in the order in
 * which they were made. */
void ap_reduce_tidy(ap_cfn_reduction_t *self, int node)
{
    ap_reduce_node_t *n = &self->node[node];
    int kept = 0;

    for (int k = 0; k < n->degree; ++k) {
        if (!self->edge[n->edge[k]].gone) {
            n->edge[kept++] = n->edge[k];
        }
    }
    n->degree = kept;
}

xm_status_t ap_reduce_log(ap_cfn_reduction_t *self, const ap_reduce_step_t *step)
{
    if (!xm_array_reserve(&self->step, &self->step_capacity, (size_t)self->steps + 1,
                          sizeof(*self->step))) {
        return ap_reduce_no_memory();
    }
    self->step[self->steps++] = *step;
    return XM_OK;
}

xm_status_t ap_reduce_note(ap_cfn_reduction_t *self, ap_cfn_event_t kind, int node, int x, int y)
{
    if (!self->noted) {
        return XM_OK;
    }
    if (!xm_array_reserve(&self->event, &self->event_capacity, self->events + 1,
                          sizeof(*self->event))) {
        return ap_reduce_no_memory();
    }
    memcpy(self->event[self->events++], (const int[]){(int)kind, node, x, y}, sizeof(*self->event));
    return XM_OK;
}

/* Notes the values of a node that go. */
static xm_status_t note_drops(ap_cfn_reduction_t *self, int node, const bool *keep)
{
    const ap_reduce_node_t *n = &self->node[node];
    xm_status_t status = XM_OK;

    for (int s = 0; status == XM_OK && s < n->size; ++s) {
        if (!keep[s]) {
            status = ap_reduce_note(self, AP_CFN_EVENT_DROP, node, n->origin[s],
                                    self->better != NULL ? n->origin[self->better[s]] : -1);
        }
    }
    return status;
}

/* Moves the kept values of a vector to its front. */
static void pack(double *values, int size, const bool *keep)
{
    int kept = 0;

    for (int s = 0; s < size; ++s) {
        if (keep[s]) {
            values[kept++] = values[s];
        }
    }
}

/* Drops values of a node: rows or columns of its edges' tables, its usages, costs and origins all
 * lose the same ones. Everything moves to the front in place, so no memory is needed, and all edges
 * of the node go back to the work list. */
xm_status_t ap_reduce_shrink(ap_cfn_reduction_t *self, int node, const bool *keep)
{
    ap_reduce_node_t *n = &self->node[node];
    xm_status_t status = note_drops(self, node, keep);
    int kept = 0;

    for (int s = 0; s < n->size; ++s) {
        kept += keep[s];
    }
    /* Nothing goes, so no edge needs another look. */
    if (kept == n->size) {
        return XM_OK;
    }
    if (kept == 0) {
        return XM_NO_SOLUTION("no choice of finite cost: nothing is left for node %d", node);
    }
    ap_reduce_tidy(self, node);
    for (int k = 0; k < n->degree; ++k) {
        ap_reduce_edge_t *edge = &self->edge[n->edge[k]];
        int width = self->node[edge->b].size;

        ap_reduce_spend(self, (double)self->node[edge->a].size * width);
        /* Rows are moved as a whole. Columns are packed row by row into a table that gets narrower;
         * a row is never written behind where it is read, so nothing is overwritten too early. */
        if (edge->a == node) {
            double *to = edge->table;

            for (int s = 0; s < n->size; ++s) {
                if (keep[s]) {
                    memmove(to, edge->table + (size_t)s * (size_t)width,
                            (size_t)width * sizeof(double));
                    to += width;
                }
            }
        } else {
            for (int s = 0; s < self->node[edge->a].size; ++s) {
                double *row = edge->table + (size_t)s * (size_t)width;

                pack(row, width, keep);
                memmove(edge->table + (size_t)s * (size_t)kept, row, (size_t)kept * sizeof(double));
            }
        }
    }
    for (int k = 0; k < n->segments; ++k) {
        pack(n->segment[k].usage, n->size, keep);
    }
    pack(n->cost, n->size, keep);
    for (int s = 0, to = 0; s < n->size; ++s) {
        if (keep[s]) {
            n->origin[to++] = n->origin[s];
        }
    }
    /* Neighbours may have lost their only partners, so every edge of this node is looked at
     * again. */
    n->size = kept;
    return status == XM_OK ? touch_node(self, node) : status;
}

/* Removes the values of both ends that have no finite partner. Such a value can be in no solution
 * of finite cost. The second end is looked at after the first has shrunk. */
static xm_status_t make_consistent(ap_cfn_reduction_t *self, int edge)
{
    bool *keep = self->keep;
    xm_status_t status = XM_OK;

    for (int end = 0; status == XM_OK && end < 2; ++end) {
        const ap_reduce_edge_t *e = &self->edge[edge];
        int node = end ? e->b : e->a, other = end ? e->a : e->b;
        int size = self->node[node].size;
        bool all = true;

        for (int s = 0; s < size; ++s) {
            keep[s] = false;
            for (int t = 0; t < self->node[other].size && !keep[s]; ++t) {
                keep[s] = *ap_reduce_cell(self, e, node, s, t) < HUGE_VAL;
            }
            all = all && keep[s];
        }
        if (!all) {
            status = ap_reduce_shrink(self, node, keep);
        }
    }
    return status;
}

/* Moves a table that is the sum of a vector per end into the nodes, and tells whether it was one.
 * Costs are integers in doubles, so the comparison is exact; a rounded test would change the
 * optimum. A table with a forbidden cell never is such a sum. The nodes' costs may become negative
 * by that, which no later step minds. */
static bool separate(ap_cfn_reduction_t *self, int edge)
{
    ap_reduce_edge_t *e = &self->edge[edge];
    ap_reduce_node_t *a = &self->node[e->a], *b = &self->node[e->b];
    double corner = e->table[0];

    for (int s = 0; s < a->size; ++s) {
        const double *row = e->table + (size_t)s * (size_t)b->size;

        for (int t = 0; t < b->size; ++t) {
            /* A sum has equal differences between any two columns in all rows. */
            if (!(row[t] < HUGE_VAL) || row[t] - row[0] != e->table[t] - corner) {
                return false;
            }
        }
    }
    for (int t = 0; t < b->size; ++t) {
        b->cost[t] += e->table[t];
    }
    for (int s = 0; s < a->size; ++s) {
        /* The corner is in the first row already, so it is taken off here once. */
        a->cost[s] += e->table[(size_t)s * (size_t)b->size] - corner;
    }
    ap_reduce_drop_edge(self, edge);
    return true;
}

/* Tells whether every value of `x` leaves one partner in the other end, and writes it to `partner`.
 * Consistency came before, so there is at least one. */
static bool is_functional(const ap_cfn_reduction_t *self, int edge, int x)
{
    int *f = self->partner;
    const ap_reduce_edge_t *e = &self->edge[edge];
    int y = ap_reduce_other(e, x);

    for (int s = 0; s < self->node[x].size; ++s) {
        f[s] = -1;
        for (int t = 0; t < self->node[y].size; ++t) {
            if (*ap_reduce_cell(self, e, x, s, t) < HUGE_VAL) {
                /* A second partner: y is free to choose here. */
                if (f[s] >= 0) {
                    return false;
                }
                f[s] = t;
            }
        }
    }
    return true;
}

/* Replaces the edge (y, z) by (x, z), or adds it to the one that exists: z then sees, for each
 * value of x, what it saw of f(x). `mark` has the edges of x by their other ends. */
static xm_status_t move_edge(ap_cfn_reduction_t *self, int edge, int x, int y)
{
    const int *f = self->partner;
    int z = ap_reduce_other(&self->edge[edge], y), there = self->mark[z];
    xm_status_t status = ap_reduce_join(self, x, z, &there);

    ap_reduce_spend(self, (double)self->node[x].size * self->node[z].size);

    for (int s = 0; status == XM_OK && s < self->node[x].size; ++s) {
        for (int t = 0; t < self->node[z].size; ++t) {
            *ap_reduce_cell(self, &self->edge[there], x, s, t) +=
                *ap_reduce_cell(self, &self->edge[edge], y, f[s], t);
        }
    }
    /* A second edge of y to the same z finds this one. */
    self->mark[z] = there;
    ap_reduce_drop_edge(self, edge);
    return status;
}

/* Puts y = f(x) into x: its costs, the tied edge's cells, and its other edges. Usage needs no move
 * here, as profiles are made later from the log. Some values of x may become infinite when their
 * partners exclude each other; those go at the end. */
static xm_status_t contract(ap_cfn_reduction_t *self, int edge, int x)
{
    const int *f = self->partner;
    int y = ap_reduce_other(&self->edge[edge], x);
    ap_reduce_node_t *nx = &self->node[x], *ny = &self->node[y];
    ap_reduce_step_t step = {.node = y, .leaders = 1, .leader = {x, -1}, .width = 1};
    xm_status_t status;

    step.value = xm_arena_take(&self->pool, (size_t)self->strategies[x] * sizeof(int));
    if (step.value == NULL) {
        return ap_reduce_no_memory();
    }
    /* The log speaks of original strategies; those that x does not have any more stay -1. */
    for (int s = 0; s < self->strategies[x]; ++s) {
        step.value[s] = -1;
    }
    for (int s = 0; s < nx->size; ++s) {
        /* A value of x now costs what its partner and the cell between them cost as well. */
        nx->cost[s] += *ap_reduce_cell(self, &self->edge[edge], x, s, f[s]) + ny->cost[f[s]];
        step.value[nx->origin[s]] = ny->origin[f[s]];
    }
    /* The tied edge has done its work: its costs are in x, and the log knows f. */
    status = ap_reduce_log(self, &step);
    if (status == XM_OK) {
        status = ap_reduce_note(self, AP_CFN_EVENT_CONTRACT, y, x, 0);
    }
    ap_reduce_drop_edge(self, edge);
    ap_reduce_spend(self, neighbour_cells * (nx->degree + ny->degree));
    ap_reduce_tidy(self, x);
    ap_reduce_tidy(self, y);
    for (int k = 0; k < nx->degree; ++k) {
        self->mark[ap_reduce_other(&self->edge[nx->edge[k]], x)] = nx->edge[k];
    }
    for (int k = 0; status == XM_OK && k < ny->degree; ++k) {
        status = move_edge(self, ny->edge[k], x, y);
    }
    for (int k = 0; k < nx->degree; ++k) {
        self->mark[ap_reduce_other(&self->edge[nx->edge[k]], x)] = -1;
    }
    /* y's usage is found later by way of the log. */
    ny->gone = true;
    ny->degree = 0;
    for (int s = 0; s < nx->size; ++s) {
        self->keep[s] = nx->cost[s] < HUGE_VAL;
    }
    return status == XM_OK ? ap_reduce_shrink(self, x, self->keep) : status;
}

/* Once usages have been put together, a node that has some stays where it is: its profile could not
 * be moved without being merged into another one. */
static bool may_go(const ap_cfn_reduction_t *self, int node)
{
    return !self->profiled || self->node[node].segments == 0;
}

/* Looks at one edge. The cheap tests come first; after a contraction or a separation the edge is
 * gone. A node with one value is covered by both: its tables are sums, so it loses its edges. */
static xm_status_t look_at(ap_cfn_reduction_t *self, int edge)
{
    xm_status_t status = make_consistent(self, edge);
    int a = self->edge[edge].a, b = self->edge[edge].b;

    ap_reduce_spend(self, look_cells + (double)self->node[a].size * self->node[b].size);
    if (status != XM_OK || self->edge[edge].gone) {
        return status;
    }
    if (separate(self, edge)) {
        return ap_reduce_note(self, AP_CFN_EVENT_SEPARATE, a, b, 0);
    }
    /* Both directions are tried; with as many values on both sides either may hold. */
    if (may_go(self, b) && is_functional(self, edge, a)) {
        return contract(self, edge, a);
    }
    if (may_go(self, a) && is_functional(self, edge, b)) {
        return contract(self, edge, b);
    }
    return XM_OK;
}

/* Works until the list is empty or the limits are met. To stop early is sound: every state in
 * between is a problem with the same optimum. */
xm_status_t ap_reduce_propagate(ap_cfn_reduction_t *self)
{
    xm_status_t status = XM_OK;

    while (status == XM_OK && self->work_count > 0 && ap_reduce_goes_on(self)) {
        /* Last in, first out: what has just changed is still in the cache. */
        int edge = self->work[--self->work_count];

        self->edge[edge].queued = false;
        if (!self->edge[edge].gone) {
            status = look_at(self, edge);
        }
    }
    return status;
}
