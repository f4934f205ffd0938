/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Depth-first branch and bound over a core. Breadth-first or best-first search would keep a dual
 * with its messages for every open node; depth first keeps one per level, and the child's dual
 * starts from its parent's messages and prices, so that few rounds per node are enough. Dives and
 * the neighbourhood search have usually found a good solution before, so the order of visits
 * matters less for finding solutions than for proofs. The tree ends because every branch removes at
 * least one value.
 */

#include "planner/solver/tree/branch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver/tree/tree.h"

/* The root's dual serves the whole tree, so it gets many rounds; nodes below inherit it. */
enum { ROUNDS_ROOT = 120, ROUNDS_NODE = 30 };

/* `most` is the count of nodes at which the search gives up, `until` the time; `nodes` is the
 * caller's count, which goes on over several searches. */
typedef struct search {
    ap_cfn_tree_t tree;
    int64_t most, until;
    atomic_int_fast64_t *nodes; /* another thread reports them */
} search_t;

static xm_status_t explore(search_t *search, ap_cfn_node_t *node, double inherited, double *open);

/* Explores what is left of a node when only its kept values may be taken. `bound` is what the
 * caller has proved for all of it. */
static xm_status_t descend(search_t *search, const ap_cfn_node_t *from, double bound, int deeper,
                           double *open)
{
    ap_cfn_node_t node;
    xm_status_t status = ap_cfn_node_narrow(&search->tree, from, &node);

    if (status == XM_OK) {
        node.depth += deeper;
        status = explore(search, &node, bound, open);
        ap_cfn_node_destroy(&node);
    }
    return status;
}

/* Explores both sides of a node's branch. The second one is left out when the first has found a
 * solution as cheap as this node's bound. */
static xm_status_t branch(search_t *search, ap_cfn_node_t *node, double bound, double *open)
{
    size_t values = ap_cfn_core_values(node->dual->core);
    bool *saved = malloc(2 * values), *first, *keep;
    xm_status_t status = XM_OK;
    int v, size;

    if (saved == NULL) {
        return XM_NO_MEMORY("a branch");
    }
    first = saved + values;
    v = ap_cfn_node_split(node, ap_cfn_tree_goal(&search->tree) - bound, first);
    size = node->dual->core->variable[v].size;
    keep = node->keep + node->dual->at[v];
    memcpy(saved, keep, (size_t)size);
    for (int side = 0; side < 2 && status == XM_OK; ++side) {
        bool any = false;

        for (int x = 0; x < size; ++x) {
            keep[x] = saved[x] && first[x] == (side == 0);
            any = any || keep[x];
        }
        if (any && bound < ap_cfn_tree_goal(&search->tree)) {
            status = descend(search, node, bound, 1, open);
        }
    }
    free(saved);
    return status;
}

/* Explores a node and lowers *open to the smallest bound of what was left unexplored. Where the
 * search is stopped, the minimum of *open and the best cost is therefore still a valid lower bound
 * on the whole problem. A node's own dual can end lower than its parent's, as prices move; the
 * inherited bound holds for it too, so the larger one counts. */
static xm_status_t explore(search_t *search, ap_cfn_node_t *node, double inherited, double *open)
{
    double bound;
    size_t dropped;

    ++*search->nodes;
    /* A node without variables is one assignment; the tree checks that it fits before it counts. */
    if (node->dual->core->variables == 0) {
        ap_cfn_node_offer(&search->tree, node);
        return XM_OK;
    }
    if (ap_cfn_node_tighten(&search->tree, node, node->depth == 0 ? ROUNDS_ROOT : ROUNDS_NODE,
                            &dropped)) {
        return XM_OK;
    }
    bound = node->dual->best > inherited ? node->dual->best : inherited;
    /* Only the root's bound holds for the whole problem. A bound above the goal says no more than
     * that nothing is below the goal, so the goal is the most that may be published. */
    if (node->depth == 0) {
        double goal = ap_cfn_tree_goal(&search->tree);

        ap_cfn_shared_raise(search->tree.shared, bound < goal ? bound : goal);
    }
    /* This node stays open: what it could still contain is not below its bound. */
    if (ap_cfn_shared_is_over(search->tree.shared) || *search->nodes >= search->most ||
        ap_cfn_shared_now(search->tree.shared) > search->until) {
        *open = bound < *open ? bound : *open;
        return XM_OK;
    }
    /* Many values have gone, so a smaller core comes first: its sweeps are cheaper, and variables
     * with one value leave it. */
    if (10 * dropped > ap_cfn_core_values(node->dual->core)) {
        return descend(search, node, bound, 1, open);
    }
    return branch(search, node, bound, open);
}

/* Proves the optimum below a dual, or raises the bound as far as it gets. The root's dual is
 * only read, so a search that was stopped can be tried again with more nodes. */
xm_status_t ap_cfn_branch(const ap_cfn_dual_t *root, ap_cfn_shared_t *shared, double cap,
                          int64_t most, int64_t until, atomic_int_fast64_t *nodes)
{
    search_t search = {.most = *nodes + most, .until = until, .nodes = nodes};
    ap_cfn_node_t node;
    double open = HUGE_VAL, cost;
    xm_status_t status = ap_cfn_tree_create(root, shared, false, &search.tree, &node);

    if (status != XM_OK) {
        return status;
    }
    search.tree.cap = cap;
    status = explore(&search, &node, root->best, &open);
    ap_cfn_node_destroy(&node);
    ap_cfn_tree_destroy(&search.tree);
    /* What was explored completely has nothing below the best cost and the cap, and what was left
     * open nothing below *open. */
    if (status == XM_OK) {
        cost = ap_cfn_shared_cost(shared);
        open = open < cap ? open : cap;
        ap_cfn_shared_raise(shared, open < cost ? open : cost);
    }
    return status;
}
