/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bound for wide problems: min-sum diffusion (see Werner, "A linear programming approach to
 * max-sum problem: a review", 2007), which moves costs between nodes and edges until neighbouring
 * minima agree. It is slower to converge than the sequential message passing of
 * planner/solver/bound/dual.c but takes a dozen lines, works in place on the reduced problem, and
 * leaves it reparametrised, so that elimination and ap_intra_op_fix() can go on with it.
 */

#include "tests/planner/solver/elimination/pairwise_bound.h"

#include <math.h>
#include <stdlib.h>

/* Sweeps over all nodes, as convergence is quick at first and then slow; and passes of local
 * improvement over a decoded assignment. */
enum { SWEEPS = 200, POLISHES = 50 };

/* The cell of an edge by the strategies of the node at hand and of its other end, however the edge
 * is turned. */
static double *cell(const ap_reduced_t *r, const ap_reduced_edge_t *edge, int at, int s, int t)
{
    int columns = r->node[edge->b].size;

    return edge->a == at ? &edge->cost[s * columns + t] : &edge->cost[t * columns + s];
}

static int other_end(const ap_reduced_edge_t *edge, int node)
{
    return edge->a == node ? edge->b : edge->a;
}

/* The minimum of an edge for one strategy of a node: what the edge costs at least with it. */
static double row_minimum(const ap_reduced_t *r, const ap_reduced_edge_t *edge, int n, int s)
{
    int others = r->node[other_end(edge, n)].size;
    double least = HUGE_VAL;

    for (int t = 0; t < others; ++t) {
        least = fmin(least, *cell(r, edge, n, s, t));
    }
    return least;
}

/* Moves cost into, or out of, all cells of a strategy of one end. The node must get the opposite,
 * so that every assignment costs what it did. */
static void shift_row(const ap_reduced_t *r, const ap_reduced_edge_t *edge, int n, int s,
                      double amount)
{
    for (int t = 0; t < r->node[other_end(edge, n)].size; ++t) {
        *cell(r, edge, n, s, t) += amount;
    }
}

/* Collects what the edges of a node can give for each strategy, and shares it out evenly among the
 * node and its edges. Each step keeps the cost of every assignment and never lowers the bound:
 * after collecting, all minima of the edges are 0, so equal shares raise them all alike. */
static void balance(ap_reduced_t *r, int n)
{
    ap_reduced_node_t *node = &r->node[n];
    int live = 0;

    for (int k = 0; k < node->edge_count; ++k) {
        live += !r->edge[node->edges[k]].gone;
    }
    for (int s = 0; s < node->size && live > 0; ++s) {
        double share;

        for (int k = 0; k < node->edge_count; ++k) {
            const ap_reduced_edge_t *edge = &r->edge[node->edges[k]];

            if (!edge->gone) {
                double least = row_minimum(r, edge, n, s);

                node->cost[s] += least;
                shift_row(r, edge, n, s, -least);
            }
        }
        share = node->cost[s] / (live + 1);
        for (int k = 0; k < node->edge_count; ++k) {
            const ap_reduced_edge_t *edge = &r->edge[node->edges[k]];

            if (!edge->gone) {
                shift_row(r, edge, n, s, share);
            }
        }
        node->cost[s] = share;
    }
}

/* The sum of the minima of all nodes and edges. Every assignment pays at least the minimum of each,
 * so this is a lower bound whatever was moved. */
static double current_bound(const ap_reduced_t *r)
{
    double bound = 0;

    for (int n = 0; n < r->nodes; ++n) {
        double least = HUGE_VAL;

        for (int s = 0; s < r->node[n].size && !r->node[n].gone; ++s) {
            least = fmin(least, r->node[n].cost[s]);
        }
        bound += r->node[n].gone ? 0 : least;
    }
    for (int e = 0; e < r->edges; ++e) {
        const ap_reduced_edge_t *edge = &r->edge[e];
        double least = HUGE_VAL;

        for (int s = 0; s < r->node[edge->a].size && !edge->gone; ++s) {
            least = fmin(least, row_minimum(r, edge, edge->a, s));
        }
        bound += edge->gone ? 0 : least;
    }
    return bound;
}

/* The cost of strategy s of node n next to its assigned neighbours: all of them, or those before
 * it, while the others are taken to cost their minimum. */
static double local_cost(const ap_reduced_t *r, int n, int s, const int *assignment, bool all)
{
    const ap_reduced_node_t *node = &r->node[n];
    double cost = node->cost[s];

    for (int k = 0; k < node->edge_count; ++k) {
        const ap_reduced_edge_t *edge = &r->edge[node->edges[k]];
        int other = other_end(edge, n);

        if (edge->gone) {
            continue;
        }
        cost +=
            all || other < n ? *cell(r, edge, n, s, assignment[other]) : row_minimum(r, edge, n, s);
    }
    return cost;
}

/* Gives every node in turn its best strategy. Without `all` this decodes an assignment from the
 * costs alone; with it, it is a pass of coordinate descent, where a strategy must be strictly
 * better to replace the present one, so passes end. */
static bool improve(const ap_reduced_t *r, int *assignment, bool all)
{
    bool changed = false;

    for (int n = 0; n < r->nodes; ++n) {
        int best = all ? assignment[n] : 0;

        for (int s = 0; s < r->node[n].size && !r->node[n].gone; ++s) {
            if (local_cost(r, n, s, assignment, all) < local_cost(r, n, best, assignment, all)) {
                best = s;
            }
        }
        changed = changed || best != assignment[n];
        assignment[n] = best;
    }
    return changed;
}

/* The cost of an assignment in the moved costs, which is its cost in the original ones up to
 * rounding. */
static double assignment_cost(const ap_reduced_t *r, const int *assignment)
{
    double cost = 0;

    for (int n = 0; n < r->nodes; ++n) {
        cost += r->node[n].gone ? 0 : r->node[n].cost[assignment[n]];
    }
    for (int e = 0; e < r->edges; ++e) {
        const ap_reduced_edge_t *edge = &r->edge[e];

        cost += edge->gone ? 0 : *cell(r, edge, edge->a, assignment[edge->a], assignment[edge->b]);
    }
    return cost;
}

static bool met(double cost, double bound, double tolerance)
{
    return cost < HUGE_VAL && cost - bound <= tolerance * fabs(cost);
}

/* Sweeps until bound and cost meet, or the sweeps are used up. Decoding is tried every tenth sweep
 * only, as it costs as much as a sweep and the costs change little in between. */
xm_status_t ap_intra_op_diffuse(ap_reduced_t *reduced, double tolerance, int *assignment,
                                double *cost, double *bound)
{
    int *trial = calloc((size_t)reduced->nodes + 1, sizeof(int));

    if (trial == NULL) {
        return XM_NO_MEMORY("%d nodes", reduced->nodes);
    }
    *cost = HUGE_VAL;
    *bound = -HUGE_VAL;
    for (int sweep = 0; sweep < SWEEPS && !met(*cost, *bound, tolerance); ++sweep) {
        double found;

        for (int n = 0; n < reduced->nodes; ++n) {
            if (!reduced->node[n].gone) {
                balance(reduced, n);
            }
        }
        /* Rounding can lower a bound a little; the best one counts. */
        *bound = fmax(*bound, current_bound(reduced));
        if (sweep % 10 != 9) {
            continue;
        }
        /* The costs alone suggest an assignment, which single changes then improve. */
        (void)improve(reduced, trial, false);
        for (int p = 0; p < POLISHES && improve(reduced, trial, true); ++p) {
        }
        found = assignment_cost(reduced, trial);
        if (found < *cost) {
            *cost = found;
            for (int n = 0; n < reduced->nodes; ++n) {
                assignment[n] = trial[n];
            }
        }
    }
    free(trial);
    return XM_OK;
}

/* The minimum of an edge over all pairs. */
static double edge_minimum(const ap_reduced_t *r, const ap_reduced_edge_t *edge)
{
    double least = HUGE_VAL;

    for (int s = 0; s < r->node[edge->a].size; ++s) {
        least = fmin(least, row_minimum(r, edge, edge->a, s));
    }
    return least;
}

/* Keeps a strategy if the bound, with this strategy in place of the node's minimum, is not above
 * the cost of the known assignment. For each edge at the node the minimum moves to the strategy's
 * own row. Strategies of the known assignment pass the test as well, up to rounding, so no node is
 * left empty. */
xm_status_t ap_intra_op_fix(ap_reduced_t *reduced, double cost)
{
    /* Costs were moved about: leave room for rounding. */
    const double room = cost - current_bound(reduced) + 1e-9 * fabs(cost);
    bool *keep = NULL;

    for (int n = 0; n < reduced->nodes; ++n) {
        ap_reduced_node_t *node = &reduced->node[n];
        double least = HUGE_VAL;
        bool *grown;

        if (node->gone) {
            continue;
        }
        grown = realloc(keep, (size_t)node->size * sizeof(bool));
        if (grown == NULL) {
            free(keep);
            return XM_NO_MEMORY("%d strategies", node->size);
        }
        keep = grown;
        for (int s = 0; s < node->size; ++s) {
            least = fmin(least, node->cost[s]);
        }
        for (int s = 0; s < node->size; ++s) {
            double excess = node->cost[s] - least;

            for (int k = 0; k < node->edge_count; ++k) {
                const ap_reduced_edge_t *edge = &reduced->edge[node->edges[k]];

                excess +=
                    edge->gone ? 0 : row_minimum(reduced, edge, n, s) - edge_minimum(reduced, edge);
            }
            keep[s] = excess <= room;
        }
        ap_reduced_keep(reduced, n, keep);
    }
    free(keep);
    return XM_OK;
}
