/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds solutions by diving: a depth-first descent without backtracking that settles a part of the
 * variables at a time and improves the dual of the rest in between. Rounding all variables at once
 * from one dual gives assignments that do not fit or cost much, because the choice of one variable
 * changes what is good for its neighbours; settling an eighth, then solving again, lets the prices
 * of usage react. A dive costs about as much as a few hundred sweeps, as the core shrinks
 * geometrically.
 */

#include "planner/solver/tree/dive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver/network.h"
#include "planner/solver/tree/tree.h"

enum { ROUNDS_FIRST = 30, ROUNDS = 20, FAILURES = 12 };
/* Part of the variables that are settled at once. */
static const double portion = 0.12;

/* How sure a variable is: how much more its second cheapest value costs. */
typedef struct rank {
    double sureness;
    int variable;
} rank_t;

/* The surest first; by number where they are equal, so that a dive with the same seed is the same
 * dive. */
static int compare_ranks(const void *left, const void *right)
{
    const rank_t *a = left, *b = right;

    if (a->sureness != b->sureness) {
        return a->sureness > b->sureness ? -1 : 1;
    }
    return a->variable - b->variable;
}

/* Seed 0 makes no noise; others shake the order of sureness by a factor of 0.5 to 1.5. */
static double random_factor(uint64_t *seed)
{
    return *seed == 0 ? 1.0 : 0.5 + ap_cfn_random_unit(seed);
}

/* Leaves one value to each of the surest variables, at least to one of them. Every call makes the
 * node smaller, unless the value was dropped meanwhile; such a variable keeps what it has. */
static xm_status_t settle(ap_cfn_node_t *node, double part, uint64_t *seed)
{
    const ap_cfn_core_t *core = node->dual->core;
    rank_t *ranks = malloc((size_t)core->variables * sizeof(*ranks));
    int count = (int)(part * core->variables) + 1;

    if (ranks == NULL) {
        return XM_NO_MEMORY("a dive");
    }
    for (int v = 0; v < core->variables; ++v) {
        ranks[v] = (rank_t){node->dual->margin[v] * random_factor(seed), v};
    }
    qsort(ranks, (size_t)core->variables, sizeof(*ranks), compare_ranks);
    for (int k = 0; k < count && k < core->variables; ++k) {
        int v = ranks[k].variable, best = node->dual->choice[v];
        bool *keep = node->keep + node->dual->at[v];

        for (int x = 0; x < core->variable[v].size && keep[best]; ++x) {
            keep[x] = x == best;
        }
    }
    free(ranks);
    return XM_OK;
}

/* Dives once: settle, narrow, tighten, and again, until no variable is left. A step that leaves
 * no better solution is taken back. Every good step removes at least one variable and failures
 * are counted, so the dive ends; it also ends with the time. */
xm_status_t ap_cfn_dive(const ap_cfn_dual_t *root, ap_cfn_shared_t *shared, uint64_t seed)
{
    ap_cfn_tree_t tree;
    ap_cfn_node_t node, next;
    double part = portion;
    size_t dropped;
    int failures = 0;
    xm_status_t status = ap_cfn_tree_create(root, shared, false, &tree, &node);

    if (status != XM_OK) {
        return status;
    }
    /* Nothing below the root is better than what is known: the dive ends before its first step. */
    if (ap_cfn_node_tighten(&tree, &node, ROUNDS_FIRST, &dropped)) {
        failures = FAILURES;
    }
    while (status == XM_OK && failures < FAILURES && node.dual->core->variables > 0 &&
           !ap_cfn_shared_is_over(shared)) {
        size_t values = ap_cfn_core_values(node.dual->core);
        bool *saved = malloc(values * sizeof(*saved));

        if (saved == NULL) {
            status = XM_NO_MEMORY("a dive");
            break;
        }
        /* The marks are saved, as settling overwrites them and a failed step must take them
         * back. */
        memcpy(saved, node.keep, values * sizeof(*saved));
        status = settle(&node, part, &seed);
        if (status == XM_OK) {
            status = ap_cfn_node_narrow(&tree, &node, &next);
        }
        if (status == XM_OK && ap_cfn_node_tighten(&tree, &next, ROUNDS, &dropped)) {
            /* What was settled leaves no better solution: too much was fixed at once. The dive goes
             * back and takes smaller steps from here on; a count of failures ends it. */
            ap_cfn_node_destroy(&next);
            memcpy(node.keep, saved, values * sizeof(*saved));
            part *= 0.3;
            ++failures;
        } else if (status == XM_OK) {
            ap_cfn_node_destroy(&node);
            node = next;
        }
        free(saved);
    }
    if (status == XM_OK && failures < FAILURES && node.dual->core->variables == 0) {
        /* All variables are settled: the tree's assignment is complete, and it is offered if it
         * fits. */
        ap_cfn_node_offer(&tree, &node);
    }
    ap_cfn_node_destroy(&node);
    ap_cfn_tree_destroy(&tree);
    return status;
}
