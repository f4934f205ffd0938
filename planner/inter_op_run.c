/* The dynamic programme on a graph of stages: its least cost, the boundaries it still has to ask
 * for, the plan behind it. */
#include <math.h>

#include "planner/inter_op_private.h"

static double combine(const ap_inter_op_graph_t *graph, double a, double b)
{
    return graph->use_max ? fmax(a, b) : a + b;
}

static double crossing(const ap_inter_op_graph_t *graph, const ap_inter_op_node_t *node, int out,
                       int in)
{
    return node->block == NULL
               ? 0.0
               : node->block[ap_inter_op_block_at(graph->space,
                                                  graph->out_port[node->first_out + out],
                                                  graph->in_port[node->first_in + in])];
}

/* Least cost per in port of the stages that begin here. */
static void price_first(ap_inter_op_graph_t *graph, const ap_inter_op_node_t *node)
{
    for (int i = 0; i < node->in_count; ++i) {
        graph->first[i] = INFINITY;
    }
    for (size_t e = node->first_edge; e < node->end_edge; ++e) {
        const ap_inter_op_edge_t *edge = &graph->edges[e];
        double whole = combine(graph, edge->cost, graph->value[edge->after]);

        if (edge->cost <= graph->limit && whole < graph->first[edge->in]) {
            graph->first[edge->in] = whole;
        }
    }
}

double ap_inter_op_graph_run(ap_inter_op_graph_t *graph, int *start)
{
    double best = INFINITY;

    *start = -1;
    for (int n = graph->order_count - 1; n >= 0; --n) {
        const ap_inter_op_node_t *node = &graph->nodes[graph->order[n]];

        price_first(graph, node);
        for (int o = 0; o < node->out_count; ++o) {
            double least = INFINITY;

            for (int i = 0; i < node->in_count; ++i) {
                double seconds = crossing(graph, node, o, i);
                double whole = combine(graph, seconds, graph->first[i]);

                least = seconds <= graph->limit && whole < least ? whole : least;
            }
            graph->value[node->first_out + o] = least;
        }
        if (node->layer == 0 && graph->value[node->first_out] < best) {
            best = graph->value[node->first_out];
            *start = graph->order[n];
        }
    }
    return best;
}

/* The node behind a value. */
static int node_behind(const ap_inter_op_graph_t *graph, int value)
{
    int low = 0, high = graph->node_count - 1;

    while (low < high) {
        int middle = (low + high + 1) / 2;

        if (graph->nodes[middle].first_out <= value) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

/* What the last run chose behind an out port of a node; NULL: nothing can be chosen. */
static const ap_inter_op_edge_t *choose(const ap_inter_op_graph_t *graph,
                                        const ap_inter_op_node_t *node, int out)
{
    const ap_inter_op_edge_t *chosen = NULL;
    double least = INFINITY;

    for (size_t e = node->first_edge; e < node->end_edge; ++e) {
        const ap_inter_op_edge_t *edge = &graph->edges[e];
        double seconds = crossing(graph, node, out, edge->in);
        double whole =
            combine(graph, seconds, combine(graph, edge->cost, graph->value[edge->after]));

        if (edge->cost <= graph->limit && seconds <= graph->limit && whole < least) {
            least = whole;
            chosen = edge;
        }
    }
    return chosen;
}

/* The cost of one boundary, if only its least is known. *above: it is, and more than @p known. */
static xm_status_t settle_one(const ap_inter_op_graph_t *graph, const ap_inter_op_node_t *node,
                              int out, int in, double known, bool *above)
{
    int from = graph->out_port[node->first_out + out], to = graph->in_port[node->first_in + in];
    size_t cell = ap_inter_op_block_at(graph->space, from, to);
    double before = node->block[cell];
    xm_status_t status;

    if (ap_inter_op_settled(graph->space, node->block)[cell]) {
        return XM_OK;
    }
    status = ap_inter_op_space_ask(graph->space, node->layer, node->devices, from, to, true,
                                   node->block);
    *above = *above || node->block[cell] > fmax(before, known);
    return status;
}

xm_status_t ap_inter_op_graph_settle(ap_inter_op_graph_t *graph, int start, double value,
                                     bool *changed)
{
    const ap_inter_op_node_t *node = &graph->nodes[start];
    /* A longer boundary is no matter where the longest station counts, up to that one. */
    double known = graph->use_max ? value : 0.0;
    xm_status_t status = XM_OK;
    int out = 0;

    *changed = false;
    while (status == XM_OK && node->layer < graph->space->layers) {
        const ap_inter_op_edge_t *chosen = choose(graph, node, out);

        if (chosen == NULL) { /* a boundary settled on the way is in its way */
            break;
        }
        if (node->block != NULL) {
            status = settle_one(graph, node, out, chosen->in, known, changed);
        }
        node = &graph->nodes[node_behind(graph, chosen->after)];
        out = chosen->after - node->first_out;
    }
    return status;
}

int ap_inter_op_graph_trace(const ap_inter_op_graph_t *graph, int start,
                            ap_inter_op_stage_t *stages)
{
    const ap_inter_op_space_t *space = graph->space;
    const ap_inter_op_node_t *node = &graph->nodes[start];
    int out = 0, count = 0;

    while (node->layer < space->layers) {
        const ap_inter_op_edge_t *chosen = choose(graph, node, out);
        ap_inter_op_stage_t *stage = &stages[count++];

        *stage = (ap_inter_op_stage_t){
            .first_layer = node->layer,
            .last_layer = chosen->last,
            .submesh = chosen->state / space->problem->config_count,
            .config = chosen->state % space->problem->config_count,
            .first_device = space->problem->ordered ? space->total - node->devices : -1,
            .seconds = chosen->cost,
            .boundary_seconds = crossing(graph, node, out, chosen->in)};
        node = &graph->nodes[node_behind(graph, chosen->after)];
        out = chosen->after - node->first_out;
    }
    return count;
}
