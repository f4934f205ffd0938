/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A smaller problem with the same optimum: dominated strategies dropped, followers merged. Private
 * to the intra-operator solver.
 */
#pragma once

#include "tests/planner/solver/elimination/pairwise.h"

typedef struct ap_reduced_node {
    bool gone; /* merged into another */
    int size;
    double *cost;
    int *original; /* strategy of the full problem */
    int *edges, edge_count, edge_capacity;
} ap_reduced_node_t;

typedef struct ap_reduced_edge {
    bool gone;
    int a, b;
    double *cost; /* [a][b] */
} ap_reduced_edge_t;

/* `follower` takes the strategy given by that of `leader`, both as in the full problem. */
typedef struct ap_reduced_merge {
    int leader, follower;
    int *strategy;
} ap_reduced_merge_t;

typedef struct ap_reduced {
    int nodes, edges, edge_capacity, merges;
    ap_reduced_node_t *node;
    ap_reduced_edge_t *edge;
    ap_reduced_merge_t *merge;
} ap_reduced_t;

xm_status_t ap_reduced_create(const ap_intra_op_problem_t *problem, ap_reduced_t **reduced);

/* Keeps only the strategies of a node that are marked. */
void ap_reduced_keep(ap_reduced_t *reduced, int node, const bool *keep);

/* Turns strategies of the reduced problem (per node; ignored for nodes that are gone) into those of
 * the full one. */
void ap_reduced_restore(const ap_reduced_t *reduced, const int *assignment, int *choice);

void ap_reduced_destroy(ap_reduced_t *reduced);
