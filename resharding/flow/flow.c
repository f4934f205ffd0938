/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maximum flow by Dinic's algorithm: breadth-first levels of the residual graph, then
 * paths along rising levels until none is left, and new levels, until the sink is out of
 * reach. It is exact in integers, which the bounds need, and it leaves the minimum cut
 * behind at no extra cost. The graphs here are shallow (groups, hosts, sink), so there
 * are few rounds of levels; the worst case is O(nodes² · edges).
 */
#include "resharding/flow/flow.h"

#include <stdlib.h>
#include <string.h>

/* An edge in the list of the node it leaves. Edges are stored in pairs, a forward edge
 * and its reverse. */
typedef struct {
    int to;
    int next;         /* edge of the same node, or −1 */
    int64_t residual; /* edge e's reverse is e ^ 1 */
} edge_t;

struct xm_flow {
    int nodes, edges;
    size_t room; /* of `edge` */
    edge_t *edge;
    int *first; /* by node */
    int *level; /* by node; −1: not reached from the source */
    int *at;    /* by node: next edge to try */
    int *stack; /* nodes of the queue, then edges of the path */
};

/* Nodes cannot be added later; edges can, even after a flow was computed. */
xm_status_t xm_flow_create(int nodes, xm_flow_t **flow)
{
    xm_flow_t *created = calloc(1, sizeof(*created));

    XM_NEED_MEMORY(created, "a flow");
    created->nodes = nodes;
    created->first = malloc((size_t)nodes * sizeof(int));
    created->level = malloc((size_t)nodes * sizeof(int));
    created->at = malloc((size_t)nodes * sizeof(int));
    created->stack = malloc((size_t)nodes * sizeof(int));
    if (created->first == NULL || created->level == NULL || created->at == NULL ||
        created->stack == NULL) {
        xm_flow_destroy(created);
        return XM_NO_MEMORY("a flow of %d nodes", nodes);
    }
    memset(created->first, -1, (size_t)nodes * sizeof(int));
    *flow = created;
    return XM_OK;
}

void xm_flow_destroy(xm_flow_t *flow)
{
    if (flow != NULL) {
        free(flow->stack);
        free(flow->at);
        free(flow->level);
        free(flow->first);
        free(flow->edge);
        free(flow);
    }
}

xm_status_t xm_flow_add_edge(xm_flow_t *flow, int from, int to, int64_t capacity)
{
    /* Both directions of an edge need room at once, so that e ^ 1 always exists. */
    XM_NEED_MEMORY(
        xm_array_reserve(&flow->edge, &flow->room, (size_t)flow->edges + 2, sizeof(*flow->edge)),
        "a flow of %d edges", flow->edges + 2);
    /* The reverse edge starts with no residual, and what it gains later is what flows
     * forward. */
    flow->edge[flow->edges] = (edge_t){to, flow->first[from], capacity};
    flow->first[from] = flow->edges++;
    flow->edge[flow->edges] = (edge_t){from, flow->first[to], 0};
    flow->first[to] = flow->edges++;
    return XM_OK;
}

/* Breadth-first levels of the residual graph; true when the sink is reached. The levels
 * of the last, unsuccessful call mark the source's side of a minimum cut. */
static bool level_nodes(xm_flow_t *flow, int source, int sink)
{
    int head = 0, tail = 0;

    memset(flow->level, -1, (size_t)flow->nodes * sizeof(int));
    flow->level[source] = 0;
    flow->stack[tail++] = source;
    while (head < tail) {
        int node = flow->stack[head++];

        for (int e = flow->first[node]; e >= 0; e = flow->edge[e].next) {
            if (flow->edge[e].residual > 0 && flow->level[flow->edge[e].to] < 0) {
                flow->level[flow->edge[e].to] = flow->level[node] + 1;
                flow->stack[tail++] = flow->edge[e].to;
            }
        }
    }
    return flow->level[sink] >= 0;
}

/*
 * Finds one path along rising levels and pushes what its narrowest edge allows; 0 when
 * none is left. Each node remembers the edge to try next, so no edge is looked at twice
 * in vain between two calls of level_nodes(). The path fits the stack, as levels rise by
 * one and a node occurs once.
 */
static int64_t push_path(xm_flow_t *flow, int source, int sink)
{
    int depth = 0, node = source;
    int64_t amount = INT64_MAX;

    while (node != sink) {
        int e = flow->at[node];

        if (e < 0) { /* dead end: step back, and do not come here again */
            if (node == source) {
                return 0;
            }
            e = flow->stack[--depth];
            node = flow->edge[e ^ 1].to;
            flow->at[node] = flow->edge[flow->at[node]].next;
        } else if (flow->edge[e].residual > 0 &&
                   flow->level[flow->edge[e].to] == flow->level[node] + 1) {
            flow->stack[depth++] = e;
            node = flow->edge[e].to;
        } else {
            flow->at[node] = flow->edge[e].next;
        }
    }
    /* The edges of the path that become full are skipped by the next search. */
    for (int i = 0; i < depth; ++i) {
        int64_t residual = flow->edge[flow->stack[i]].residual;

        amount = residual < amount ? residual : amount;
    }
    for (int i = 0; i < depth; ++i) {
        flow->edge[flow->stack[i]].residual -= amount;
        flow->edge[flow->stack[i] ^ 1].residual += amount;
    }
    return amount;
}

/*
 * Every round of levels makes the sink farther away, so there are at most as many as
 * nodes. Paths end at the sink and never leave it, so a second call never lowers the flow
 * of an edge into the sink, which flow.h promises and the relays' bound relies on.
 */
xm_status_t xm_flow_maximise(xm_flow_t *flow, int source, int sink, uint64_t *value)
{
    *value = 0;
    while (level_nodes(flow, source, sink)) {
        int64_t amount;

        memcpy(flow->at, flow->first, (size_t)flow->nodes * sizeof(int));
        while ((amount = push_path(flow, source, sink)) > 0) {
            *value += (uint64_t)amount;
        }
    }
    return XM_OK;
}

int64_t xm_flow_along(const xm_flow_t *flow, int edge)
{
    return flow->edge[2 * edge + 1].residual;
}

bool xm_flow_on_source_side(const xm_flow_t *flow, int node)
{
    return flow->level[node] >= 0;
}
