/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the dynamic programme over a graph of stages. The value of a node and an output layout is
 * the minimum cost from there on, if the stage before leaves its output in that layout; the
 * boundary is paid by the later stage. One run is linear in the edges and in the pairs of boundary
 * layouts at each node; pairs cost in + out because the minimum over the node's stages is taken per
 * input layout first, and boundaries are added after that.
 */

#include <math.h>

#include "planner/inter_op/inter_op_private.h"

/* Sum and max are both monotonic, so one programme serves both. */
static double combine(const ap_inter_op_graph_t *graph, double a, double b)
{
    return graph->use_max ? fmax(a, b) : a + b;
}

/* Seconds across a boundary; 0 where boundaries are free, and before the first stage. */
static double crossing(const ap_inter_op_graph_t *graph, const ap_inter_op_node_t *node, int out,
                       int in)
{
    return node->block == NULL
               ? 0.0
               : node->block[ap_inter_op_block_at(graph->space,
                                                  graph->out_port[node->first_out + out],
                                                  graph->in_port[node->first_in + in])];
}

/* The minimum cost per input layout of the stages that begin here, under the limit. */
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

/* Goes through the nodes from the end of the pipeline to its front, so the values behind every edge
 * are known. Of equal costs the first found stays, in an order that depends on the tables alone. */
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
        /* A node at layer 0 is a whole pipeline; there are several where the numbers of stages are
         * told apart. */
        if (node->layer == 0 && graph->value[node->first_out] < best) {
            best = graph->value[node->first_out];
            *start = graph->order[n];
        }
    }
    return best;
}

/* The node behind a value: values are numbered by node, so a binary search finds it. An edge saves
 * the memory of a field by that, and only traces ask. */
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

/* What the last run chose behind an output layout of a node; NULL: nothing can be chosen.
 * Choices are not stored, because a run looks at every edge and a trace only at those of a few
 * nodes; the same minimum is found again. */
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

/* Replaces the lower bound of one boundary by its cost, if that is not known yet. *above becomes
 * true when the cost is more than the bound and more than @p known. */
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

/* Goes along the best plan and makes its boundaries true. The run's values are those from before,
 * so after a change the choices further on may not be the next run's; they are boundaries of a plan
 * that looked best, and worth asking about all the same. */
xm_status_t ap_inter_op_graph_settle(ap_inter_op_graph_t *graph, int start, double value,
                                     bool *changed)
{
    const ap_inter_op_node_t *node = &graph->nodes[start];
    /* With max in place of sum, a boundary that gets longer does not matter as long as it is not
     * above the bottleneck. */
    double known = graph->use_max ? value : 0.0;
    xm_status_t status = XM_OK;
    int out = 0;

    *changed = false;
    while (status == XM_OK && node->layer < graph->space->layers) {
        const ap_inter_op_edge_t *chosen = choose(graph, node, out);

        if (chosen == NULL) { /* a boundary that became true forbids it */
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

/* Repeats the choices of the last run and writes them as stages. Device numbers count from the
 * front, so they follow from the devices that are left. */
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
