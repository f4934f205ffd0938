/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes of a search tree over a core: its variables and values that are left, with a dual of its
 * own. Private to the solver; branch and bound (planner/solver/tree/branch.h) and dives
 * (planner/solver/tree/dive.h) are made of it.
 */
#pragma once

#include "planner/solver/bound.h"
#include "planner/solver/network.h"
#include "planner/solver/tree/pseudo_costs.h"

typedef struct ap_cfn_tree {
    ap_cfn_shared_t *shared;
    double cap; /* solutions that cost so much are not looked for either */
    bool plain;
    int *value; /* of the root's variables; those that are settled */
    /* Folded variables of the root, those of a node after those of its ancestors: the variable, the
     * one that its value follows from, and so many pairs of values, of that one and its own. */
    int *fold;
    size_t fold_capacity;
} ap_cfn_tree_t;

typedef struct ap_cfn_node {
    ap_cfn_core_t *core; /* owned, with `dual`; NULL: both are borrowed */
    ap_cfn_dual_t *dual;
    int *root;       /* per variable: that of the root */
    int *root_value; /* per value: that of the root's variable */
    bool *keep;      /* per value */
    xm_arena_t pool; /* these arrays */
    int depth;
    ap_cfn_split_t split; /* the branch that it is a side of, or is below in the same way */
    size_t folded;        /* of the tree's numbers on folds, those down to here */
    double refused;       /* values for which elimination was too much; 0: it was not */
} ap_cfn_node_t;

/* A tree below a dual, which is borrowed, and its first node. `plain`: capacities stay what they
 * are. */
xm_status_t ap_cfn_tree_create(const ap_cfn_dual_t *dual, ap_cfn_shared_t *shared, bool plain,
                               ap_cfn_tree_t *tree, ap_cfn_node_t *root);
void ap_cfn_tree_destroy(ap_cfn_tree_t *tree);

/* The node that is left of `from` when only its kept values are. Settled values are noted. */
xm_status_t ap_cfn_node_narrow(ap_cfn_tree_t *tree, const ap_cfn_node_t *from, ap_cfn_node_t *to);

/*
 * Improves a node's bound in at most `rounds` rounds, and drops values that no better solution can
 * have; stops early when that is worth little, or when so many went that the node should be
 * narrowed first. True when nothing better is below it.
 */
bool ap_cfn_node_tighten(ap_cfn_tree_t *tree, ap_cfn_node_t *node, int rounds, size_t *dropped);

/* Offers what an elimination of a node has found, if it fits. */
void ap_cfn_node_offer_choice(ap_cfn_tree_t *tree, const ap_cfn_node_t *node);

/* The variable to branch on, after price steps; `gap` is what the bound is below what is looked
 * for, and `costs` what is known of earlier branches, or NULL. *mean is the mean cost of its usage
 * in the mixture of assignments that the bound is that of; negative: that is not mixed, or not
 * looked at. */
int ap_cfn_node_choose(const ap_cfn_node_t *node, const ap_cfn_pseudo_costs_t *costs, bool by_usage,
                       double gap, double *mean);

/* Marks in `first` the values of that variable that come first, and says in *split what side of
 * which branch they are. */
int ap_cfn_node_split(const ap_cfn_node_t *node, const ap_cfn_pseudo_costs_t *costs, double gap,
                      bool *first, ap_cfn_split_t *split);

/* Offers the values of a node without variables, if they fit. */
void ap_cfn_node_offer(ap_cfn_tree_t *tree, const ap_cfn_node_t *node);

/* Cost that a solution must stay below to be of interest. */
double ap_cfn_tree_goal(ap_cfn_tree_t *tree);

void ap_cfn_node_destroy(ap_cfn_node_t *node);
