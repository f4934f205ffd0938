#include "planner/cfn_branch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_ROOT = 400, ROUNDS_NODE = 30, ROUNDS_LOOK = 5 };
/* A node goes on improving its bound while that closes this part of the gap per look. */
static const double worthwhile = 0.05;

typedef struct search {
    ap_cfn_shared_t *shared;
    int *value; /* of the root's variables */
    int64_t *nodes;
} search_t;

/* A node of the tree: its variables are some of the root's, with some of their values. */
typedef struct node {
    ap_cfn_core_t *core; /* NULL: borrowed from the root's dual */
    ap_cfn_dual_t *dual;
    int *root;       /* per variable: that of the root */
    int *root_value; /* per value: that of the root's variable */
    bool *keep;      /* per value */
    int depth;
} node_t;

static size_t values_of(const ap_cfn_core_t *core, const ap_cfn_dual_t *dual)
{
    int last = core->variables - 1;

    return last < 0 ? 0 : dual->at[last] + (size_t)core->variable[last].size;
}

static void free_node(node_t *node)
{
    if (node->core != NULL) {
        ap_cfn_dual_destroy(node->dual);
        ap_cfn_core_destroy(node->core);
    }
    free(node->root);
    free(node->root_value);
    free(node->keep);
}

static xm_status_t allocate(node_t *node)
{
    size_t values = values_of(node->dual->core, node->dual);

    node->root = malloc(((size_t)node->dual->core->variables + 1) * sizeof(int));
    node->root_value = malloc((values + 1) * sizeof(int));
    node->keep = malloc((values + 1) * sizeof(bool));
    if (node->root == NULL || node->root_value == NULL || node->keep == NULL) {
        free_node(node);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a branch");
    }
    memset(node->keep, true, values * sizeof(bool));
    return XM_OK;
}

/* The node that is left of `from` when only its kept values are. Settled values are noted. */
static xm_status_t narrow(search_t *search, const node_t *from, node_t *to)
{
    const ap_cfn_core_t *core = from->dual->core;
    int *number = malloc(((size_t)core->variables + 1) * sizeof(int));
    xm_status_t status;

    *to = (node_t){.depth = from->depth};
    if (number == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a branch");
    }
    status = ap_cfn_dual_restrict(from->dual, from->keep, &to->core, &to->dual, number);
    if (status == XM_OK) {
        status = allocate(to);
    }
    for (int v = 0; status == XM_OK && v < core->variables; ++v) {
        const int *values = from->root_value + from->dual->at[v];

        if (number[v] < 0) {
            search->value[from->root[v]] = values[-1 - number[v]];
        } else {
            size_t next = to->dual->at[number[v]];

            to->root[number[v]] = from->root[v];
            for (int x = 0; x < core->variable[v].size; ++x) {
                if (from->keep[from->dual->at[v] + (size_t)x]) {
                    to->root_value[next++] = values[x];
                }
            }
        }
    }
    free(number);
    return status;
}

/*
 * Drops values that do not fit beside the least that the other variables use. Returns how many, or
 * -1 when not even those fit.
 */
static int drop_misfits(node_t *node)
{
    const ap_cfn_core_t *core = node->dual->core;
    double *room = node->dual->load, sum = 0.0;
    int dropped = 0;

    memset(room, 0, ((size_t)core->times + 1) * sizeof(double));
    for (int pass = 0; pass < 2; ++pass) {
        for (int v = 0; v < core->variables; ++v) {
            bool *keep = node->keep + node->dual->at[v];

            for (int k = 0; k < core->variable[v].segments; ++k) {
                const ap_cfn_segment_t *segment = &core->variable[v].segment[k];
                double least = HUGE_VAL, left = HUGE_VAL;

                for (int x = 0; x < core->variable[v].size; ++x) {
                    least = keep[x] && segment->usage[x] < least ? segment->usage[x] : least;
                }
                if (!(least < HUGE_VAL)) {
                    return -1;
                }
                if (pass == 0) {
                    room[segment->from] += least;
                    room[segment->to] -= least;
                    continue;
                }
                for (int t = segment->from; t < segment->to; ++t) {
                    left = room[t] < left ? room[t] : left;
                }
                for (int x = 0; x < core->variable[v].size; ++x) {
                    if (keep[x] && segment->usage[x] - least > left) {
                        keep[x] = false;
                        ++dropped;
                    }
                }
            }
        }
        for (int t = 0; t < core->times && pass == 0; ++t) {
            sum += room[t];
            room[t] = core->capacity[t] - sum;
            if (room[t] < 0.0) {
                return -1;
            }
        }
    }
    return dropped;
}

/* Least cost that a solution must stay below to be of interest. */
static double target(search_t *search)
{
    double cost = ap_cfn_shared_cost(search->shared);

    return cost - 1.0 + ap_cfn_rounding(cost);
}

/*
 * Improves a node's bound and drops values. True when nothing better is below it.
 */
static bool tighten(search_t *search, node_t *node, int *dropped)
{
    ap_cfn_dual_t *dual = node->dual;
    double last = -HUGE_VAL, goal = target(search);
    int rounds = node->depth == 0 ? ROUNDS_ROOT : ROUNDS_NODE, misfits = drop_misfits(node);

    *dropped = misfits;
    if (misfits < 0) {
        return true;
    }
    dual->best = -HUGE_VAL;
    dual->factor = 0.5;
    for (int round = 0; round < rounds; ++round) {
        int fixed;

        fixed = ap_cfn_dual_fix(dual, goal, node->keep);
        *dropped += fixed;
        if (dual->bound >= goal) {
            return true;
        }
        if (4 * (size_t)*dropped > values_of(dual->core, dual) ||
            ap_cfn_shared_is_over(search->shared)) {
            return false; /* smaller first */
        }
        if (round % ROUNDS_LOOK == 0) {
            if (dual->best - last < worthwhile * (goal - dual->best) && node->depth > 0) {
                return false;
            }
            last = dual->best;
        }
        ap_cfn_dual_move_prices(dual, goal);
    }
    return false;
}

/* The variable to branch on: with the largest margin behind its cheapest value, so that the other
 * branch is the weakest. */
static int choose_variable(const node_t *node)
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

static xm_status_t explore(search_t *search, node_t *node, double inherited, double *open);

/* Explores what is left of a node with its kept values. */
static xm_status_t descend(search_t *search, const node_t *from, double bound, int deeper,
                           double *open)
{
    node_t node;
    xm_status_t status = narrow(search, from, &node);

    if (status == XM_OK) {
        node.depth += deeper;
        status = explore(search, &node, bound, open);
        free_node(&node);
    }
    return status;
}

/* Takes the solution when everything is settled. */
static void offer(search_t *search, const node_t *node)
{
    const ap_cfn_core_t *core = node->dual->core;

    for (int t = 0; t < core->times; ++t) {
        if (core->capacity[t] < 0.0) {
            return;
        }
    }
    if (core->constant < HUGE_VAL) {
        (void)ap_cfn_shared_offer(search->shared, search->value, core->constant);
    }
}

/* Lowers *open to the least bound of what was left unexplored. */
static xm_status_t explore(search_t *search, node_t *node, double inherited, double *open)
{
    double bound;
    int dropped, chosen, best;
    bool *keep;
    xm_status_t status;

    ++*search->nodes;
    if (node->dual->core->variables == 0) {
        offer(search, node);
        return XM_OK;
    }
    if (tighten(search, node, &dropped)) {
        return XM_OK;
    }
    if (getenv("DBG")) fprintf(stderr, "node %lld depth %d vars %d links %d times %d values %zu dropped %d bound %.0f goal %.0f\n", (long long)*search->nodes, node->depth, node->dual->core->variables, node->dual->core->links, node->dual->core->times, values_of(node->dual->core, node->dual), dropped, node->dual->best, target(search));
    bound = node->dual->best > inherited ? node->dual->best : inherited;
    if (ap_cfn_shared_is_over(search->shared)) {
        *open = bound < *open ? bound : *open;
        return XM_OK;
    }
    if (10 * (size_t)dropped > values_of(node->dual->core, node->dual)) {
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
        if (status != XM_OK || others == 0 || bound >= target(search)) {
            return status;
        }
        return descend(search, node, bound, 1, open);
    }
}

xm_status_t ap_cfn_branch(const ap_cfn_dual_t *root, ap_cfn_shared_t *shared, int64_t *nodes)
{
    search_t search = {.shared = shared, .nodes = nodes};
    node_t all = {.dual = NULL}, node;
    double open = HUGE_VAL, cost;
    xm_status_t status;

    search.value = malloc(((size_t)root->core->variables + 1) * sizeof(int));
    if (search.value == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a branch");
    }
    /* The root's dual is borrowed: all its values are kept in a copy that the tree may change. */
    all.dual = (ap_cfn_dual_t *)(uintptr_t)root;
    status = allocate(&all);
    if (status == XM_OK) {
        for (int v = 0; v < root->core->variables; ++v) {
            all.root[v] = v;
            for (int x = 0; x < root->core->variable[v].size; ++x) {
                all.root_value[root->at[v] + (size_t)x] = x;
            }
        }
        status = narrow(&search, &all, &node);
        free_node(&all);
    }
    if (status == XM_OK) {
        status = explore(&search, &node, root->best, &open);
        free_node(&node);
    }
    free(search.value);
    if (status == XM_OK) {
        cost = ap_cfn_shared_cost(shared);
        ap_cfn_shared_raise(shared, open < cost ? open : cost);
    }
    return status;
}
