/* The inside of a graph: shared by graph.c (building) and graph_layers.c (validation, layers). */
#ifndef AP_PLANNER_GRAPH_PRIVATE_H
#define AP_PLANNER_GRAPH_PRIVATE_H

#include "planner/graph.h"

struct ap_graph {
    char *name;
    ap_tensor_t *tensors;
    ap_op_t *ops;
    int tensor_count, tensor_capacity;
    int op_count, op_capacity;
    int layer; /* that new operators belong to */
    int loss;
    bool loss_is_gradient;
    bool finished;
    int layers;
    int *boundary; /* per layer, when finished */
};

#endif
