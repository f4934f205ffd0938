/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds the graph of all stages that a plan below a threshold can have. A node is a place: devices
 * left, layers done, and where memory or stage limits ask for it the number of stages left. An edge
 * is a stage in one configuration. Without bounds, the programme has layers² x devices x
 * configurations² transitions; the relaxed costs before and after a place rule out most of them
 * beforehand, so a run looks at what can still win and at little else.
 *
 * Nodes are made when the first edge leads to them, so places that no useful stage reaches cost
 * nothing.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "planner/inter_op/inter_op_private.h"

enum { WORD = 64 };

/* What building needs besides the graph. */
typedef struct builder {
    ap_inter_op_space_t *space;
    const ap_inter_op_build_t *build;
    ap_inter_op_graph_t *graph;
    int levels;              /* levels that are distinguished; 1 when none are */
    double limit;            /* no useful stage is longer */
    double rounds;           /* micro-batches after the first */
    ap_inter_op_band_t band; /* around the places that are useful, memory aside */
    xm_arena_t arena;        /* all arrays but those per node */
    /* Tables over the band: */
    double *before;    /* relaxed, memory aside */
    double *hopeful;   /* relaxed from there on, memory aside; infinite where nothing is useful */
    double *after;     /* [level]: relaxed, with memory; level 0 ends the pipeline */
    int *node_at;      /* [level]: the node there, or -1 */
    int *best;         /* per pair: the edge of the stage at hand, or -1 */
    int *touched;      /* pairs with an edge */
    uint64_t *in_bits; /* per node: boundary layouts that occur */
    uint64_t *out_bits;
    int in_words, out_words;
    size_t node_room, order_room, in_room, out_room;
    bool too_large;
} builder_t;

/* Tables have one level only when numbers of stages are not told apart. */
static double *after_of(const builder_t *b, int level)
{
    return b->after + (size_t)(b->build->levels ? level : 0) * b->band.size;
}

static int *node_of(const builder_t *b, int level, int devices, int layer)
{
    return b->node_at + (size_t)(b->build->levels ? level : 0) * b->band.size +
           ap_inter_op_band_at(&b->band, devices, layer);
}

static xm_status_t no_room(void)
{
    return XM_NO_MEMORY("the graph of stages");
}

/* Leaves out places that no plan below the threshold comes by. T is at least the sum before and
 * after the place plus (B - 1) times the smallest bottleneck. */
static void drop_hopeless(const builder_t *b, const double *before, size_t size, double *after)
{
    double room = b->build->threshold - b->rounds * b->build->least_max;

    for (size_t i = 0; i < size; ++i) {
        if (!(before[i] + after[i] < room)) {
            after[i] = INFINITY;
        }
    }
}

/* Copies the part of a table over all places that is in the band. The band is much smaller: after
 * so many layers, good plans have used a certain number of devices, give or take a few. */
static void narrow(const builder_t *b, const double *wide, double *values)
{
    const ap_inter_op_band_t *band = &b->band;

    for (int devices = 0; devices <= b->space->total; ++devices) {
        if (band->high[devices] >= band->low[devices]) {
            memcpy(values + ap_inter_op_band_at(band, devices, band->low[devices]),
                   wide + ap_inter_op_band_at(&b->space->everywhere, devices, band->low[devices]),
                   (size_t)(band->high[devices] - band->low[devices] + 1) * sizeof(*values));
        }
    }
}

/* Finds the useful places and lays out the tables over the band around them. Only then the number
 * of levels multiplies anything. */
static xm_status_t lay_out(builder_t *b)
{
    double *before = b->space->before, *after = b->space->after;
    size_t levels = b->build->levels ? (size_t)b->levels : 1;
    xm_status_t status;

    /* The limit on the longest stage is found first, because it makes the sums before and after
     * larger. */
    b->limit = ap_inter_op_relax_limit(b->space, b->build->threshold, before);
    ap_inter_op_relax_after(b->space, &b->space->everywhere, after, before, after);
    drop_hopeless(b, before, b->space->everywhere.size, after);
    /* The band is laid around the places that are left, before any table with levels is made. */
    status = ap_inter_op_band_open(b->space, &b->arena, after, &b->band);
    if (status == XM_OK) {
        size_t size = b->band.size;

        b->before = xm_arena_take(&b->arena, size * sizeof(*b->before));
        b->hopeful = xm_arena_take(&b->arena, size * sizeof(*b->hopeful));
        b->after = xm_arena_take(&b->arena, levels * size * sizeof(*b->after));
        b->node_at = xm_arena_take(&b->arena, levels * size * sizeof(*b->node_at));
        status = b->arena.failed ? no_room() : XM_OK;
    }
    if (status == XM_OK) {
        narrow(b, before, b->before);
        narrow(b, after, b->hopeful);
        memset(b->node_at, 0xff, levels * b->band.size * sizeof(*b->node_at));
    }
    return status;
}

/* Fills the relaxed costs from every place on, for each number of stages if they are told apart.
 * With levels, the stages at level k are those whose memory allows k - 1 successors, so memory is
 * part of these bounds. */
static void fill_after(builder_t *b)
{
    if (!b->build->levels) {
        memcpy(b->after, b->hopeful, b->band.size * sizeof(*b->after));
        return;
    }
    for (size_t i = 0; i < b->band.size; ++i) {
        b->after[i] = INFINITY;
    }
    /* At level 0 nothing is left: all layers are done. */
    ap_inter_op_relax_end(b->space, &b->band, b->after);
    for (int level = 1; level < b->levels; ++level) {
        /* With one stage less to follow, more configurations fit; so each level has costs of its
         * own. */
        ap_inter_op_space_cheapest(b->space, level - 1, b->limit);
        ap_inter_op_relax_after(b->space, &b->band, after_of(b, level - 1), b->hopeful,
                                after_of(b, level));
        drop_hopeless(b, b->before, b->band.size, after_of(b, level));
    }
}

/* Returns the node at a place, made on first use; -1: no memory. */
static int get_node(builder_t *b, int level, int devices, int layer)
{
    ap_inter_op_graph_t *graph = b->graph;
    size_t in_bytes = (size_t)b->in_words * sizeof(*b->in_bits);
    size_t out_bytes = (size_t)b->out_words * sizeof(*b->out_bits);
    size_t count = (size_t)graph->node_count;
    int *at = node_of(b, level, devices, layer);

    if (*at >= 0) {
        return *at;
    }
    if (!XM_ARRAY_ROOM(graph->nodes, b->node_room, count) ||
        !XM_ARRAY_ROOM(graph->order, b->order_room, count) ||
        !xm_array_reserve(&b->in_bits, &b->in_room, count + 1, in_bytes) ||
        !xm_array_reserve(&b->out_bits, &b->out_room, count + 1, out_bytes)) {
        return -1;
    }
    memset((char *)b->in_bits + count * in_bytes, 0, in_bytes);
    memset((char *)b->out_bits + count * out_bytes, 0, out_bytes);
    graph->nodes[graph->node_count] =
        (ap_inter_op_node_t){.layer = layer, .devices = devices, .level = level};
    *at = graph->node_count++;
    return *at;
}

/* Adds an edge for each pair of boundary layouts (ports in the identifiers) that some
 * configuration of the stage has. Of the configurations with one pair of layouts only the
 * cheapest can be in a best plan, because neighbours see nothing but the layouts; with `thin`
 * all configurations count as one pair. Of equal costs the first in the table stays. `elsewhere`
 * is the relaxed cost of all other stages. */
static xm_status_t add_edges(builder_t *b, int node, int target, int last, int submesh,
                             double elsewhere)
{
    const ap_inter_op_problem_t *problem = b->space->problem;
    ap_inter_op_graph_t *graph = b->graph;
    ap_inter_op_node_t at = graph->nodes[node];
    size_t cell = ap_inter_op_cell(problem, at.layer, last, submesh);
    int needed = b->build->levels ? at.level - 1 : 0, touched = 0;

    /* A configuration too slow for the threshold, or too large for the stages that follow, gets no
     * edge. */
    for (size_t c = b->space->choice_at[cell]; c < b->space->choice_at[cell + 1]; ++c) {
        const ap_inter_op_choice_t *choice = &b->space->choice[c];
        int pair =
            b->space->pair_of[b->build->thin ? submesh * problem->config_count : choice->state];
        double cost = choice->cost;

        if (!(cost <= b->limit) || choice->successors < needed ||
            !(elsewhere + cost + b->rounds * fmax(cost, b->build->least_max) <
              b->build->threshold)) {
            continue;
        }
        if (b->best[pair] >= 0) {
            ap_inter_op_edge_t *edge = &graph->edges[b->best[pair]];

            if (cost < edge->cost) {
                edge->cost = cost;
                edge->state = choice->state;
            }
            continue;
        }
        /* Indices stay valid when the array moves, pointers do not. */
        if (!XM_ARRAY_ROOM(graph->edges, graph->edge_capacity, graph->edge_count)) {
            return no_room();
        }
        b->touched[touched++] = pair;
        b->best[pair] = (int)graph->edge_count;
        graph->edges[graph->edge_count++] = (ap_inter_op_edge_t){
            .cost = cost, .after = target, .last = last, .state = choice->state};
    }
    /* The boundary layouts that occur at both ends are noted, and the pairs' marks are taken
     * back. */
    for (int i = 0; i < touched; ++i) {
        const ap_inter_op_edge_t *edge = &graph->edges[b->best[b->touched[i]]];
        int in = b->space->in_of[edge->state], out = b->space->out_of[edge->state];

        b->in_bits[(size_t)node * (size_t)b->in_words + (size_t)(in / WORD)] |= 1ULL << in % WORD;
        b->out_bits[(size_t)target * (size_t)b->out_words + (size_t)(out / WORD)] |= 1ULL
                                                                                     << out % WORD;
        b->best[b->touched[i]] = -1;
    }
    return XM_OK;
}

/* Adds all useful stages that begin at a node. The cheapest step of the range's Pareto staircase
 * is a bound on all configurations, so most ranges are left out without a look at them. */
static xm_status_t expand(builder_t *b, int node)
{
    ap_inter_op_space_t *space = b->space;
    ap_inter_op_node_t at = b->graph->nodes[node];
    const double *after = after_of(b, at.level - 1);
    /* What stands before the node costs at least this, and what stands after a stage at least
     * `rest`. */
    double before = b->before[ap_inter_op_band_at(&b->band, at.devices, at.layer)];
    xm_status_t status = XM_OK;

    b->graph->nodes[node].first_edge = b->graph->edge_count;
    for (int s = 0; s < space->submeshes && status == XM_OK; ++s) {
        int left = at.devices - space->size[s], first, end;

        if (!space->fits[(size_t)s * ((size_t)space->total + 1) + (size_t)at.devices]) {
            continue;
        }
        /* Only ends inside the band can lead anywhere. */
        first = b->band.low[left] - 1 > at.layer ? b->band.low[left] - 1 : at.layer;
        end = b->band.high[left];
        for (int last = first; last < end && status == XM_OK; ++last) {
            double rest = after[ap_inter_op_band_at(&b->band, left, last + 1)];
            size_t cell = ap_inter_op_cell(space->problem, at.layer, last, s);
            size_t step = space->staircase_at[cell];
            int target;

            if (!(rest < INFINITY) || step == space->staircase_at[cell + 1] ||
                !(before + rest + space->staircase[step].cost +
                      b->rounds * fmax(space->staircase[step].cost, b->build->least_max) <
                  b->build->threshold)) {
                continue;
            }
            /* The node is made even if no configuration passes the closer test in add_edges();
             * it then has no edge to it, and costs next to nothing. */
            target = get_node(b, at.level - 1, left, last + 1);
            status = target < 0 ? no_room() : add_edges(b, node, target, last, s, before + rest);
        }
        /* The caller is told that the graph is too large; it will be built again, thinned. */
        if (b->graph->edge_count > b->build->most_edges) {
            b->too_large = true;
            break;
        }
    }
    b->graph->nodes[node].end_edge = b->graph->edge_count;
    return status;
}

static int count_bits(const uint64_t *bits, int words)
{
    int count = 0;

    for (int w = 0; w < words; ++w) {
        count += __builtin_popcountll(bits[w]);
    }
    return count;
}

/* The number of a boundary layout among those that occur. Values and boundary costs are then
 * needed for these only, which are a few of all layouts. */
static int rank_of(const uint64_t *bits, int port)
{
    return count_bits(bits, port / WORD) +
           __builtin_popcountll(bits[port / WORD] & ((1ULL << port % WORD) - 1));
}

static void list_bits(const uint64_t *bits, int words, int *ports)
{
    for (int w = 0; w < words; ++w) {
        for (uint64_t left = bits[w]; left != 0; left &= left - 1) {
            *ports++ = w * WORD + __builtin_ctzll(left);
        }
    }
}

/* Asks for the boundary costs that a node needs, as lower bounds where there is a quicker question
 * for those. Blocks are shared by all nodes of the same kind of boundary and place, so a pair is
 * asked about once. */
static xm_status_t ask_boundaries(builder_t *b, ap_inter_op_node_t *node)
{
    const ap_inter_op_graph_t *graph = b->graph;
    double *block;
    xm_status_t status = ap_inter_op_space_block(b->space, node->layer, node->devices, &block);

    for (int o = 0; o < node->out_count && status == XM_OK; ++o) {
        int out = graph->out_port[node->first_out + o];

        for (int i = 0; i < node->in_count && status == XM_OK; ++i) {
            int in = graph->in_port[node->first_in + i];

            if (isnan(block[ap_inter_op_block_at(b->space, out, in)])) {
                status = ap_inter_op_space_ask(b->space, node->layer, node->devices, out, in, false,
                                               block);
            }
        }
    }
    node->block = block;
    return status;
}

/* Gives boundary layouts slots, turns the targets of edges into indices of values, and asks for
 * boundaries. Now that all edges are known, so are the layouts that occur. */
static xm_status_t finish(builder_t *b)
{
    ap_inter_op_graph_t *graph = b->graph;
    int ins = 0, outs = 0, widest = 1;

    for (int n = 0; n < graph->node_count; ++n) {
        ap_inter_op_node_t *node = &graph->nodes[n];

        node->in_count = count_bits(b->in_bits + (size_t)n * (size_t)b->in_words, b->in_words);
        node->out_count = count_bits(b->out_bits + (size_t)n * (size_t)b->out_words, b->out_words);
        /* The first stage has no stage before it; one slot stands for that, and holds the value of
         * the whole pipeline. */
        node->out_count += node->layer == 0; /* the value of the whole pipeline */
        node->first_in = ins;
        node->first_out = outs;
        ins += node->in_count;
        outs += node->out_count;
        widest = node->in_count > widest ? node->in_count : widest;
    }
    graph->in_port = xm_arena_get(&graph->arena, (size_t)ins, sizeof(int));
    graph->out_port = xm_arena_get(&graph->arena, (size_t)outs, sizeof(int));
    graph->value = xm_arena_get(&graph->arena, (size_t)outs, sizeof(*graph->value));
    graph->first = xm_arena_get(&graph->arena, (size_t)widest, sizeof(*graph->first));
    if (graph->arena.failed) {
        return no_room();
    }
    for (int n = 0; n < graph->node_count; ++n) {
        ap_inter_op_node_t *node = &graph->nodes[n];
        const uint64_t *in = b->in_bits + (size_t)n * (size_t)b->in_words;

        /* At the end of the pipeline nothing is left to pay. */
        for (int o = 0; node->layer == b->space->layers && o < node->out_count; ++o) {
            graph->value[node->first_out + o].count = 1;
        }
        list_bits(in, b->in_words, graph->in_port + node->first_in);
        list_bits(b->out_bits + (size_t)n * (size_t)b->out_words, b->out_words,
                  graph->out_port + node->first_out);
        for (size_t e = node->first_edge; e < node->end_edge; ++e) {
            ap_inter_op_edge_t *edge = &graph->edges[e];
            /* Until now `after` was the node that the edge leads to; from here on it is a value
             * of that node. */
            int target = edge->after;

            edge->in = rank_of(in, b->space->in_of[edge->state]);
            edge->after = graph->nodes[target].first_out +
                          rank_of(b->out_bits + (size_t)target * (size_t)b->out_words,
                                  b->space->out_of[edge->state]);
        }
        if (b->space->block != NULL && node->layer > 0 && node->layer < b->space->layers) {
            XM_TRY(ask_boundaries(b, node));
        }
    }
    return XM_OK;
}

/* Expands nodes from the front to the end. Stages use devices up, so by falling number of devices
 * every node comes before all that follow it; that order is kept for the runs, which go through it
 * backwards. */
static xm_status_t expand_all(builder_t *b)
{
    ap_inter_op_space_t *space = b->space;
    xm_status_t status = XM_OK;
    /* Pipelines with too few stages get no first node. */
    int least = b->build->levels && space->problem->min_stages > 1 ? space->problem->min_stages : 1;

    for (int level = b->levels - 1; level >= least; --level) {
        bool none =
            b->band.low[space->total] > 0 || b->band.high[space->total] < 0 ||
            !(after_of(b, level)[ap_inter_op_band_at(&b->band, space->total, 0)] < INFINITY);

        if (!none && get_node(b, level, space->total, 0) < 0) {
            return no_room();
        }
    }
    for (int level = b->levels - 1; level > 0 && status == XM_OK; --level) {
        for (int devices = space->total; devices > 0 && status == XM_OK; --devices) {
            for (int layer = b->band.low[devices];
                 layer <= b->band.high[devices] && layer < space->layers && status == XM_OK;
                 ++layer) {
                /* No node was made where no edge led, so most places are skipped. */
                int node = *node_of(b, level, devices, layer);

                if (node >= 0 && !b->too_large) {
                    status = expand(b, node);
                    b->graph->order[b->graph->order_count++] = node;
                }
            }
        }
    }
    return status;
}

/* The graph itself goes to the caller. */
static void release(builder_t *b)
{
    xm_arena_clear(&b->arena);
    free(b->in_bits);
    free(b->out_bits);
}

static xm_status_t allocate(builder_t *b)
{
    size_t pairs = (size_t)b->space->pairs;

    b->best = xm_arena_take(&b->arena, pairs * sizeof(*b->best));
    b->touched = xm_arena_take(&b->arena, pairs * sizeof(*b->touched));
    if (b->arena.failed) {
        return no_room();
    }
    memset(b->best, 0xff, pairs * sizeof(*b->best));
    return lay_out(b);
}

/* Builds in this order: bounds, edges, boundary layouts. A graph that became too large is freed
 * at once, with *too_large set; that is no failure. */
xm_status_t ap_inter_op_graph_build(ap_inter_op_space_t *space, const ap_inter_op_build_t *build,
                                    ap_inter_op_graph_t *graph, bool *too_large)
{
    builder_t b = {.space = space,
                   .build = build,
                   .graph = graph,
                   .levels = build->levels ? space->most_stages + 1 : 2,
                   .rounds = (double)(space->problem->micro_batches - 1),
                   .in_words = (space->in_ports + WORD - 1) / WORD,
                   .out_words = (space->out_ports + WORD - 1) / WORD};
    xm_status_t status;

    *graph = (ap_inter_op_graph_t){.space = space, .levels = build->levels, .limit = INFINITY};
    status = allocate(&b);
    if (status == XM_OK) {
        fill_after(&b);
        status = expand_all(&b);
    }
    if (status == XM_OK && !b.too_large) {
        status = finish(&b);
    }
    *too_large = b.too_large;
    release(&b);
    if (status != XM_OK || *too_large) {
        ap_inter_op_graph_free(graph);
    }
    return status;
}

void ap_inter_op_graph_free(ap_inter_op_graph_t *graph)
{
    free(graph->nodes);
    free(graph->order);
    free(graph->edges);
    xm_arena_clear(&graph->arena);
    *graph = (ap_inter_op_graph_t){0};
}
