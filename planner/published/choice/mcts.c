/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree is kept as nodes in one growing array; children of a node lie together, one for each
 * value of its variable. A walk from the root decides one variable a node and lets completion.h
 * propagate before it asks for the next, so variables that follow from others make no branches
 * until all that do not are decided.
 */

#include "planner/published/choice/mcts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/published/choice/completion.h"

enum { DETOURS = 3 /* random decisions before a node is judged the second time, at most */ };

static const double curiosity = 0.4;

typedef struct node {
    int variable; /* that is decided next; -1: nobody was here yet */
    int first;    /* of its children */
    int64_t visits;
    double sum; /* of rewards */
    bool seen;  /* all below it is known */
} node_t;

typedef struct tree {
    const ap_cfn_core_t *network;
    ap_choice_completion_t *completion;
    uint64_t random;
    node_t *node;
    size_t count, capacity;
    int *rank; /* variables, the one that most depends on first */
    int *given, *decided, *trial, *path, *best;
    double least;
    int64_t left; /* of the budget */
} tree_t;

typedef struct weight {
    double seconds;
    int variable;
} weight_t;

static int heaviest_first(const void *a, const void *b)
{
    const weight_t *x = a, *y = b;

    XM_ORDER_BY(y->seconds, x->seconds);
    return x->variable - y->variable;
}

static double spread_of(const double *cost, size_t count)
{
    double least = HUGE_VAL, most = -HUGE_VAL;

    for (size_t i = 0; i < count; ++i) {
        least = fmin(least, cost[i]);
        most = cost[i] < HUGE_VAL ? fmax(most, cost[i]) : most;
    }
    return fmax(0, most - least);
}

static xm_status_t rank(tree_t *tree)
{
    const ap_cfn_core_t *network = tree->network;
    weight_t *weight = calloc((size_t)network->variables + 1, sizeof(*weight));

    XM_NEED_MEMORY(weight, "a tree of decisions");
    for (int v = 0; v < network->variables; ++v) {
        weight[v] =
            (weight_t){spread_of(network->variable[v].cost, (size_t)network->variable[v].size) *
                           (1 + network->variable[v].degree),
                       v};
    }
    for (int k = 0; k < network->links; ++k) {
        const ap_cfn_link_t *link = &network->link[k];
        double spread = spread_of(link->table, (size_t)network->variable[link->a].size *
                                                   (size_t)network->variable[link->b].size);

        weight[link->a].seconds += spread;
        weight[link->b].seconds += spread;
    }
    qsort(weight, (size_t)network->variables, sizeof(*weight), heaviest_first);
    for (int v = 0; v < network->variables; ++v) {
        tree->rank[v] = weight[v].variable;
    }
    free(weight);
    return XM_OK;
}

/* Completes what is in `trial`, keeps it if it is the best, and says how near the best so far it
 * is. */
static double judge(tree_t *tree)
{
    double seconds;

    --tree->left;
    ap_choice_complete(tree->completion, true, tree->trial);
    seconds = ap_cfn_core_cost(tree->network, tree->trial);
    if (seconds < tree->least) {
        tree->least = seconds;
        memcpy(tree->best, tree->trial, (size_t)tree->network->variables * sizeof(int));
    }
    return seconds > 0 && tree->least < HUGE_VAL ? tree->least / seconds : seconds <= 0;
}

static double judge_both(tree_t *tree)
{
    size_t bytes = (size_t)tree->network->variables * sizeof(int);
    double plain, detour;

    memcpy(tree->trial, tree->decided, bytes);
    plain = judge(tree);
    memcpy(tree->trial, tree->decided, bytes);
    for (int i = 0; i < DETOURS; ++i) {
        uint64_t drawn = ap_cfn_random(&tree->random);
        int v = (int)((drawn >> 32) % (uint64_t)tree->network->variables);

        tree->trial[v] =
            tree->trial[v] < 0
                ? (int)((drawn & 0xfffffffU) % (uint64_t)tree->network->variable[v].size)
                : tree->trial[v];
    }
    detour = judge(tree);
    return fmax(plain, detour);
}

/* The first variable by rank that does not follow from what is decided, or else that is not
 * decided by itself; -1: all are. */
static int next_variable(tree_t *tree)
{
    int follows = -1;

    memcpy(tree->trial, tree->decided, (size_t)tree->network->variables * sizeof(int));
    ap_choice_complete(tree->completion, false, tree->trial);
    for (int i = 0; i < tree->network->variables; ++i) {
        int v = tree->rank[i];

        if (tree->trial[v] < 0) {
            return v;
        }
        follows = follows < 0 && tree->decided[v] < 0 ? v : follows;
    }
    return follows;
}

static xm_status_t expand(tree_t *tree, size_t at)
{
    int variable = next_variable(tree), size = 0;

    if (variable < 0) {
        tree->node[at].seen = true;
        return XM_OK;
    }
    size = tree->network->variable[variable].size;
    XM_NEED_MEMORY(xm_array_reserve(&tree->node, &tree->capacity, tree->count + (size_t)size,
                                    sizeof(*tree->node)),
                   "a tree of decisions");
    tree->node[at].variable = variable;
    tree->node[at].first = (int)tree->count;
    for (int x = 0; x < size; ++x) {
        tree->node[tree->count++] =
            (node_t){.variable = -1, .seen = tree->network->variable[variable].cost[x] >= HUGE_VAL};
    }
    return XM_OK;
}

/* The child to go to: one where nobody was, or that of the greatest bound; -1: all is seen. */
static int choose(const tree_t *tree, const node_t *node)
{
    int size = tree->network->variable[node->variable].size, best = -1;
    double most = -HUGE_VAL;

    for (int x = 0; x < size; ++x) {
        const node_t *child = &tree->node[node->first + x];
        double bound =
            child->visits == 0
                ? HUGE_VAL
                : child->sum / (double)child->visits +
                      curiosity * sqrt(log((double)node->visits + 1) / (double)child->visits);

        if (!child->seen && (best < 0 || bound > most)) {
            most = bound;
            best = x;
        }
    }
    return best;
}

/* One walk down and the rewards back up. */
static xm_status_t walk(tree_t *tree)
{
    int depth = 0;
    size_t at = 0;
    double reward = 0;
    xm_status_t status = XM_OK;

    memcpy(tree->decided, tree->given, (size_t)tree->network->variables * sizeof(int));
    tree->path[depth++] = 0;
    while (tree->node[at].variable >= 0) {
        int x = choose(tree, &tree->node[at]);

        if (x < 0) {
            tree->node[at].seen = true;
            break;
        }
        tree->decided[tree->node[at].variable] = x;
        at = (size_t)tree->node[at].first + (size_t)x;
        tree->path[depth++] = (int)at;
    }
    if (!tree->node[at].seen) {
        status = expand(tree, at);
        reward = judge_both(tree);
    }
    while (depth-- > 0) {
        node_t *node = &tree->node[tree->path[depth]];

        ++node->visits;
        node->sum += reward;
        node->seen = node->seen || (node->variable >= 0 && choose(tree, node) < 0);
    }
    return status;
}

static xm_status_t open(tree_t *tree, xm_arena_t *arena)
{
    size_t bytes = ((size_t)tree->network->variables + 2) * sizeof(int);
    int **array[] = {&tree->rank,  &tree->given, &tree->decided,
                     &tree->trial, &tree->path,  &tree->best};

    for (size_t i = 0; i < sizeof(array) / sizeof(array[0]); ++i) {
        *array[i] = xm_arena_take(arena, bytes);
    }
    tree->node = malloc(sizeof(*tree->node));
    XM_NEED_MEMORY(!arena->failed && tree->node != NULL, "a tree of decisions");
    tree->node[0] = (node_t){.variable = -1};
    tree->count = tree->capacity = 1;
    XM_TRY(rank(tree));
    return ap_choice_completion_create(tree->network, &tree->completion);
}

xm_status_t ap_search_mcts(const ap_cfn_core_t *network, const ap_mcts_params_t *params,
                           int *assignment)
{
    size_t bytes = (size_t)network->variables * sizeof(int);
    tree_t tree = {.network = network, .random = params->seed, .left = params->budget};
    xm_arena_t arena = {0};
    xm_status_t status;

    if (params->seed == 0 || params->budget < 1) {
        return XM_INVALID("a tree search needs a seed other than 0 and a budget of 1 or more");
    }
    if (network->variables == 0) {
        return XM_OK;
    }
    status = open(&tree, &arena);
    if (status == XM_OK) {
        memcpy(tree.given, assignment, bytes);
        memcpy(tree.trial, assignment, bytes);
        ap_choice_complete(tree.completion, true, tree.trial);
        memcpy(tree.best, tree.trial, bytes);
        tree.least = ap_cfn_core_cost(network, tree.trial);
    }
    while (status == XM_OK && tree.left > 0 && !tree.node[0].seen) {
        status = walk(&tree);
    }
    if (status == XM_OK) {
        memcpy(assignment, tree.best, bytes);
    }
    ap_choice_completion_destroy(tree.completion);
    free(tree.node);
    xm_arena_clear(&arena);
    return status;
}
