/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file inter_op_private.h
 * The search behind inter_op.h: the space of a problem, the stages of it that can still matter, and
 * runs of the dynamic programme over those. Not installed.
 *
 * How it stays exact and small: for a threshold on T, a relaxed programme without boundaries gives
 * for every (layers done, devices left) the least sum before and after it. A stage whose best plan
 * through it is not below the threshold is left out. If the best plan of what remains is below the
 * threshold, it is the best of all; otherwise the threshold is raised.
 */
#pragma once

#include "planner/inter_op/inter_op.h"

/* A way to trade time for memory: the least cost of a range on a submesh that still allows so many
 * stages after it. */
typedef struct ap_inter_op_step {
    double cost;
    int32_t successors;
} ap_inter_op_step_t;

/* A configuration that a stage can have. */
typedef struct ap_inter_op_choice {
    double cost;
    int32_t successors;
    int state;
} ap_inter_op_choice_t;

/* A cell of a problem's tables: a row of ranges on a submesh. */
static inline size_t ap_inter_op_cell(const ap_inter_op_problem_t *problem, int first, int last,
                                      int submesh)
{
    size_t range = (size_t)first * (size_t)problem->layers + (size_t)last;
    size_t row = problem->range_row != NULL ? (size_t)problem->range_row[range] : range;

    return row * (size_t)problem->submesh_count + (size_t)submesh;
}

/*
 * Places (devices left, layers done) that matter: for every number of devices the layers from low
 * to high. Tables over a band have its rows one after the other.
 */
typedef struct ap_inter_op_band {
    int *low, *high;  /* per devices left; none where high < low */
    ptrdiff_t *start; /* per devices left: where layer 0 is, or would be */
    size_t size;
} ap_inter_op_band_t;

static inline size_t ap_inter_op_band_at(const ap_inter_op_band_t *band, int devices, int layer)
{
    return (size_t)(band->start[devices] + layer);
}

/* A problem laid out for searching. State = submesh * configurations + configuration. */
typedef struct ap_inter_op_space {
    const ap_inter_op_problem_t *problem;
    xm_arena_t arena; /* all arrays but those that grow */
    int layers, states, submeshes;
    int total;          /* devices of the cluster */
    int *size;          /* devices per submesh */
    bool *fits;         /* [submesh][devices left] */
    int *low, *high;    /* scratch, per devices left: layers between which there is anything */
    bool counts_stages; /* the problem limits the number of stages */
    int most_stages;
    size_t cells;                  /* of the tables */
    size_t *staircase_at;          /* per cell, and one more: where its steps begin */
    ap_inter_op_step_t *staircase; /* of one cell: costs rise, successors rise */
    size_t *choice_at;             /* per cell, and one more: where its choices begin */
    ap_inter_op_choice_t *choice;  /* of one cell: those that are best for their ports */
    double *least;                 /* scratch, per cell */
    double *cheapest;              /* [submesh][first][last]: of the stages now asked about */
    int *reach;                    /* [submesh][first]: where those end, one behind the last */
    int *need;                     /* [first]: fewest devices for the layers from there on */
    ap_inter_op_band_t everywhere; /* all places */
    /* Scratch, tables over them: least cost of what stands before each or after it, without
     * boundaries. */
    double *before, *after;
    int in_ports, out_ports; /* 1 when boundaries are free */
    int *in_of, *out_of;     /* per state */
    int *pair_of;            /* per state: number of its (submesh, in port, out port) */
    int pairs;
    int rows, *row_of;     /* boundary rows, and that before each layer */
    int places, *place_of; /* boundary places, and that of each first device */
    double **block;        /* [row][place]: [out port][in port], NaN where not yet asked, then as
                              many flags: it is the cost itself, not a bound of it; or NULL */
} ap_inter_op_space_t;

/* Whether a plan may end with so many devices left: all are used, or whole hosts are left out. */
static inline bool ap_inter_op_may_end(const ap_inter_op_space_t *space, int devices)
{
    return devices == 0 ||
           (space->problem->spare_hosts && devices % space->problem->devices_per_host == 0);
}

/* Checks the tables of a checked problem and lays them out; close() also after a failure. */
xm_status_t ap_inter_op_space_open(ap_inter_op_space_t *space,
                                   const ap_inter_op_problem_t *problem);
void ap_inter_op_space_close(ap_inter_op_space_t *space);

/* `cheapest` of the stages that begin with a layer, by their last. */
static inline double *ap_inter_op_stages(const ap_inter_op_space_t *space, int submesh, int first)
{
    return space->cheapest +
           ((size_t)submesh * (size_t)space->layers + (size_t)first) * (size_t)space->layers;
}

/* Asks about the stages that leave room for @p successors stages and take no longer than @p limit:
 * sets `cheapest`, which the relaxed programme goes by. */
void ap_inter_op_space_cheapest(ap_inter_op_space_t *space, int successors, double limit);

/* Seconds across the boundary before @p layer where the later stage starts with @p devices left. */
xm_status_t ap_inter_op_space_block(ap_inter_op_space_t *space, int layer, int devices,
                                    double **block);
/* Asks for one of them: its least cost, if there is such a question, or with @p settle the cost. */
xm_status_t ap_inter_op_space_ask(ap_inter_op_space_t *space, int layer, int devices, int out,
                                  int in, bool settle, double *block);

static inline size_t ap_inter_op_block_at(const ap_inter_op_space_t *space, int out, int in)
{
    return (size_t)out * (size_t)space->in_ports + (size_t)in;
}

/* The flags of a block. */
static inline bool *ap_inter_op_settled(const ap_inter_op_space_t *space, double *block)
{
    return (bool *)(block + ap_inter_op_block_at(space, space->out_ports, 0));
}

/* A band around the places where a table over all places is not infinite; NULL: all places. Its
 * arrays are the arena's. */
xm_status_t ap_inter_op_band_open(const ap_inter_op_space_t *space, xm_arena_t *arena,
                                  const double *values, ap_inter_op_band_t *band);

/* Cost up to there, with the stages now asked about; returns that of everything. Places from where
 * the devices do not suffice for the rest may stay infinite. */
double ap_inter_op_relax_before(const ap_inter_op_space_t *space, bool use_max, double *before);
/* The longest stage that a plan with T below @p threshold can have: the rest of the plan costs
 * something, too. Asks about those below it, whatever follows, and leaves the costs up to there. */
double ap_inter_op_relax_limit(ap_inter_op_space_t *space, double threshold, double *before);
/* Sets the places of a band where a plan may end to 0. */
void ap_inter_op_relax_end(const ap_inter_op_space_t *space, const ap_inter_op_band_t *band,
                           double *values);
/* Cost from there on, over a band; @p after is that of the stages one level later, or @p values
 * itself. Places where @p hopeful is infinite are left infinite. */
void ap_inter_op_relax_after(const ap_inter_op_space_t *space, const ap_inter_op_band_t *band,
                             const double *after, const double *hopeful, double *values);

/* A stage from one node to another. */
typedef struct ap_inter_op_edge {
    double cost;
    int in;    /* slot among the in ports of its node */
    int after; /* index of the value behind it */
    int last, state;
} ap_inter_op_edge_t;

enum { AP_INTER_OP_LABELS = 6 };

/* A rest of a pipeline: its cost, and how much longer than the period micro-batches of its window
 * take to come back; and what it begins with. */
typedef struct ap_inter_op_label {
    double cost, wait;
    int edge, next; /* the label behind the edge */
} ap_inter_op_label_t;

typedef struct ap_inter_op_labels {
    int count;
    ap_inter_op_label_t label[AP_INTER_OP_LABELS];
} ap_inter_op_labels_t;

/* A place where a stage begins. */
typedef struct ap_inter_op_node {
    int layer, devices, level;
    size_t first_edge, end_edge;
    int first_in, in_count;   /* into in_port[] */
    int first_out, out_count; /* into out_port[] and value[] */
    double *block;            /* NULL: boundaries are free */
} ap_inter_op_node_t;

typedef struct ap_inter_op_graph {
    ap_inter_op_space_t *space;
    ap_inter_op_node_t *nodes;
    int node_count;
    int *order; /* nodes where stages begin: none before one that leads to it */
    int order_count;
    ap_inter_op_edge_t *edges;
    size_t edge_count, edge_capacity;
    xm_arena_t arena; /* the arrays below */
    int *in_port, *out_port;
    ap_inter_op_labels_t *value; /* per out port of a node: what is from there on */
    ap_inter_op_labels_t *first; /* scratch, per in port */
    bool levels;                 /* nodes are told apart by the stages that follow */
    double limit;                /* of the period */
    bool use_max; /* combine by max (smallest bottleneck, windows aside) instead of sum */
} ap_inter_op_graph_t;

/* A whole pipeline of the last run. */
typedef struct ap_inter_op_start {
    int node; /* -1: there is none */
    int label;
} ap_inter_op_start_t;

/* How large a graph may be, and which plans it must hold. */
typedef struct ap_inter_op_build {
    double threshold; /* all plans with T below */
    double least_max; /* no plan's longest stage is below */
    bool levels;      /* tell nodes apart by the stages that follow */
    size_t most_edges;
    bool thin; /* one configuration per range and submesh only */
} ap_inter_op_build_t;

/* A graph without plans has no nodes. *too_large: it would exceed most_edges, and is not built. */
xm_status_t ap_inter_op_graph_build(ap_inter_op_space_t *space, const ap_inter_op_build_t *build,
                                    ap_inter_op_graph_t *graph, bool *too_large);
void ap_inter_op_graph_free(ap_inter_op_graph_t *graph);

/* Runs the programme under graph->limit; returns the least cost (INFINITY: none) and in *start what
 * has it. */
double ap_inter_op_graph_run(ap_inter_op_graph_t *graph, ap_inter_op_start_t *start);

/* Asks for the costs of the boundaries that a pipeline of the last run crosses, of which only the
 * least were known. *changed: that run counts no longer, for they are above. */
xm_status_t ap_inter_op_graph_settle(ap_inter_op_graph_t *graph, const ap_inter_op_start_t *start,
                                     double value, bool *changed);
/* The same for one boundary; *above: it costs more than its bound and than @p known. */
xm_status_t ap_inter_op_settle_one(const ap_inter_op_graph_t *graph, const ap_inter_op_node_t *node,
                                   int out, int in, double known, bool *above);

/* Writes a pipeline of the last run as stages and returns their number. */
int ap_inter_op_graph_trace(const ap_inter_op_graph_t *graph, const ap_inter_op_start_t *start,
                            ap_inter_op_stage_t *stages);

/* The node that a value belongs to. */
int ap_inter_op_node_behind(const ap_inter_op_graph_t *graph, int value);

/* The stage that an edge is, after a stage that leaves its output so. */
void ap_inter_op_stage_of(const ap_inter_op_graph_t *graph, const ap_inter_op_node_t *node, int out,
                          const ap_inter_op_edge_t *edge, ap_inter_op_stage_t *stage);

/* Fills in sum, period and objective of a plan. */
void ap_inter_op_measure(const ap_inter_op_problem_t *problem, const ap_inter_op_stage_t *stages,
                         int count, ap_inter_op_result_t *result);

/* Plans judged and kept (planner/inter_op/judge.c). */
typedef struct ap_inter_op_judge {
    const ap_inter_op_problem_t *problem;
    ap_inter_op_result_t *best; /* the fastest so far */
    bool stopped;               /* the caller has asked to stop; it is not asked again */
    bool misfit;                /* some plan was left out as its memory does not allow it */
    xm_status_t status;
} ap_inter_op_judge_t;

bool ap_inter_op_must_stop(ap_inter_op_judge_t *judge);
/* Keeps a measured plan if it is the best so far; of equal ones the first stays. */
void ap_inter_op_consider(ap_inter_op_judge_t *judge, const ap_inter_op_stage_t *stages,
                          const ap_inter_op_result_t *measured);

/* Judges the plans of a graph in the order of their objectives, as far as @p budget simulations go;
 * returns what the objectives of all others are not below. */
double ap_inter_op_enumerate(ap_inter_op_judge_t *judge, ap_inter_op_graph_t *graph, int budget);
