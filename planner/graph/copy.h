/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/graph/copy.h
 * Moving operators from one graph into another, for the passes that derive graphs from graphs. Not
 * installed.
 */
#pragma once

#include "planner/graph/graph.h"

/** A graph under construction, made of operators of another. */
typedef struct ap_graph_copy {
    const ap_graph_t *from;
    ap_graph_t *to;
    int *tensor; /**< per tensor of `from`: the one it became, -1: none yet */
} ap_graph_copy_t;

/** Starts an empty graph of the same name. */
xm_status_t ap_graph_copy_open(const ap_graph_t *from, ap_graph_copy_t *copy);

/** Ends a copy: finishes the graph and hands it out, or, where @p status is a failure already,
 * frees it and returns that. */
xm_status_t ap_graph_copy_close(ap_graph_copy_t *copy, xm_status_t status, ap_graph_t **graph);

/** An input or a parameter, unless it is there. */
xm_status_t ap_graph_copy_source(ap_graph_copy_t *copy, int tensor);

/**
 * Appends an operator, with its rule, costs and label, to the current layer of the new graph;
 * inputs and parameters that it uses come with it. Its activations must be there. The map then says
 * the new results: an operator that is copied twice is known by its second copy.
 */
xm_status_t ap_graph_copy_op(ap_graph_copy_t *copy, int op);

/** A whole graph, unfinished, so that operators can be added; its operators have no labels. */
xm_status_t ap_graph_copy_whole(const ap_graph_t *from, ap_graph_t **copy);
