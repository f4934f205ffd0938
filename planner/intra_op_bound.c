#include "planner/intra_op_bound.h"

#include <math.h>
#include <stdlib.h>

/* Sweeps over all nodes; convergence is quick at first and then slow. */
enum { SWEEPS = 200, POLISHES = 50 };

static double *cell(const ap_reduced_t *r, const ap_reduced_edge_t *edge, int at, int s, int t)
{
    int columns = r->node[edge->b].size;

    return edge->a == at ? &edge->cost[s * columns + t] : &edge->cost[t * columns + s];
}

static int other_end(const ap_reduced_edge_t *edge, int node)
{
    return edge->a == node ? edge->b : edge->a;
}

static double row_minimum(const ap_reduced_t *r, const ap_reduced_edge_t *edge, int n, int s)
{
    int others = r->node[other_end(edge, n)].size;
    double least = HUGE_VAL;

    for (int t = 0; t < others; ++t) {
        least = fmin(least, *cell(r, edge, n, s, t));
    }
    return least;
}

static void shift_row(const ap_reduced_t *r, const ap_reduced_edge_t *edge, int n, int s,
                      double amount)
{
    for (int t = 0; t < r->node[other_end(edge, n)].size; ++t) {
        *cell(r, edge, n, s, t) += amount;
    }
}

/* Collects what the edges of a node can give for each strategy, and shares it out evenly: each
 * step keeps the sum of all assignments and never lowers the bound. */
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

/* Cost of strategy s of node n next to the assigned neighbours (all, or those before it). */
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

xm_status_t ap_intra_op_diffuse(ap_reduced_t *reduced, double tolerance, int *assignment,
                                double *cost, double *bound)
{
    int *trial = calloc((size_t)reduced->nodes + 1, sizeof(int));

    if (trial == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d nodes", reduced->nodes);
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
        *bound = fmax(*bound, current_bound(reduced));
        if (sweep % 10 != 9) {
            continue;
        }
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

/* Least cost of an edge over all pairs. */
static double edge_minimum(const ap_reduced_t *r, const ap_reduced_edge_t *edge)
{
    double least = HUGE_VAL;

    for (int s = 0; s < r->node[edge->a].size; ++s) {
        least = fmin(least, row_minimum(r, edge, edge->a, s));
    }
    return least;
}

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
            return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d strategies", node->size);
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
