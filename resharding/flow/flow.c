#include "resharding/flow/flow.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    int to;
    int next;         /* edge of the same node, or −1 */
    int64_t residual; /* edge e's reverse is e ^ 1 */
} edge_t;

struct xm_flow {
    int nodes, edges, capacity;
    edge_t *edge;
    int *first; /* by node */
    int *level; /* by node; −1: not reached from the source */
    int *at;    /* by node: next edge to try */
    int *stack; /* nodes of the queue, then edges of the path */
};

xm_status_t xm_flow_create(int nodes, xm_flow_t **flow)
{
    xm_flow_t *created = calloc(1, sizeof(*created));

    if (created == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a flow");
    }
    created->nodes = nodes;
    created->first = malloc((size_t)nodes * sizeof(int));
    created->level = malloc((size_t)nodes * sizeof(int));
    created->at = malloc((size_t)nodes * sizeof(int));
    created->stack = malloc((size_t)nodes * sizeof(int));
    if (created->first == NULL || created->level == NULL || created->at == NULL ||
        created->stack == NULL) {
        xm_flow_destroy(created);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a flow of %d nodes", nodes);
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
    if (flow->edges + 2 > flow->capacity) {
        int grown = flow->capacity > 0 ? flow->capacity * 2 : 64;
        edge_t *edge = realloc(flow->edge, (size_t)grown * sizeof(*edge));

        if (edge == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a flow of %d edges", grown);
        }
        flow->edge = edge;
        flow->capacity = grown;
    }
    flow->edge[flow->edges] = (edge_t){to, flow->first[from], capacity};
    flow->first[from] = flow->edges++;
    flow->edge[flow->edges] = (edge_t){from, flow->first[to], 0};
    flow->first[to] = flow->edges++;
    return XM_OK;
}

/* Levels of the residual graph; true when the sink is reached. */
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

/* Finds one path along rising levels and pushes along it; 0 when none is left. */
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
