/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results of operators that have no buffer of their own where a compiler runs the graph: they are
 * computed inside the operators that read them, are another view of an operand's buffer, or are
 * written over an operand that nobody reads any more. Private.
 *
 * What runs operator by operator says so by AP_FUSION_NEVER, and has a buffer for each.
 */
#pragma once

#include "planner/graph.h"

/* Who reads what, and which operators stand in one loop. */
typedef struct ap_shard_readers {
    const ap_graph_t *graph;
    const int *first, *user; /* per tensor: its readers are user[first[t] … first[t + 1] - 1] */
    const int *loop;         /* per operator: the first operator of its loop */
} ap_shard_readers_t;

/* Writes per tensor whether it has no buffer: it is read in place of what it is made of then. */
void ap_shard_find_absent(const ap_shard_readers_t *readers, bool *absent);

/* The tensor that the result of an operator can be written over if it is read last there, the
 * first that `free` allows; -1: there is none. */
int ap_shard_overwrites(const ap_shard_readers_t *readers, const bool *absent, int op,
                        bool (*free)(const void *arg, int tensor), const void *arg);
