/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of the presolve, shared by its steps. Internal.
 *
 * A node's values are numbered 0 … size - 1 and renumbered when some go; `origin` has their
 * strategies in the original problem, by which the log speaks.
 */
#pragma once

#include "planner/solver/reduce.h"

typedef struct ap_reduce_segment {
    int from, to;
    double *usage; /* by value */
} ap_reduce_segment_t;

typedef struct ap_reduce_node {
    bool gone; /* contracted into another or eliminated */
    bool queued;
    int size;
    double *cost;
    int *origin;
    int *edge; /* may contain edges that are gone */
    int degree;
    size_t capacity;
    ap_reduce_segment_t *segment;
    int segments;
} ap_reduce_node_t;

typedef struct ap_reduce_edge {
    bool gone, queued;
    int a, b;
    double *table; /* [a][b] */
} ap_reduce_edge_t;

/* `node` took a value that follows from those of its leaders: value[strategy of leader 0 * width +
 * strategy of leader 1], a strategy of the original problem. */
typedef struct ap_reduce_step {
    int node;
    int leaders;
    int leader[2];
    int width; /* strategies of leader 1; 1 when there is none */
    int *value;
} ap_reduce_step_t;

struct ap_cfn_reduction {
    const ap_cfn_t *cfn;
    bool noted;      /* what happens is noted for a certificate, and nothing that it cannot say is
                        done */
    int (*event)[4]; /* as ap_cfn_reduction_events() tells them */
    size_t events, event_capacity;
    const int *better; /* per value that goes: another that is no worse; NULL: it is impossible */
    int64_t *when;     /* per time: the original one */
    double most;       /* nanoseconds of a usual core for what need not be done */
    double spent;      /* of them */
    int64_t deadline;  /* the latest end of that */
    ap_cfn_cut_t cut;
    int nodes; /* those of the problem, then one per edge of three nodes */
    int *strategies;
    ap_reduce_node_t *node;
    int edges;
    size_t edge_capacity;
    ap_reduce_edge_t *edge;
    int *work; /* edges to look at again, a stack */
    int work_count;
    size_t work_capacity;
    int *mark;    /* per node, scratch: -1 */
    int largest;  /* values of a node, at most */
    bool *keep;   /* per value of a node, scratch */
    int *partner; /* the same */
    int steps;
    size_t step_capacity;
    ap_reduce_step_t *step;
    double constant;
    int times;
    int (*range)[2];  /* per node: the times at which it is live */
    double *capacity; /* per time */
    bool profiled;    /* ap_reduce_profile() has been */
    int *root;        /* per variable of the core: its node */
    ap_cfn_core_t *core;
    xm_arena_t pool;  /* what the way back needs as well */
    xm_arena_t graph; /* what goes with the graph, but tables and lists that grow */
};

/* planner/solver/reduce/reduce.c */

/* The core of what is left; its variables' nodes are in `root`. */
xm_status_t ap_reduce_make_core(ap_cfn_reduction_t *self);

/* planner/solver/reduce/graph.c */

xm_status_t ap_reduce_no_memory(void);

xm_status_t ap_reduce_add_edge(ap_cfn_reduction_t *self, int a, int b, double *table);

/* Makes ready for costs to be added to the edge between two nodes: where *edge is -1, it is made,
 * of zeros. */
xm_status_t ap_reduce_join(ap_cfn_reduction_t *self, int a, int b, int *edge);

/* Counts cells that were looked at, and tells whether there is time for what need not be done. */
void ap_reduce_spend(ap_cfn_reduction_t *self, double cells);
bool ap_reduce_goes_on(ap_cfn_reduction_t *self);

/* Notes an event, where that is wanted. */
xm_status_t ap_reduce_note(ap_cfn_reduction_t *self, ap_cfn_event_t kind, int node, int x, int y);

/* Puts an edge on the work list. */
xm_status_t ap_reduce_touch(ap_cfn_reduction_t *self, int edge);

/* Keeps the marked values of a node. XM_ERR_NO_SOLUTION when that is none. */
xm_status_t ap_reduce_shrink(ap_cfn_reduction_t *self, int node, const bool *keep);

/* Drops edges that are gone from a node's list. */
void ap_reduce_tidy(ap_cfn_reduction_t *self, int node);

/* Takes an edge out of the problem. */
void ap_reduce_drop_edge(ap_cfn_reduction_t *self, int edge);

/* A new entry of the log; `value` becomes its own. */
xm_status_t ap_reduce_log(ap_cfn_reduction_t *self, const ap_reduce_step_t *step);

/* Works until nothing is on the list: arc consistency, contraction, separable tables. */
xm_status_t ap_reduce_propagate(ap_cfn_reduction_t *self);

/* Cell of an edge by the values of `node` and of the other end. */
static inline double *ap_reduce_cell(const ap_cfn_reduction_t *self, const ap_reduce_edge_t *edge,
                                     int node, int value, int other)
{
    size_t width = (size_t)self->node[edge->b].size;

    return edge->a == node ? &edge->table[(size_t)value * width + (size_t)other]
                           : &edge->table[(size_t)other * width + (size_t)value];
}

static inline int ap_reduce_other(const ap_reduce_edge_t *edge, int node)
{
    return edge->a == node ? edge->b : edge->a;
}

/* planner/solver/reduce/usage.c */

/* Before contraction: drops what cannot fit. */
xm_status_t ap_reduce_fit(ap_cfn_reduction_t *self);

/* Times, capacities, and the segments of all nodes that are left. */
xm_status_t ap_reduce_profile(ap_cfn_reduction_t *self);

/* Takes what every value uses off the capacities, after values went. */
xm_status_t ap_reduce_refit(ap_cfn_reduction_t *self);

/* planner/solver/reduce/least.c */

/* Drops values with which more is used at some time than there is, whatever the others do. */
xm_status_t ap_reduce_fit_together(ap_cfn_reduction_t *self);

/* planner/solver/reduce/values.c */

/* Dominated values and nodes of degree up to two without usage, until there are none. */
xm_status_t ap_reduce_values(ap_cfn_reduction_t *self);
