/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The presolve's last step: dominated values, and nodes that nothing but their neighbours see. It
 * comes last because usage decides about both: a value dominates another only if it uses no more at
 * any time, and a node with usage cannot be eliminated, as its choice counts at the limit and not
 * only for its neighbours.
 */

#include <math.h>
#include <stdlib.h>

#include "comm/base.h"
#include "planner/solver/reduce/reduce_private.h"
#include "planner/solver/network.h"

/* In larger nodes, comparing all pairs of values takes longer than it saves. */
enum { DOMINANCE_SIZE = 256 };

/* Tells whether a node's value s never does better than t: dead-end elimination (Goldstein, 1994),
 * with usage. Whatever the neighbours have, replacing s by t saves at least `gain`, and uses no
 * more. The test takes the worst neighbour value of each edge by itself, so it is sufficient but
 * not necessary. */
static bool is_dominated(ap_cfn_reduction_t *self, int node, int s, int t)
{
    const ap_reduce_node_t *n = &self->node[node];
    double gain = n->cost[s] - n->cost[t]; /* of taking t, at least */

    for (int k = 0; k < n->segments; ++k) {
        if (n->segment[k].usage[t] > n->segment[k].usage[s]) {
            return false;
        }
    }
    for (int k = 0; k < n->degree; ++k) {
        const ap_reduce_edge_t *edge = &self->edge[n->edge[k]];
        int size = self->node[ap_reduce_other(edge, node)].size;
        double worst = HUGE_VAL;

        ap_reduce_spend(self, size);
        for (int u = 0; u < size; ++u) {
            double from = *ap_reduce_cell(self, edge, node, s, u);
            double to = *ap_reduce_cell(self, edge, node, t, u);

            if (from < HUGE_VAL && from - to < worst) { /* to may be infinite */
                worst = from - to;
            }
        }
        gain += worst;
        /* t is forbidden where s is allowed: that one may be needed. */
        if (!(gain > -HUGE_VAL)) {
            return false;
        }
    }
    return gain >= 0.0;
}

/* Drops dominated values. Of two equal values one stays: t must be kept when it drops s. Each
 * edge's table is scanned for each pair, hence the limit on the node's size. */
static xm_status_t drop_dominated(ap_cfn_reduction_t *self, int node, bool *changed)
{
    const ap_reduce_node_t *n = &self->node[node];
    bool keep[DOMINANCE_SIZE];
    int better[DOMINANCE_SIZE] = {0};
    xm_status_t status;

    if (n->size > DOMINANCE_SIZE || n->size == 1) {
        return XM_OK;
    }
    for (int s = 0; s < n->size; ++s) {
        keep[s] = true;
    }
    for (int s = 0; s < n->size; ++s) {
        for (int t = 0; t < n->size && keep[s]; ++t) {
            if (s != t && keep[t] && is_dominated(self, node, s, t)) {
                keep[s] = false;
                better[s] = t;
                *changed = true;
            }
        }
    }
    self->better = better;
    status = ap_reduce_shrink(self, node, keep);
    self->better = NULL;
    return status;
}

/* Removes a node that has no usage and at most two neighbours; its best answer to them goes into
 * their table. This is bucket elimination of width two, which never makes a table that is not
 * between two existing nodes. The log gets the answer for every pair, of equal answers the
 * first. */
static xm_status_t eliminate(ap_cfn_reduction_t *self, int node)
{
    ap_reduce_node_t *n = &self->node[node];
    ap_reduce_step_t step = {.node = node, .leaders = n->degree, .leader = {-1, -1}, .width = 1};
    const ap_reduce_edge_t *edge[2] = {NULL, NULL};
    const ap_reduce_node_t *leader[2] = {NULL, NULL};
    int size[2] = {1, 1}, there = -1;
    double *table;
    xm_status_t status;

    for (int k = 0; k < n->degree; ++k) {
        edge[k] = &self->edge[n->edge[k]];
        step.leader[k] = ap_reduce_other(edge[k], node);
        leader[k] = &self->node[step.leader[k]];
        size[k] = leader[k]->size;
    }
    /* The log is a table over both leaders' original strategies. */
    step.width = step.leaders == 2 ? self->strategies[step.leader[1]] : 1;
    step.value = xm_arena_take(&self->pool,
                               (step.leaders > 0 ? (size_t)self->strategies[step.leader[0]] : 1) *
                                   (size_t)step.width * sizeof(int));
    table = malloc((size_t)size[0] * (size_t)size[1] * sizeof(double));
    if (step.value == NULL || table == NULL) {
        free(table);
        return ap_reduce_no_memory();
    }
    ap_reduce_spend(self, (double)size[0] * size[1] * n->size);
    for (int i = 0; i < size[0]; ++i) {
        for (int j = 0; j < size[1]; ++j) {
            double best = HUGE_VAL;
            /* The log is indexed by original strategies; the values that a leader has lost are
             * never asked for. */
            size_t at = step.leaders > 0 ? (size_t)leader[0]->origin[i] * (size_t)step.width +
                                               (step.leaders > 1 ? (size_t)leader[1]->origin[j] : 0)
                                         : 0;

            step.value[at] = n->origin[0];
            for (int s = 0; s < n->size; ++s) {
                double cost = n->cost[s];

                cost += step.leaders > 0 ? *ap_reduce_cell(self, edge[0], node, s, i) : 0.0;
                cost += step.leaders > 1 ? *ap_reduce_cell(self, edge[1], node, s, j) : 0.0;
                if (cost < best) {
                    best = cost;
                    step.value[at] = n->origin[s];
                }
            }
            table[(size_t)i * (size_t)size[1] + (size_t)j] = best;
        }
    }
    status = ap_reduce_log(self, &step);
    if (status == XM_OK) {
        status = ap_reduce_note(self, AP_CFN_EVENT_ELIMINATE, node, 0, 0);
    }
    for (int k = 0; k < step.leaders; ++k) {
        ap_reduce_drop_edge(self, n->edge[k]);
    }
    n->gone = true;
    n->degree = 0;
    /* Without a neighbour, what is left is a constant; with one, it is a cost of that neighbour's
     * values. */
    if (status != XM_OK || step.leaders < 2) {
        if (step.leaders == 0) {
            self->constant += table[0];
        }
        for (int i = 0; step.leaders == 1 && i < size[0]; ++i) {
            self->node[step.leader[0]].cost[i] += table[i];
        }
        free(table);
        return status;
    }
    /* The table joins the edge between both neighbours, or becomes one. */
    ap_reduce_tidy(self, step.leader[0]);
    for (int k = 0; k < leader[0]->degree; ++k) {
        if (ap_reduce_other(&self->edge[leader[0]->edge[k]], step.leader[0]) == step.leader[1]) {
            there = leader[0]->edge[k];
        }
    }
    status = ap_reduce_join(self, step.leader[0], step.leader[1], &there);
    for (int i = 0; status == XM_OK && i < size[0]; ++i) {
        for (int j = 0; j < size[1]; ++j) {
            *ap_reduce_cell(self, &self->edge[there], step.leader[0], i, j) +=
                table[(size_t)i * (size_t)size[1] + (size_t)j];
        }
    }
    free(table);
    return status;
}

/* Goes on until a round changes nothing: an elimination can make a neighbour's degree small, and a
 * dropped value can make another one dominated or an edge functional. Every change removes
 * something, so the rounds end. */
xm_status_t ap_reduce_values(ap_cfn_reduction_t *self)
{
    xm_status_t status = XM_OK;
    bool changed = true;

    while (status == XM_OK && changed && ap_reduce_goes_on(self)) {
        changed = false;
        for (int n = 0; status == XM_OK && n < self->nodes && ap_reduce_goes_on(self); ++n) {
            if (self->node[n].gone) {
                continue;
            }
            ap_reduce_tidy(self, n);
            /* Elimination first: it removes the whole node, with all its values. */
            if (self->node[n].segments == 0 && self->node[n].degree <= 2) {
                status = eliminate(self, n);
                changed = true;
            } else {
                status = drop_dominated(self, n, &changed);
            }
        }
        if (status == XM_OK) {
            status = ap_reduce_propagate(self);
        }
    }
    return status;
}
