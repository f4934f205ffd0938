/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a graph: shared by graph.c (building), planner/graph/layers.c (validation, layers)
 * and what makes graphs of graphs. */
#pragma once

#include "planner/graph/graph.h"

struct ap_graph {
    xm_arena_t arena; /* names, and what operators list */
    char *name;
    ap_tensor_t *tensors;
    ap_op_t *ops;
    int tensor_count;
    size_t tensor_capacity;
    int op_count;
    size_t op_capacity;
    int layer; /* that new operators belong to */
    int loss;
    bool loss_is_gradient;
    bool finished;
    int layers;
    int frozen;      /* of them, the first, whose parameters are not trained */
    int *boundary;   /* per layer, when finished */
    int *rest_until; /* per tensor, likewise */
};

/* Appends a tensor of this name; it copies the name. */
xm_status_t ap_graph_append_tensor(ap_graph_t *graph, const ap_tensor_t *tensor, const char *name,
                                   int *id);

/* Makes the lists of an operator of so many operands and results, of which `differentiates` is 0
 * and all is touched. All but its rule belongs to the graph. */
xm_status_t ap_op_open(ap_graph_t *graph, ap_op_t *op, int operands, int results);

/* A name as a graph keeps it: always UTF-8. NULL without memory, or of none. */
char *ap_graph_keep_name(ap_graph_t *graph, const char *name);

/* Makes room for one more operator. */
xm_status_t ap_graph_reserve_op(ap_graph_t *graph);
