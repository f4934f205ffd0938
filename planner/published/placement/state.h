/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/placement/state.h
 * What all searches over placements share: a placement of groups whose loads follow each move, how
 * good it is, and the best that was seen. Not installed.
 */
#pragma once

#include "comm/base.h"
#include "planner/published/placement/groups.h"

/* What is made small, in this order: memory beyond what devices have, the largest load, and the sum
 * of squares, so that there is a direction where the largest load does not change. */
typedef struct ap_placement_value {
    double excess, largest, squares;
} ap_placement_value_t;

typedef struct ap_placement_state {
    const ap_placement_problem_t *problem;
    const ap_placement_groups_t *groups;
    int devices;
    int *device_of; /* [group] */
    int *takers;    /* [source][device]: groups there that take its output */
    double *times;  /* [device]: operators and transfers */
    double *sizes;  /* [device] */
    int *best;      /* [group]: the best that was kept, and its value */
    ap_placement_value_t best_value;
    xm_random_t random;
    int64_t tries, budget; /* moves of a group, done and allowed */
    xm_arena_t *arena;     /* for what a search needs beside */
} ap_placement_state_t;

bool ap_placement_is_better(const ap_placement_value_t *a, const ap_placement_value_t *b);
ap_placement_value_t ap_placement_value(const ap_placement_state_t *state);
bool ap_placement_can_be_on(const ap_placement_state_t *state, int group, int device);

/* Moves a group; loads follow. O(sources that it has or takes from x devices). */
void ap_placement_move(ap_placement_state_t *state, int group, int device);

/* Counts everything anew from device_of, so that rounding does not add up over many moves. */
void ap_placement_recount(ap_placement_state_t *state);

/* Places all groups and says how good that is; on a chain, in the order of the devices, so that
 * each has one part. */
ap_placement_value_t ap_placement_score(ap_placement_state_t *state, const int *device_of);

/* Keeps the placement where it is the best so far. */
bool ap_placement_keep(ap_placement_state_t *state, const ap_placement_value_t *value);

/* Takes the best move of one group as long as one helps and the budget lasts. */
ap_placement_value_t ap_placement_descend(ap_placement_state_t *state);

/* Where a search starts: least transfers under balance (part.c). */
void ap_placement_part(ap_placement_state_t *state);

/* The searches. Each begins with state->best, a placement, and keeps what is better. The last one
 * improves the best group by group, with a quarter of the budget again; on a chain there is nothing
 * that one group can do. */
typedef void ap_placement_search_fn(ap_placement_state_t *state);

ap_placement_search_fn ap_placement_local;     /* local.c */
ap_placement_search_fn ap_placement_lpt;       /* greedy.c */
ap_placement_search_fn ap_placement_karmarkar; /* greedy.c */
ap_placement_search_fn ap_placement_branch;    /* branch.c */
ap_placement_search_fn ap_placement_policy;    /* policy.c */
ap_placement_search_fn ap_placement_stepwise;  /* policy.c */
ap_placement_search_fn ap_placement_brkga;     /* brkga.c */
ap_placement_search_fn ap_placement_polish;    /* state.c */

/*
 * Joins groups into at most @p most clusters, those first whose parting costs most, as long as a
 * cluster stays small beside a device's share. Returns how many there are; cluster_of [group].
 */
int ap_placement_coarsen(ap_placement_state_t *state, int most, int *cluster_of);
