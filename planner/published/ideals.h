/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file ideals.h
 * All down-sets of a directed acyclic graph: the sets of nodes that hold every predecessor of what
 * they hold. A set between two of them is a contiguous part of the graph, so a dynamic programme
 * over down-sets tries every way to cut a graph into contiguous parts (Tarnawski, NeurIPS'20 and
 * '21).
 *
 * Down-sets are numbered by size: 0 is empty, the last has every node. Each has links to those with
 * one node less. Threads: immutable once made.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/base.h"

typedef struct ap_ideals ap_ideals_t;

/** An edge: the node `after` needs the node `before`. */
typedef struct ap_precedence {
    int before, after;
} ap_precedence_t;

/** A down-set with one node less. */
typedef struct ap_ideal_link {
    int32_t ideal; /**< its number */
    int32_t node;  /**< that it lacks */
} ap_ideal_link_t;

/**
 * Enumerates the down-sets of @p nodes nodes. XM_ERR_INVALID_ARGUMENT: the edges have a cycle;
 * XM_ERR_NO_SOLUTION: there are more than @p most.
 */
xm_status_t ap_ideals_create(int nodes, const ap_precedence_t *edges, int edge_count, int most,
                             ap_ideals_t **ideals);

/** Nodes of the graph, and its down-sets. */
int ap_ideals_nodes(const ap_ideals_t *ideals);
int ap_ideals_count(const ap_ideals_t *ideals);

/** Whether down-set @p ideal holds @p node. */
bool ap_ideals_has(const ap_ideals_t *ideals, int ideal, int node);

/** Links of @p ideal to those with one node less, and their number. */
const ap_ideal_link_t *ap_ideals_below(const ap_ideals_t *ideals, int ideal, int *count);

/**
 * A walk over the parts of the graph that end at a down-set: between it and each smaller one. A
 * part is visited once; it grows and shrinks by a node at a time, and @p depth counts its nodes.
 */
typedef struct ap_ideals_walk {
    const ap_ideals_t *ideals;
    /** A node joins the part, or leaves it again. False: the part is too large, and so is every
     * one around it. */
    bool (*enter)(void *arg, int node, int depth);
    void (*leave)(void *arg, int node, int depth);
    /** The part above down-set @p below; true ends the walk. */
    bool (*visit)(void *arg, int above, int below);
    void *arg;
    int *visited;                 /**< [ideal]: the down-set from which it was seen last */
    struct ap_ideals_step *stack; /**< of the walk */
} ap_ideals_walk_t;

/** Gives the walk its room, from @p arena. XM_ERR_NO_MEMORY. */
xm_status_t ap_ideals_walk_init(ap_ideals_walk_t *walk, xm_arena_t *arena);

/** Forgets which sets were seen: the same set can be walked from again. */
void ap_ideals_walk_reset(ap_ideals_walk_t *walk);

/** Walks over all parts that end at @p above; whether a visit has ended it. The part is empty again
 * when it returns. */
bool ap_ideals_walk(ap_ideals_walk_t *walk, int above);

/**
 * Lists the nodes so that each comes behind all that it needs: the first that can come first or,
 * with @p deep, what has just become possible, so that branches stay together. *placed is less than
 * @p nodes where there is a cycle.
 */
xm_status_t ap_precedence_order(int nodes, const ap_precedence_t *edges, int edge_count, bool deep,
                                int *order, int *placed);

/** The down-sets of one such order alone, for graphs that have too many. */
xm_status_t ap_ideals_create_chain(int nodes, const ap_precedence_t *edges, int edge_count,
                                   bool deep, ap_ideals_t **ideals);

/** Reads a problem's file of JSON by @p read; errors have the place, or @p name in front. */
xm_status_t ap_problem_read(const char *name, const char *text, size_t length,
                            xm_status_t (*read)(json_t *document, void *problem), void *problem);

/** Whether the document's lists of nodes and edges can be a graph, of at most @p most nodes. */
bool ap_problem_is_graph(const json_t *nodes, const json_t *edges, size_t most);

/** Members of an edge: the ids of its nodes, and the number under @p key. */
xm_status_t ap_problem_edge(json_t *edge, size_t index, const char *key, int64_t *source,
                            int64_t *target, double *number);

/** Times and sizes may be 0 but not negative, infinite or no number: one such value would make
 * every sum meaningless without any error later. */
bool ap_problem_is_amount(double value);

/** NULL is accepted. */
void ap_ideals_destroy(ap_ideals_t *ideals);
