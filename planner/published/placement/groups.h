/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/placement/groups.h
 * The operators that a placement keeps together, and what it costs to part them from others. Not
 * installed.
 */
#pragma once

#include "planner/published/placement/placement.h"

/* An operator whose output another group takes: it pays when that group is on another device. */
typedef struct ap_group_source {
    int node, group;
    double transfer;
    int first, count; /* of `takers`: the other groups that take the output, each once */
} ap_group_source_t;

typedef struct ap_placement_groups {
    int count;
    int *group_of;                    /* [node] */
    double *accelerator, *cpu, *size; /* [group]; accelerator INFINITY: cannot run there */
    ap_precedence_t *order;           /* between groups, forward; acyclic */
    int order_count;
    ap_group_source_t *sources;
    int source_count;
    int *takers;
    int *first_own, *own;   /* sources in each group */
    int *first_into, *into; /* sources that each group takes from */
    xm_arena_t arena;
} ap_placement_groups_t;

/*
 * Joins the nodes of a colour; gives a colour of backward nodes only the mirrored edges of the
 * others in place of forward ones; joins what is on a cycle then. With @p absorb, operators that
 * take no time and touch one other group only join that group, which shrinks the number of
 * down-sets.
 */
xm_status_t ap_placement_groups_create(const ap_placement_problem_t *problem, bool absorb,
                                       ap_placement_groups_t *groups);
void ap_placement_groups_clear(ap_placement_groups_t *groups);

/* The root of an item's set in a union-find; a root is its own parent. Paths are halved on the way,
 * which keeps them short. */
static inline int ap_set_root(int *parent, int item)
{
    while (parent[item] != item) {
        item = parent[item] = parent[parent[item]];
    }
    return item;
}

/* Sorts edges by their first node, then the second; for qsort(). */
int ap_precedence_compare(const void *a, const void *b);

/* The nodes, sorted by colour; NULL without memory. */
int *ap_placement_by_colour(const ap_placement_problem_t *problem, xm_arena_t *arena);

/* Gives an answer its zeroed lists; finishing it computes its loads again, from the definition. */
xm_status_t ap_placement_init(const ap_placement_problem_t *problem, ap_placement_t *placement);
xm_status_t ap_placement_finish(const ap_placement_problem_t *problem,
                                const ap_placement_groups_t *groups, const int *device_of_group,
                                ap_placement_t *placement);
