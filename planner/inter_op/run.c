/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the dynamic programme over a graph of stages. The value of a node and an output layout is
 * the minimum cost from there on, if the stage before leaves its output in that layout; the
 * boundary is paid by the later stage.
 *
 * Under a limit on the period, what is from a place on has two sides: what it costs, and how long
 * the stage before has to wait for it beyond the period. Neither alone says which of two rests of a
 * pipeline is better, so a few of both are kept as labels: none is better in both. Where there are
 * more than fit, two become one that is better than either; costs stay lower bounds by that, and
 * the caller measures the plan it traces.
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

/* Adds a label to those of a place, unless one of them is as good. Of equal ones the first stays.
 */
static void add_label(ap_inter_op_labels_t *labels, ap_inter_op_label_t label)
{
    int left = 0, nearest = 0;

    for (int k = 0; k < labels->count; ++k) {
        if (labels->label[k].cost <= label.cost && labels->label[k].wait <= label.wait) {
            return;
        }
    }
    for (int k = 0; k < labels->count; ++k) {
        if (!(label.cost <= labels->label[k].cost && label.wait <= labels->label[k].wait)) {
            labels->label[left++] = labels->label[k];
        }
    }
    labels->count = left;
    if (left < AP_INTER_OP_LABELS) {
        labels->label[labels->count++] = label;
        return;
    }
    for (int k = 1; k < left; ++k) {
        if (fabs(labels->label[k].cost - label.cost) <
            fabs(labels->label[nearest].cost - label.cost)) {
            nearest = k;
        }
    }
    label.wait = fmin(label.wait, labels->label[nearest].wait);
    if (labels->label[nearest].cost <= label.cost) {
        labels->label[nearest].wait = label.wait;
    } else {
        labels->label[nearest] = label;
    }
}

/* What a stage adds to the wait of those before it: its seconds beyond the period, and what it has
 * to wait itself; INFINITY where its window of micro-batches would be too small for the period. */
static double wait_for(const ap_inter_op_graph_t *graph, double seconds, double wait)
{
    const ap_inter_op_clock_t *clock = &graph->space->problem->clock;
    double ahead = (double)clock->ahead, own;

    if (clock->ahead == 0 || graph->limit == INFINITY) {
        return 0.0;
    }
    own = (1.0 - clock->delayed) * seconds - ahead * graph->limit + wait;
    return own + clock->delayed * seconds <= (1.0 - ahead) * graph->limit + 1e-12 * graph->limit
               ? own
               : INFINITY;
}

/* The labels per input layout of the stages that begin here, under the limit. */
static void price_first(ap_inter_op_graph_t *graph, const ap_inter_op_node_t *node)
{
    for (int i = 0; i < node->in_count; ++i) {
        graph->first[i].count = 0;
    }
    for (size_t e = node->first_edge; e < node->end_edge; ++e) {
        const ap_inter_op_edge_t *edge = &graph->edges[e];
        const ap_inter_op_labels_t *after = &graph->value[edge->after];

        for (int k = 0; edge->cost <= graph->limit && k < after->count; ++k) {
            double wait = wait_for(graph, edge->cost, after->label[k].wait);

            if (wait < INFINITY) {
                add_label(&graph->first[edge->in],
                          (ap_inter_op_label_t){combine(graph, edge->cost, after->label[k].cost),
                                                wait, (int)e, k});
            }
        }
    }
}

/* The labels behind an output layout: each input layout's, with the boundary to it. */
static void price_out(ap_inter_op_graph_t *graph, const ap_inter_op_node_t *node, int out)
{
    const ap_inter_op_clock_t *clock = &graph->space->problem->clock;
    ap_inter_op_labels_t *value = &graph->value[node->first_out + out];

    value->count = 0;
    for (int i = 0; i < node->in_count; ++i) {
        double seconds = crossing(graph, node, out, i);
        double station = seconds > 0.0 ? clock->station * seconds : 0.0;

        if (!(station <= graph->limit) || !(seconds < INFINITY)) {
            continue;
        }
        for (int k = 0; k < graph->first[i].count; ++k) {
            ap_inter_op_label_t label = graph->first[i].label[k];

            label.cost = combine(graph, graph->use_max ? station : seconds, label.cost);
            label.wait = fmax(0.0, label.wait + clock->certain * seconds);
            add_label(value, label);
        }
    }
}

/* Goes through the nodes from the end of the pipeline to its front, so the values behind every edge
 * are known. Of equal costs the first found stays, in an order that depends on the tables alone. */
double ap_inter_op_graph_run(ap_inter_op_graph_t *graph, ap_inter_op_start_t *start)
{
    double best = INFINITY;

    *start = (ap_inter_op_start_t){-1, 0};
    for (int n = graph->order_count - 1; n >= 0; --n) {
        const ap_inter_op_node_t *node = &graph->nodes[graph->order[n]];
        const ap_inter_op_labels_t *value = &graph->value[node->first_out];

        price_first(graph, node);
        for (int o = 0; o < node->out_count; ++o) {
            price_out(graph, node, o);
        }
        /* A node at layer 0 is a whole pipeline; there are several where the numbers of stages are
         * told apart. */
        for (int k = 0; node->layer == 0 && k < value->count; ++k) {
            if (value->label[k].cost < best) {
                best = value->label[k].cost;
                *start = (ap_inter_op_start_t){graph->order[n], k};
            }
        }
    }
    return best;
}

/* The node behind a value: values are numbered by node, so a binary search finds it. An edge saves
 * the memory of a field by that, and only traces ask. */
int ap_inter_op_node_behind(const ap_inter_op_graph_t *graph, int value)
{
    int behind = 1;

    XM_BISECT(int, i, behind, graph->node_count, graph->nodes[i].first_out <= value);
    return behind - 1;
}

/* Replaces the lower bound of one boundary by its cost, if that is not known yet. *above becomes
 * true when the cost is more than the bound and more than @p known. */
xm_status_t ap_inter_op_settle_one(const ap_inter_op_graph_t *graph, const ap_inter_op_node_t *node,
                                   int out, int in, double known, bool *above)
{
    int from = graph->out_port[node->first_out + out], to = graph->in_port[node->first_in + in];
    size_t cell = ap_inter_op_block_at(graph->space, from, to);
    double before, factor = graph->use_max ? graph->space->problem->clock.station : 1.0;
    xm_status_t status;

    if (node->block == NULL || ap_inter_op_settled(graph->space, node->block)[cell]) {
        return XM_OK;
    }
    before = node->block[cell];
    status = ap_inter_op_space_ask(graph->space, node->layer, node->devices, from, to, true,
                                   node->block);
    *above = *above || (node->block[cell] > before && factor * node->block[cell] > known);
    return status;
}

/* Goes along the best plan and makes its boundaries true. The run's values are those from before,
 * so after a change the choices further on may not be the next run's; they are boundaries of a plan
 * that looked best, and worth asking about all the same. */
xm_status_t ap_inter_op_graph_settle(ap_inter_op_graph_t *graph, const ap_inter_op_start_t *start,
                                     double value, bool *changed)
{
    const ap_inter_op_node_t *node = &graph->nodes[start->node];
    /* With max in place of sum, a boundary that gets longer does not matter as long as it is not
     * above the bottleneck. */
    double known = graph->use_max ? value : 0.0;
    xm_status_t status = XM_OK;
    int out = 0, k = start->label;

    *changed = false;
    while (status == XM_OK && node->layer < graph->space->layers) {
        const ap_inter_op_label_t *label = &graph->value[node->first_out + out].label[k];
        const ap_inter_op_edge_t *edge = &graph->edges[label->edge];

        status = ap_inter_op_settle_one(graph, node, out, edge->in, known, changed);
        node = &graph->nodes[ap_inter_op_node_behind(graph, edge->after)];
        out = edge->after - node->first_out;
        k = label->next;
    }
    return status;
}

void ap_inter_op_stage_of(const ap_inter_op_graph_t *graph, const ap_inter_op_node_t *node, int out,
                          const ap_inter_op_edge_t *edge, ap_inter_op_stage_t *stage)
{
    const ap_inter_op_space_t *space = graph->space;

    *stage = (ap_inter_op_stage_t){.first_layer = node->layer,
                                   .last_layer = edge->last,
                                   .submesh = edge->state / space->problem->config_count,
                                   .config = edge->state % space->problem->config_count,
                                   .first_device =
                                       space->problem->ordered ? space->total - node->devices : -1,
                                   .seconds = edge->cost,
                                   .boundary_seconds = crossing(graph, node, out, edge->in)};
}

/* Writes the choices of the last run as stages. Device numbers count from the front, so they follow
 * from the devices that are left. */
int ap_inter_op_graph_trace(const ap_inter_op_graph_t *graph, const ap_inter_op_start_t *start,
                            ap_inter_op_stage_t *stages)
{
    const ap_inter_op_node_t *node = &graph->nodes[start->node];
    int out = 0, count = 0, k = start->label;

    while (node->layer < graph->space->layers) {
        const ap_inter_op_label_t *label = &graph->value[node->first_out + out].label[k];
        const ap_inter_op_edge_t *edge = &graph->edges[label->edge];

        ap_inter_op_stage_of(graph, node, out, edge, &stages[count++]);
        node = &graph->nodes[ap_inter_op_node_behind(graph, edge->after)];
        out = edge->after - node->first_out;
        k = label->next;
    }
    return count;
}
