/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Presolve of the intra-operator problem: dominance (dead-end elimination, Goldstein
 * 1994) and merging of followers. Transformers have many operators whose layout simply follows from
 * a neighbour's; without merging, elimination would carry each of them as a variable of its own.
 * Both steps keep the optimum exactly, and run until neither finds anything.
 * planner/solver/reduce.h does more of this for problems with usage over time.
 */

#include "tests/planner/solver/elimination/pairwise_reduce.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static xm_status_t no_memory(void)
{
    return XM_NO_MEMORY("the intra-operator problem");
}

/* Accepts a problem that is only partly made, and NULL. */
void ap_reduced_destroy(ap_reduced_t *reduced)
{
    if (reduced == NULL) {
        return;
    }
    for (int n = 0; n < reduced->nodes && reduced->node != NULL; ++n) {
        free(reduced->node[n].cost);
        free(reduced->node[n].original);
        free(reduced->node[n].edges);
    }
    for (int e = 0; e < reduced->edges; ++e) {
        free(reduced->edge[e].cost);
    }
    for (int m = 0; m < reduced->merges; ++m) {
        free(reduced->merge[m].strategy);
    }
    free(reduced->node);
    free(reduced->edge);
    free(reduced->merge);
    free(reduced);
}

/* Lists of edges may hold edges that are gone; whoever reads them skips those. */
static xm_status_t link_edge(ap_reduced_node_t *node, int edge)
{
    if (node->edge_count == node->edge_capacity) {
        int wanted = node->edge_capacity == 0 ? 4 : 2 * node->edge_capacity;
        int *grown = realloc(node->edges, (size_t)wanted * sizeof(int));

        if (grown == NULL) {
            return no_memory();
        }
        node->edges = grown;
        node->edge_capacity = wanted;
    }
    node->edges[node->edge_count++] = edge;
    return XM_OK;
}

/* The cell of an edge by the strategies of the node at hand and of its other end. */
static double *cell(const ap_reduced_t *r, const ap_reduced_edge_t *edge, int at, int s, int t)
{
    int columns = r->node[edge->b].size;

    return edge->a == at ? &edge->cost[s * columns + t] : &edge->cost[t * columns + s];
}

static int other_end(const ap_reduced_edge_t *edge, int node)
{
    return edge->a == node ? edge->b : edge->a;
}

/* The live edge between two nodes, or NULL. A node's list is short, so a search is enough. */
static ap_reduced_edge_t *find_edge(ap_reduced_t *r, int a, int b)
{
    for (int k = 0; k < r->node[a].edge_count; ++k) {
        ap_reduced_edge_t *edge = &r->edge[r->node[a].edges[k]];

        if (!edge->gone && other_end(edge, a) == b) {
            return edge;
        }
    }
    return NULL;
}

/* Adds an edge of zeros between two nodes that have none. Pointers to edges become invalid by this,
 * as the array may move. */
static xm_status_t new_edge(ap_reduced_t *r, int a, int b, ap_reduced_edge_t **edge)
{
    ap_reduced_edge_t made = {.a = a, .b = b};
    xm_status_t status;

    if (r->edges == r->edge_capacity) {
        int wanted = r->edge_capacity == 0 ? 64 : 2 * r->edge_capacity;
        ap_reduced_edge_t *grown = realloc(r->edge, (size_t)wanted * sizeof(*grown));

        if (grown == NULL) {
            return no_memory();
        }
        r->edge = grown;
        r->edge_capacity = wanted;
    }
    made.cost = calloc((size_t)r->node[a].size * (size_t)r->node[b].size, sizeof(double));
    if (made.cost == NULL) {
        return no_memory();
    }
    /* The edge is counted before it is in the lists, so destroy() frees its table whatever
     * fails. */
    r->edge[r->edges] = made;
    *edge = &r->edge[r->edges++];
    status = link_edge(&r->node[a], r->edges - 1);
    return status == XM_OK ? link_edge(&r->node[b], r->edges - 1) : status;
}

static xm_status_t copy_nodes(const ap_intra_op_problem_t *problem, ap_reduced_t *r)
{
    r->node = calloc((size_t)problem->nodes + 1, sizeof(*r->node));
    r->merge = calloc((size_t)problem->nodes + 1, sizeof(*r->merge));
    if (r->node == NULL || r->merge == NULL) {
        return no_memory();
    }
    /* From here on destroy() knows how many nodes there may be. */
    r->nodes = problem->nodes;
    for (int n = 0; n < problem->nodes; ++n) {
        ap_reduced_node_t *node = &r->node[n];

        node->size = problem->strategies[n];
        node->cost = malloc((size_t)node->size * sizeof(double));
        node->original = malloc((size_t)node->size * sizeof(int));
        if (node->cost == NULL || node->original == NULL) {
            return no_memory();
        }
        for (int s = 0; s < node->size; ++s) {
            node->cost[s] = problem->costs[n][s];
            node->original[s] = s;
        }
    }
    return XM_OK;
}

/* Copies edges; parallel ones add up, so that later steps find one edge per pair. */
static xm_status_t copy_edges(const ap_intra_op_problem_t *problem, ap_reduced_t *r)
{
    for (int e = 0; e < problem->edges; ++e) {
        const ap_intra_op_edge_t *from = &problem->edge[e];
        ap_reduced_edge_t *edge = find_edge(r, from->a, from->b);
        int columns = r->node[from->b].size;

        /* The first edge of a pair makes the table; the others add to it. */
        if (edge == NULL) {
            xm_status_t status = new_edge(r, from->a, from->b, &edge);

            if (status != XM_OK) {
                return status;
            }
        }
        for (int s = 0; s < r->node[from->a].size; ++s) {
            for (int t = 0; t < columns; ++t) {
                *cell(r, edge, from->a, s, t) += from->costs[s * columns + t];
            }
        }
    }
    return XM_OK;
}

/* Keeps only the marked strategies of a node, in its costs and in the tables of its edges. The
 * first loop needs the old size to find cells, so it is changed last. */
void ap_reduced_keep(ap_reduced_t *reduced, int n, const bool *keep)
{
    ap_reduced_t *r = reduced;
    ap_reduced_node_t *node = &r->node[n];
    int size = 0;

    for (int k = 0; k < node->edge_count; ++k) {
        ap_reduced_edge_t *edge = &r->edge[node->edges[k]];
        int others, to = 0;

        if (edge->gone) {
            continue;
        }
        others = r->node[other_end(edge, n)].size;
        /* Cells only move towards the front, so the table can be packed in place. */
        for (int i = 0; i < (edge->a == n ? node->size : others); ++i) {
            for (int j = 0; j < (edge->a == n ? others : node->size); ++j) {
                int columns = edge->a == n ? others : node->size;

                if (keep[edge->a == n ? i : j]) {
                    edge->cost[to++] = edge->cost[i * columns + j];
                }
            }
        }
    }
    for (int s = 0; s < node->size; ++s) {
        if (keep[s]) {
            node->cost[size] = node->cost[s];
            node->original[size++] = node->original[s];
        }
    }
    node->size = size;
}

/* How much more an edge can cost with strategy `kept` than with `dropped`, at worst over the other
 * end's strategies. Where `dropped` is forbidden anyhow nothing can be lost; where only `kept` is,
 * everything. */
static double worst_excess(const ap_reduced_t *r, const ap_reduced_edge_t *edge, int n, int kept,
                           int dropped)
{
    int others = r->node[other_end(edge, n)].size;
    double worst = -HUGE_VAL;

    for (int t = 0; t < others; ++t) {
        double with_kept = *cell(r, edge, n, kept, t);
        double with_dropped = *cell(r, edge, n, dropped, t);

        if (with_dropped >= AP_INTRA_OP_INFINITE) {
            continue;
        }
        if (with_kept >= AP_INTRA_OP_INFINITE) {
            return HUGE_VAL;
        }
        worst = fmax(worst, with_kept - with_dropped);
    }
    return worst;
}

/* Tells whether choosing `kept` in place of `dropped` never costs more, whatever the neighbours do.
 * The worst neighbours of all edges are added up although they may not occur together, so the test
 * is safe, not sharp. */
static bool dominates(const ap_reduced_t *r, int n, int kept, int dropped)
{
    const ap_reduced_node_t *node = &r->node[n];
    double excess = node->cost[kept] - node->cost[dropped];

    /* A forbidden strategy gives way to any that is allowed. */
    if (node->cost[dropped] >= AP_INTRA_OP_INFINITE) {
        return node->cost[kept] < AP_INTRA_OP_INFINITE;
    }
    for (int k = 0; k < node->edge_count && excess < HUGE_VAL; ++k) {
        const ap_reduced_edge_t *edge = &r->edge[node->edges[k]];

        excess += edge->gone ? 0 : worst_excess(r, edge, n, kept, dropped);
    }
    return excess <= 0;
}

/* Drops the dominated strategies of a node. A strategy is dropped only by one that is still kept,
 * so of several equal ones the last is left, and a node never becomes empty. */
static xm_status_t drop_dominated(ap_reduced_t *r, int n, bool *changed)
{
    ap_reduced_node_t *node = &r->node[n];
    bool *keep = malloc((size_t)node->size * sizeof(bool));
    int dropped = 0;

    if (keep == NULL) {
        return no_memory();
    }
    for (int s = 0; s < node->size; ++s) {
        keep[s] = true;
    }
    for (int s = 0; s < node->size; ++s) {
        for (int t = 0; t < node->size && keep[s]; ++t) {
            if (t != s && keep[t] && dominates(r, n, t, s)) {
                keep[s] = false;
                ++dropped;
            }
        }
    }
    if (dropped > 0) {
        ap_reduced_keep(r, n, keep);
        *changed = true;
    }
    free(keep);
    return XM_OK;
}

/* Finds the only partner of each strategy of `leader` along an edge; false when some has several. A
 * strategy without any gets -1. */
static bool partners(const ap_reduced_t *r, const ap_reduced_edge_t *edge, int leader, int *partner)
{
    int follower = other_end(edge, leader);

    for (int s = 0; s < r->node[leader].size; ++s) {
        partner[s] = -1;
        for (int t = 0; t < r->node[follower].size; ++t) {
            if (*cell(r, edge, leader, s, t) >= AP_INTRA_OP_INFINITE) {
                continue;
            }
            /* With a second partner this is no follower. */
            if (partner[s] >= 0) {
                return false;
            }
            partner[s] = t;
        }
    }
    return true;
}

/* Hands one edge of a follower over to its leader: the third node then sees, for each strategy of
 * the leader, what it saw of its partner. */
static xm_status_t hand_over(ap_reduced_t *r, int e, int leader, int follower, const int *partner)
{
    int third = other_end(&r->edge[e], follower);
    ap_reduced_edge_t *target = find_edge(r, leader, third);

    if (target == NULL) {
        xm_status_t status = new_edge(r, leader, third, &target);

        if (status != XM_OK) {
            return status;
        }
    }
    for (int s = 0; s < r->node[leader].size; ++s) {
        for (int t = 0; t < r->node[third].size; ++t) {
            *cell(r, target, leader, s, t) += partner[s] < 0
                                                  ? AP_INTRA_OP_INFINITE
                                                  : *cell(r, &r->edge[e], follower, partner[s], t);
        }
    }
    r->edge[e].gone = true;
    return XM_OK;
}

/* The map of a merge is indexed by original strategies, as the reduced ones are renumbered
 * later. */
static int largest_original(const ap_reduced_node_t *node)
{
    int largest = 0;

    for (int s = 0; s < node->size; ++s) {
        largest = node->original[s] > largest ? node->original[s] : largest;
    }
    return largest;
}

/* Merges a follower into its leader: costs, the edge between them and all other edges. A strategy
 * without a partner becomes forbidden and is dropped by dominance later. */
static xm_status_t merge(ap_reduced_t *r, int e, int leader, const int *partner)
{
    int follower = other_end(&r->edge[e], leader);
    ap_reduced_merge_t *merged = &r->merge[r->merges];
    ap_reduced_node_t *lead = &r->node[leader], *follow = &r->node[follower];

    merged->strategy = calloc((size_t)largest_original(lead) + 1, sizeof(int));
    if (merged->strategy == NULL) {
        return no_memory();
    }
    ++r->merges;
    merged->leader = leader;
    merged->follower = follower;
    /* The follower's cost and the edge's cell are constants now for each strategy of the leader. */
    for (int s = 0; s < lead->size; ++s) {
        if (partner[s] < 0) {
            /* No partner is allowed, so neither is this strategy. */
            lead->cost[s] = AP_INTRA_OP_INFINITE;
            continue;
        }
        lead->cost[s] += follow->cost[partner[s]] + *cell(r, &r->edge[e], leader, s, partner[s]);
        merged->strategy[lead->original[s]] = follow->original[partner[s]];
    }
    r->edge[e].gone = true;
    for (int k = 0; k < follow->edge_count; ++k) {
        /* All other edges of the follower move to the leader. */
        if (!r->edge[follow->edges[k]].gone) {
            xm_status_t status = hand_over(r, follow->edges[k], leader, follower, partner);

            if (status != XM_OK) {
                return status;
            }
        }
    }
    /* All that it cost is in the leader. */
    follow->gone = true;
    return XM_OK;
}

/* Merges the neighbours that follow node n. Merging adds edges to the end of n's list, so the loop
 * also looks at those. */
static xm_status_t merge_follower(ap_reduced_t *r, int n, bool *changed)
{
    int *partner = malloc((size_t)r->node[n].size * sizeof(int));
    xm_status_t status = XM_OK;

    if (partner == NULL) {
        return no_memory();
    }
    for (int k = 0; k < r->node[n].edge_count && status == XM_OK; ++k) {
        int e = r->node[n].edges[k];

        /* Partners are found along one edge; the follower's other edges come along in merge(). */
        if (!r->edge[e].gone && partners(r, &r->edge[e], n, partner)) {
            status = merge(r, e, n, partner);
            *changed = true;
        }
    }
    free(partner);
    return status;
}

/* Dominance and merging take turns until neither changes anything: a merge may make strategies
 * comparable, and a dropped strategy may make a neighbour a follower. Every change removes a
 * strategy or a node, so this ends. */
xm_status_t ap_reduced_create(const ap_intra_op_problem_t *problem, ap_reduced_t **reduced)
{
    ap_reduced_t *r = calloc(1, sizeof(*r));
    bool changed = true;
    xm_status_t status;

    if (r == NULL) {
        return no_memory();
    }
    status = copy_nodes(problem, r);
    if (status == XM_OK) {
        status = copy_edges(problem, r);
    }
    while (changed && status == XM_OK) {
        changed = false;
        for (int n = 0; n < r->nodes && status == XM_OK; ++n) {
            if (!r->node[n].gone) {
                status = drop_dominated(r, n, &changed);
            }
            if (!r->node[n].gone && status == XM_OK) {
                status = merge_follower(r, n, &changed);
            }
        }
    }
    if (status != XM_OK) {
        ap_reduced_destroy(r);
        return status;
    }
    *reduced = r;
    return XM_OK;
}

/* Translates strategies back, then replays the merges from the last to the first: a leader may
 * itself have been merged later, so it has its strategy by then. */
void ap_reduced_restore(const ap_reduced_t *reduced, const int *assignment, int *choice)
{
    for (int n = 0; n < reduced->nodes; ++n) {
        if (!reduced->node[n].gone) {
            choice[n] = reduced->node[n].original[assignment[n]];
        }
    }
    for (int m = reduced->merges - 1; m >= 0; --m) {
        const ap_reduced_merge_t *merged = &reduced->merge[m];

        /* The map is in strategies of the full problem, as are choices by now. */
        choice[merged->follower] = merged->strategy[choice[merged->leader]];
    }
}
