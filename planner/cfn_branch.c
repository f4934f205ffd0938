#include "planner/cfn_branch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cfn_tree.h"

enum { ROUNDS_ROOT = 400, ROUNDS_NODE = 30 };

typedef struct search {
    ap_cfn_tree_t tree;
    int64_t most, *nodes;
} search_t;

/* The variable to branch on: with the largest margin behind its cheapest value, so that the other
 * branch is the weakest. */
static int choose_variable(const ap_cfn_node_t *node)
{
    const ap_cfn_core_t *core = node->dual->core;
    double most = -1.0;
    int chosen = 0;

    for (int v = 0; v < core->variables; ++v) {
        double weight = node->dual->margin[v] * (1.0 + core->variable[v].degree);

        if (weight > most) {
            most = weight;
            chosen = v;
        }
    }
    return chosen;
}

static xm_status_t explore(search_t *search, ap_cfn_node_t *node, double inherited, double *open);

/* Explores what is left of a node with its kept values. */
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

/* Lowers *open to the least bound of what was left unexplored. */
static xm_status_t explore(search_t *search, ap_cfn_node_t *node, double inherited, double *open)
{
    double bound;
    size_t dropped;
    int chosen, best;
    bool *keep;
    xm_status_t status;

    ++*search->nodes;
    if (node->dual->core->variables == 0) {
        ap_cfn_node_offer(&search->tree, node);
        return XM_OK;
    }
    if (ap_cfn_node_tighten(&search->tree, node, node->depth == 0 ? ROUNDS_ROOT : ROUNDS_NODE,
                            &dropped)) {
        return XM_OK;
    }
    bound = node->dual->best > inherited ? node->dual->best : inherited;
    if (node->depth == 0) {
        double goal = ap_cfn_tree_goal(&search->tree);

        ap_cfn_shared_raise(search->tree.shared, bound < goal ? bound : goal);
    }
    if (ap_cfn_shared_is_over(search->tree.shared) || *search->nodes >= search->most) {
        *open = bound < *open ? bound : *open;
        return XM_OK;
    }
    if (10 * dropped > ap_cfn_node_values(node)) {
        return descend(search, node, bound, 1, open);
    }
    chosen = choose_variable(node);
    best = node->dual->choice[chosen];
    keep = node->keep + node->dual->at[chosen];
    if (!keep[best]) { /* dropped since: any other */
        for (best = 0; !keep[best]; ++best) {
        }
    }
    {
        int size = node->dual->core->variable[chosen].size, others = 0;
        bool *saved = malloc((size_t)size * sizeof(*saved));

        if (saved == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a branch");
        }
        memcpy(saved, keep, (size_t)size * sizeof(*saved));
        for (int x = 0; x < size; ++x) {
            keep[x] = x == best;
        }
        status = descend(search, node, bound, 1, open);
        for (int x = 0; x < size; ++x) {
            keep[x] = saved[x] && x != best;
            others += keep[x];
        }
        free(saved);
        if (status != XM_OK || others == 0 || bound >= ap_cfn_tree_goal(&search->tree)) {
            return status;
        }
        return descend(search, node, bound, 1, open);
    }
}

xm_status_t ap_cfn_branch(const ap_cfn_dual_t *root, ap_cfn_shared_t *shared, int64_t most,
                          int64_t *nodes)
{
    search_t search = {.most = *nodes + most, .nodes = nodes};
    ap_cfn_node_t node;
    double open = HUGE_VAL, cost;
    xm_status_t status = ap_cfn_tree_create(root, shared, &search.tree, &node);

    if (status != XM_OK) {
        return status;
    }
    status = explore(&search, &node, root->best, &open);
    ap_cfn_node_destroy(&node);
    ap_cfn_tree_destroy(&search.tree);
    if (status == XM_OK) {
        cost = ap_cfn_shared_cost(shared);
        ap_cfn_shared_raise(shared, open < cost ? open : cost);
    }
    return status;
}
