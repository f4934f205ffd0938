/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file exclusive.h
 * A problem in the exclusive-host model (problem.h), laid out for its schedulers. Not installed.
 *
 * Hosts that hold something are numbered anew as senders, hosts that need something as receivers,
 * so that a host in both roles is two resources: its egress and its ingress.
 */
#pragma once

#include <stdbool.h>

#include "resharding/solve/problem.h"

typedef struct xm_exclusive {
    const xm_problem_t *problem;
    int64_t count;
    int senders, receivers;
    int *host_of_sender;
    /* Of demand d: entries first_holder[d] … first_holder[d + 1] − 1 of holder and duration. */
    int64_t *first_holder;
    int *holder;       /* senders, ascending */
    int64_t *duration; /* when that sender sends it, ns */
    int64_t *first_receiver;
    int *receiver;     /* receivers, ascending */
    int64_t *shortest; /* its duration when its fastest holder sends it */
    xm_arena_t arena;  /* of all these */
} xm_exclusive_t;

xm_status_t xm_exclusive_create(const xm_problem_t *problem, xm_exclusive_t **exclusive);
void xm_exclusive_destroy(xm_exclusive_t *exclusive);

/*
 * Sets of senders that may be a bottleneck: the distinct holder sets, unions of two of them where
 * they are few, and the union of all. What is held only inside a set must leave through its
 * members.
 */
typedef struct xm_sender_sets {
    int count;
    int words;         /* of a set */
    uint64_t *members; /* count × words: bit s of a set is sender s */
    int *size;         /* senders in the set */
    int64_t *work;     /* sum of the shortest durations of what is held only inside, ns */
    double *bytes;     /* of what is held only inside */
    xm_arena_t arena;  /* of all these */
} xm_sender_sets_t;

xm_status_t xm_sender_sets_create(const xm_exclusive_t *exclusive, xm_sender_sets_t **sets);
void xm_sender_sets_destroy(xm_sender_sets_t *sets);
/* True when all holders of a demand are members. */
bool xm_sender_set_contains(const xm_sender_sets_t *sets, int set, const xm_exclusive_t *exclusive,
                            int64_t demand);

/* Lower bound of the makespan in that model (docs/resharding.md, "Exclusive hosts"): admissible. */
xm_status_t xm_exclusive_bound(const xm_exclusive_t *exclusive, int64_t *bound_ns);

/*
 * One deterministic list schedule: whenever hosts become free, what they allow starts, hosts with
 * the most left to do first (receivers and, for what few hosts hold, senders). `noise` in 1/1024
 * raises those priorities at random. `patient`: a demand waits for a busy sender that would still
 * finish it earlier than every free one. `work` counts down the elementary steps taken; once it is
 * used up, the rest is appended in the given order.
 */
typedef struct xm_list_params {
    uint64_t seed;
    int noise;
    bool patient;
} xm_list_params_t;

xm_status_t xm_exclusive_list(const xm_exclusive_t *exclusive, const xm_list_params_t *params,
                              int64_t *work, xm_step_t *steps);

/*
 * Depth-first search for something shorter than `steps`, which take best_ns; replaces them by the
 * best found. `node_budget` 0 means no limit; bound_ns is any lower bound. *optimal: what `steps`
 * are in the end is proved to be. Problems of more than 64 demands, or of more than 4096 pairs of a
 * demand and a holder, are left as they are.
 */
xm_status_t xm_exclusive_search(const xm_exclusive_t *exclusive, int64_t node_budget,
                                int64_t bound_ns, xm_step_t *steps, int64_t best_ns, bool *optimal);
