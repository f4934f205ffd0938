/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sequence of a forward graph's operators that layers are cut from: layering.c decides where,
 * layering_sequence.c makes the sequence and copies from it. Not installed.
 */
#pragma once

#include "planner/graph.h"

/* Operators that compute from both data and weights, in order. Place p is the one before the p-th.
 */
typedef struct ap_sequence {
    const ap_graph_t *graph;
    int count;
    int *op;         /* per place: operator of the graph */
    double *flops;   /* per place */
    bool *heavy;     /* per place: a product of matrices or a convolution */
    bool *may_begin; /* per place: a layer can begin here; at first where one tensor passes */
    bool *possible;  /* per place: the same, also where several do */
    int *crossing;   /* per place: tensors that pass it */
    double *passing; /* per place: their bytes */
    int places;      /* that a layer can begin at, but for the first */
    int tensors;     /* made by an operator of the sequence and used by a later one */
    double *bytes;
    int *maker;
    int *use_begin, *use_tensor; /* as ap_operator_clustering_t has them */
    char *kind;                  /* per operator of the graph, see layering_sequence.c */
    int *form;                   /* per parameter of the graph: the tensor it is taken as */
    int *stamp;                  /* per operator: the last layer it was copied for */
    int *stack, *scratch, *user;
    xm_arena_t arena;
} ap_sequence_t;

xm_status_t ap_sequence_create(const ap_graph_t *forward, ap_sequence_t *sequence);
void ap_sequence_clear(ap_sequence_t *sequence);

/* Lets layers begin also where several tensors pass, at the places with fewest bytes around; false:
 * there are none. */
bool ap_sequence_widen(ap_sequence_t *sequence);

/* Starts a graph of the sequence's operators: weights in their forms are there. */
xm_status_t ap_sequence_copy_open(const ap_sequence_t *sequence, ap_graph_copy_t *copy);

/* Appends the operator of a place, before it what it needs and layer @p layer does not have yet. */
xm_status_t ap_sequence_copy_op(const ap_sequence_t *sequence, int place, int layer,
                                ap_graph_copy_t *copy);

xm_status_t ap_sequence_copy_loss(const ap_sequence_t *sequence, ap_graph_copy_t *copy);
