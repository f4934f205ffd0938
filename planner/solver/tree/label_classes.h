/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pass with labels and its steps, and the classes of times that a step's labels have usage of.
 * Private to the solver; planner/solver/tree/label_pass.c makes the labels.
 */
#pragma once

#include "planner/solver/elimination.h"
#include "planner/solver/tree/label_list.h"
#include "planner/solver/tree/tree.h"

enum { AP_LABEL_CHILDREN = 32 /* of a step, at most */ };

typedef struct ap_label_step {
    int own; /* variable; -1: none, it joins components */
    int children, *child;
    int classes;         /* that labels are made with; fewer are kept */
    int *segment;        /* per class: the variable's; -1: it uses the same */
    int *inner;          /* per child and class: the child's kept class; -1: none */
    double *low, *limit; /* per class: what less counts as, what more is too much */
    double *price;       /* per class */
    int *kept;           /* per class: its number among those kept, or -1 */
    int *at;             /* per time: the kept class, or -1 */
    double *most;        /* per time: of the subtree */
    ap_label_list_t labels;
    uint32_t *first; /* per row: its first label */
} ap_label_step_t;

typedef struct ap_label_pass {
    ap_cfn_tree_t *tree;
    ap_cfn_node_t *node;
    const ap_elimination_t *e;
    size_t width;
    double goal, offset;
    int times;
    int most_times;   /* that labels keep; all others are only priced */
    double *paid;     /* per value: its cost, with prices on those others */
    int *when;        /* per time: the core's */
    double *capacity; /* per time, above the least */
    double *most;     /* per time, of all */
    bool *done;       /* per time: nothing outside differs in it */
    double **least;   /* per variable and segment */
    ap_label_step_t *step, *now;
    int steps;                  /* of the elimination, and one for each join of components */
    int *component, components; /* their last steps */
    double most_work;           /* that is allowed */
    bool stopped, loose;
    ap_label_list_t row, part, next; /* scratch */
    ap_label_sorter_t sorter;
    xm_arena_t pool;
} ap_label_pass_t;

/* Counting from the least usage makes all usages and rooms begin at 0, so a subtree without usage
 * at a time needs no number for it. */
static inline double ap_label_used(const ap_label_pass_t *pass, int v, int segment, int x)
{
    return pass->node->dual->core->variable[v].segment[segment].usage[x] - pass->least[v][segment];
}

/* Finds the times at which the limit can be exceeded. */
void ap_label_find_times(ap_label_pass_t *pass);

/* Finds a step's classes of times, and which of them its labels must keep; steps come in their
 * order. False when memory ran out. */
bool ap_label_find_classes(ap_label_pass_t *pass, ap_label_step_t *step);
