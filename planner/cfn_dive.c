#include "planner/cfn_dive.h"

#include <math.h>
#include <stdlib.h>

#include "planner/cfn_random.h"
#include "planner/cfn_tree.h"

enum { ROUNDS_FIRST = 30, ROUNDS = 20, FAILURES = 12 };
/* Part of the variables that are settled at once. */
static const double portion = 0.12;

typedef struct rank {
    double sureness;
    int variable;
} rank_t;

static int compare_ranks(const void *left, const void *right)
{
    const rank_t *a = left, *b = right;

    if (a->sureness != b->sureness) {
        return a->sureness > b->sureness ? -1 : 1;
    }
    return a->variable - b->variable;
}

static double random_factor(uint64_t *seed)
{
    return *seed == 0 ? 1.0 : 0.5 + ap_cfn_random_unit(seed);
}

/* Leaves one value of the surest variables; at least one of them. */
static xm_status_t settle(ap_cfn_node_t *node, double part, uint64_t *seed)
{
    const ap_cfn_core_t *core = node->dual->core;
    rank_t *ranks = malloc((size_t)core->variables * sizeof(*ranks));
    int count = (int)(part * core->variables) + 1;

    if (ranks == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a dive");
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

xm_status_t ap_cfn_dive(const ap_cfn_dual_t *root, ap_cfn_shared_t *shared, uint64_t seed)
{
    ap_cfn_tree_t tree;
    ap_cfn_node_t node, next;
    double part = portion;
    size_t dropped;
    int failures = 0;
    xm_status_t status = ap_cfn_tree_create(root, shared, &tree, &node);

    if (status != XM_OK) {
        return status;
    }
    if (ap_cfn_node_tighten(&tree, &node, ROUNDS_FIRST, &dropped)) {
        failures = FAILURES;
    }
    while (status == XM_OK && failures < FAILURES && node.dual->core->variables > 0 &&
           !ap_cfn_shared_is_over(shared)) {
        size_t values = ap_cfn_node_values(&node);
        bool *saved = malloc(values * sizeof(*saved));

        if (saved == NULL) {
            status = xm_error_set(XM_ERR_NO_MEMORY, "no memory for a dive");
            break;
        }
        for (size_t k = 0; k < values; ++k) {
            saved[k] = node.keep[k];
        }
        status = settle(&node, part, &seed);
        if (status == XM_OK) {
            status = ap_cfn_node_narrow(&tree, &node, &next);
        }
        if (status == XM_OK && ap_cfn_node_tighten(&tree, &next, ROUNDS, &dropped)) {
            /* Too much at once: back, and in smaller steps. */
            ap_cfn_node_destroy(&next);
            for (size_t k = 0; k < values; ++k) {
                node.keep[k] = saved[k];
            }
            part *= 0.3;
            ++failures;
        } else if (status == XM_OK) {
            ap_cfn_node_destroy(&node);
            node = next;
        }
        free(saved);
    }
    if (status == XM_OK && failures < FAILURES && node.dual->core->variables == 0) {
        ap_cfn_node_offer(&tree, &node);
    }
    ap_cfn_node_destroy(&node);
    ap_cfn_tree_destroy(&tree);
    return status;
}
