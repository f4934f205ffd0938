/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks over the parts of a graph between its down-sets, and orders of its nodes. What a part costs
 * is the caller's business: it is told of each node that joins or leaves, so that it can update
 * sums and need not compute them.
 */

#include <stdlib.h>
#include <string.h>

#include "planner/published/ideals.h"

typedef struct ap_ideals_step {
    int ideal, link;
    int node; /* that was added to come here; -1 at the start */
} step_t;

xm_status_t ap_ideals_walk_init(ap_ideals_walk_t *walk, xm_arena_t *arena)
{
    size_t count = (size_t)ap_ideals_count(walk->ideals);

    walk->visited = xm_arena_get(arena, count, sizeof(int));
    walk->stack = xm_arena_get(arena, (size_t)ap_ideals_nodes(walk->ideals) + 2, sizeof(step_t));
    XM_NEED_MEMORY(!arena->failed, "%zu down-sets of a graph", count);
    ap_ideals_walk_reset(walk);
    return XM_OK;
}

void ap_ideals_walk_reset(ap_ideals_walk_t *walk)
{
    memset(walk->visited, 0xff, (size_t)ap_ideals_count(walk->ideals) * sizeof(int));
}

static void leave(ap_ideals_walk_t *walk, int depth)
{
    if (depth > 0) {
        walk->leave(walk->arg, walk->stack[depth].node, depth);
    }
}

/* Each down-set is visited by the first way that reaches it: the part between two sets is the same
 * by any way. */
bool ap_ideals_walk(ap_ideals_walk_t *walk, int above)
{
    int depth = 0;
    bool found = false;

    walk->stack[0] = (step_t){above, 0, -1};
    walk->visited[above] = above;
    while (depth >= 0 && !found) {
        step_t *step = &walk->stack[depth];
        int count;
        const ap_ideal_link_t *links = ap_ideals_below(walk->ideals, step->ideal, &count);

        if (step->link == count) {
            leave(walk, depth--);
            continue;
        }
        links += step->link++;
        if (walk->visited[links->ideal] == above) {
            continue;
        }
        walk->visited[links->ideal] = above;
        walk->stack[++depth] = (step_t){links->ideal, 0, links->node};
        if (walk->enter(walk->arg, links->node, depth)) {
            found = walk->visit(walk->arg, above, links->ideal);
        } else {
            leave(walk, depth--);
        }
    }
    for (; depth > 0; --depth) {
        leave(walk, depth);
    }
    return found;
}

xm_status_t ap_precedence_order(int nodes, const ap_precedence_t *edges, int edge_count, bool deep,
                                int *order, int *placed)
{
    int *needs = calloc(2 * (size_t)nodes + 1, sizeof(*needs)), *open = needs + nodes;
    int first = 0, end = 0;

    XM_NEED_MEMORY(needs, "an order of %d nodes", nodes);
    for (int i = 0; i < edge_count; ++i) {
        ++needs[edges[i].after];
    }
    for (int i = 0; i < nodes; ++i) {
        int node = deep ? nodes - 1 - i : i;

        if (needs[node] == 0) {
            open[end++] = node;
        }
    }
    for (*placed = 0; first < end; ++*placed) {
        int node = deep ? open[--end] : open[first++];

        order[*placed] = node;
        for (int i = 0; i < edge_count; ++i) {
            if (edges[i].before == node && --needs[edges[i].after] == 0) {
                open[end++] = edges[i].after;
            }
        }
    }
    free(needs);
    return XM_OK;
}

/* The graph's edges stay among those of the chain, so that a cycle is found. */
xm_status_t ap_ideals_create_chain(int nodes, const ap_precedence_t *edges, int edge_count,
                                   bool deep, ap_ideals_t **ideals)
{
    xm_arena_t arena = {0};
    ap_precedence_t *all = xm_arena_get(&arena, (size_t)edge_count + (size_t)nodes, sizeof(*all));
    int *order = xm_arena_get(&arena, (size_t)nodes, sizeof(*order)), placed;
    xm_status_t status = arena.failed
                             ? XM_NO_MEMORY("an order of %d nodes", nodes)
                             : ap_precedence_order(nodes, edges, edge_count, deep, order, &placed);

    if (status == XM_OK) {
        memcpy(all, edges, (size_t)edge_count * sizeof(*all));
        for (int i = 1; i < placed; ++i) {
            all[edge_count++] = (ap_precedence_t){order[i - 1], order[i]};
        }
        status = ap_ideals_create(nodes, all, edge_count, nodes + 1, ideals);
    }
    xm_arena_clear(&arena);
    return status;
}
