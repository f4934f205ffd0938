/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Branch and bound over a core. What is open is kept with its dual, so that a search can be laid
 * aside and go on later, and at any time the lowest bound of what is open is a bound of all. It
 * goes down from the open node with the lowest bound as long as a child's bound is not far above
 * that: so it meets solutions on the way, and spends little on nodes that only a bad solution keeps
 * open. A child's dual starts from its parent's messages and prices, so that few rounds per node
 * are enough. The tree ends because every branch removes at least one value.
 */

#include "planner/solver/tree/branch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver/tree/tree.h"

/* The root's dual serves the whole tree, so it gets many rounds; nodes below inherit it. */
enum { ROUNDS_ROOT = 120, ROUNDS_NODE = 30 };
/* It goes on downwards up to this part of the way from the lowest bound to what is looked for. */
static const double plunge = 0.2;
/* Bytes of open nodes, above which it goes depth first until some of them are closed. */
static const size_t bytes_most = (size_t)256 << 20;

/* What is left to visit of a node. */
typedef struct open_node {
    ap_cfn_node_t
        node; /* where it was divided, only the values of the side that is left are kept */
    bool divided;
    double bound;
    int64_t number; /* in the order in which they were put aside */
    size_t bytes;
    int *value, *fold; /* what the tree knows of its ancestors */
} open_node_t;

struct ap_cfn_branch {
    ap_cfn_tree_t tree;
    ap_cfn_branch_params_t params;
    int variables;      /* of the root */
    open_node_t **open; /* a heap: the lowest bound first, of equal ones the newest */
    size_t count, capacity, bytes;
    int64_t numbers;
    ap_cfn_node_t node; /* that is visited now */
    double bound;       /* which holds for it */
    bool visiting, tight;
};

/* Of equal bounds the newest goes first, as it is the deepest as a rule: solutions are there. */
static bool is_before(const open_node_t *a, const open_node_t *b)
{
    return a->bound != b->bound ? a->bound < b->bound : a->number > b->number;
}

/* Moves the entry at `k` of the heap to where it belongs: up where it is better than its parent,
 * else down. Pointers are moved and not entries, so a heap of thousands costs little beside nodes.
 */
static void sift(ap_cfn_branch_t *self, size_t k)
{
    open_node_t *moved = self->open[k];

    for (; k > 0 && is_before(moved, self->open[(k - 1) / 2]); k = (k - 1) / 2) {
        self->open[k] = self->open[(k - 1) / 2];
    }
    for (size_t child = 2 * k + 1; child < self->count; child = 2 * k + 1) {
        if (child + 1 < self->count && is_before(self->open[child + 1], self->open[child])) {
            ++child;
        }
        if (!is_before(self->open[child], moved)) {
            break;
        }
        self->open[k] = self->open[child];
        k = child;
    }
    self->open[k] = moved;
}

/* With the node's core and dual, unless those have been taken up. */
static void destroy_open(open_node_t *open)
{
    ap_cfn_node_destroy(&open->node);
    free(open->value);
    free(open);
}

/* What a node takes, nearly all of it cells and messages; in numbers per value, some for costs,
 * usage and shares. It only has to tell ten megabytes from one, so that memory has a limit. */
static size_t bytes_of(const ap_cfn_core_t *core)
{
    size_t numbers = 8 * ap_cfn_core_values(core);

    for (int k = 0; k < core->links; ++k) {
        size_t a = (size_t)core->variable[core->link[k].a].size,
               b = (size_t)core->variable[core->link[k].b].size;

        numbers += a * b + a + b;
    }
    return numbers * sizeof(double);
}

/* Puts the present node aside, with what the tree knows of its ancestors, which other nodes will
 * write over. */
static xm_status_t put_aside(ap_cfn_branch_t *self, bool divided)
{
    size_t variables = (size_t)self->variables, folds = self->node.folded;
    open_node_t *open = malloc(sizeof(*open));
    int *known = malloc((variables + folds + 1) * sizeof(*known));

    if (open == NULL || known == NULL ||
        !xm_array_reserve(&self->open, &self->capacity, self->count + 1, sizeof(*self->open))) {
        free(open);
        free(known);
        return XM_NO_MEMORY("a branch");
    }
    memcpy(known, self->tree.value, variables * sizeof(*known));
    if (folds > 0) {
        memcpy(known + variables, self->tree.fold, folds * sizeof(*known));
    }
    *open = (open_node_t){.node = self->node,
                          .divided = divided,
                          .bound = self->bound,
                          .number = self->numbers++,
                          .bytes = bytes_of(self->node.dual->core),
                          .value = known,
                          .fold = known + variables};
    self->visiting = false;
    self->bytes += open->bytes;
    self->open[self->count++] = open;
    sift(self, self->count - 1);
    return XM_OK;
}

/* Takes an open node up again: the best, or the newest where that is asked for or memory is
 * short. The newest lies deepest, so it is closed soon, and no new ones pile up meanwhile. What the
 * tree knew of the node's ancestors is written back first. */
static xm_status_t take_up(ap_cfn_branch_t *self)
{
    size_t chosen = 0;
    open_node_t *open;
    xm_status_t status = XM_OK;

    for (size_t k = 1; k < self->count && (self->params.depth_first || self->bytes > bytes_most);
         ++k) {
        chosen = self->open[k]->number > self->open[chosen]->number ? k : chosen;
    }
    open = self->open[chosen];
    self->open[chosen] = self->open[--self->count];
    if (chosen < self->count) {
        sift(self, chosen);
    }
    self->bytes -= open->bytes;
    memcpy(self->tree.value, open->value, (size_t)self->variables * sizeof(int));
    if (open->node.folded > 0) {
        memcpy(self->tree.fold, open->fold, open->node.folded * sizeof(int));
    }
    self->bound = open->bound;
    self->tight = !open->divided;
    if (open->divided) {
        status = ap_cfn_node_narrow(&self->tree, &open->node, &self->node);
        self->node.depth += 1;
    } else {
        self->node = open->node;
        open->node = (ap_cfn_node_t){.core = NULL};
    }
    self->visiting = status == XM_OK;
    destroy_open(open);
    return status;
}

/* Replaces the present node by what is left of it. What was a node's is the child's, so only one of
 * them is in memory; the bound stays, as it holds for every part. */
static xm_status_t descend(ap_cfn_branch_t *self)
{
    ap_cfn_node_t next;
    xm_status_t status = ap_cfn_node_narrow(&self->tree, &self->node, &next);

    ap_cfn_node_destroy(&self->node);
    self->node = next;
    self->node.depth += 1;
    self->visiting = status == XM_OK;
    self->tight = false;
    return status;
}

/* Notes what the last branch above the present node has led to, which is known when the node is
 * done: its values may have gone in several steps. */
static void learn(ap_cfn_branch_t *self, double bound)
{
    ap_cfn_pseudo_costs_note(self->params.costs, &self->node.split, bound);
    self->node.split.variable = -1;
}

/* Goes on with one side of a node's branch, and puts the other one aside. The side that is left is
 * narrowed only when it is taken up: by then a better solution may have closed it, and until then
 * both sides would take memory. Where all kept values are on one side, which values that were
 * dropped since the mixture was made can lead to, there is nothing to put aside. */
static xm_status_t divide(ap_cfn_branch_t *self)
{
    ap_cfn_node_t *node = &self->node, child;
    size_t values = ap_cfn_core_values(node->dual->core);
    bool *saved = malloc(2 * values), *first, *keep, any[2] = {false, false};
    ap_cfn_split_t split;
    xm_status_t status;
    int v, size;

    if (saved == NULL) {
        return XM_NO_MEMORY("a branch");
    }
    first = saved + values;
    learn(self, self->bound);
    v = ap_cfn_node_split(node, self->params.costs, ap_cfn_tree_goal(&self->tree) - self->bound,
                          first, &split);
    split.bound = self->bound;
    size = node->dual->core->variable[v].size;
    keep = node->keep + node->dual->at[v];
    memcpy(saved, keep, (size_t)size);
    for (int x = 0; x < size; ++x) {
        any[first[x] ? 0 : 1] |= saved[x];
        keep[x] = saved[x] && first[x];
    }
    if (!any[0] || !any[1]) {
        memcpy(keep, saved, (size_t)size);
        free(saved);
        return descend(self);
    }
    node->split = split;
    status = ap_cfn_node_narrow(&self->tree, node, &child);
    node->split.above = !split.above;
    if (status == XM_OK) {
        for (int x = 0; x < size; ++x) {
            keep[x] = saved[x] && !first[x];
        }
        /* What the child has settled stands beside what its parent had, and is written again by
         * whatever is visited below the other side. */
        status = put_aside(self, true);
        if (status != XM_OK) {
            ap_cfn_node_destroy(&child);
        } else {
            self->node = child;
            self->node.depth += 1;
            self->visiting = true;
            self->tight = false;
        }
    }
    free(saved);
    return status;
}

/* Closes the present node: nothing better is below it, whatever its values are. Its memory is free
 * at once, as the next one may be large. */
static void close_node(ap_cfn_branch_t *self)
{
    ap_cfn_node_destroy(&self->node);
    self->visiting = false;
}

/* Visits a node: raises its bound, and closes it, makes it smaller, divides it or puts it aside. A
 * node's own dual can end lower than its parent's, as prices move; the inherited bound holds for it
 * too, so the larger one counts. */
static xm_status_t visit(ap_cfn_branch_t *self, atomic_int_fast64_t *nodes)
{
    ap_cfn_node_t *node = &self->node;
    double goal, lowest;
    size_t dropped;

    /* One that was put aside after its visit goes on where it was. */
    if (!self->tight) {
        ++*nodes;
        /* A node without variables is one assignment, which counts if it fits. */
        if (node->dual->core->variables == 0) {
            ap_cfn_node_offer(&self->tree, node);
            close_node(self);
            return XM_OK;
        }
        if (ap_cfn_node_tighten(&self->tree, node, node->depth == 0 ? ROUNDS_ROOT : ROUNDS_NODE,
                                &dropped)) {
            learn(self, ap_cfn_tree_goal(&self->tree));
            close_node(self);
            return XM_OK;
        }
        self->bound = fmax(node->dual->best, self->bound);
        self->tight = true;
        /* Many values have gone, so a smaller core comes first: its sweeps are cheaper, and
         * variables with one value leave it. */
        if (10 * dropped > ap_cfn_core_values(node->dual->core)) {
            return descend(self);
        }
        /* Another open node may be the better one by now. Without a solution and a cap there is no
         * goal, and it goes down until it has one. */
        goal = ap_cfn_tree_goal(&self->tree);
        lowest = self->count > 0 ? self->open[0]->bound : self->bound;
        if (goal < HUGE_VAL && self->bound > lowest + plunge * (goal - lowest) &&
            !self->params.depth_first && self->bytes <= bytes_most) {
            return put_aside(self, false);
        }
    }
    return divide(self);
}

/* Leaves the first node what may be taken. What has been folded into its neighbours stays free. */
static xm_status_t restrict_values(ap_cfn_branch_t *self, const ap_cfn_dual_t *root,
                                   const bool *keep)
{
    const ap_cfn_node_t *node = &self->node;

    for (int v = 0; v < node->dual->core->variables; ++v) {
        size_t at = node->dual->at[v], there = root->at[node->root[v]];

        for (int x = 0; x < node->dual->core->variable[v].size; ++x) {
            node->keep[at + (size_t)x] = keep[there + (size_t)node->root_value[at + (size_t)x]];
        }
    }
    return descend(self);
}

/* The first node inherits the dual's bound, which holds for all of its values and so for those that
 * may be taken. With `keep` it counts as one below the root: a few rounds are enough, as it is
 * small and the prices are those of its surroundings. */
xm_status_t ap_cfn_branch_create(const ap_cfn_dual_t *root, ap_cfn_shared_t *shared,
                                 const ap_cfn_branch_params_t *params, ap_cfn_branch_t **branch)
{
    ap_cfn_branch_t *made = calloc(1, sizeof(*made));
    xm_status_t status;

    if (made == NULL) {
        return XM_NO_MEMORY("a branch");
    }
    status = ap_cfn_tree_create(root, shared, false, &made->tree, &made->node);
    if (status != XM_OK) {
        free(made);
        return status;
    }
    made->tree.cap = params->cap;
    made->params = *params;
    made->variables = root->core->variables;
    made->bound = root->best;
    made->visiting = true;
    status = params->keep != NULL ? restrict_values(made, root, params->keep) : XM_OK;
    if (status != XM_OK) {
        ap_cfn_branch_destroy(made);
        return status;
    }
    *branch = made;
    return XM_OK;
}

/* What holds where only some values may be taken says nothing of the whole problem. */
static void raise_bound(ap_cfn_branch_t *self, double bound)
{
    if (self->params.keep == NULL) {
        ap_cfn_shared_raise(self->tree.shared, bound);
    }
}

/* What is above the goal is closed when it is met. */
xm_status_t ap_cfn_branch_run(ap_cfn_branch_t *self, int64_t most, int64_t until,
                              atomic_int_fast64_t *nodes, bool *done)
{
    ap_cfn_shared_t *shared = self->tree.shared;
    int64_t end = *nodes + most;
    xm_status_t status = XM_OK;
    double open;

    while (status == XM_OK && (self->visiting || self->count > 0) &&
           !ap_cfn_shared_is_over(shared) && *nodes < end && ap_cfn_shared_now(shared) <= until) {
        double goal = ap_cfn_tree_goal(&self->tree);

        if (!self->visiting) {
            raise_bound(self, fmin(self->open[0]->bound, goal));
            status = take_up(self);
        }
        if (status == XM_OK && self->bound >= goal) {
            close_node(self);
        } else if (status == XM_OK) {
            status = visit(self, nodes);
        }
    }
    /* Whatever ended it, this much is proved. What was visited has nothing below the best cost and
     * the cap, and what is open nothing below its bound. */
    if (status == XM_OK) {
        open = fmin(self->params.cap, ap_cfn_shared_cost(shared));
        open = self->visiting ? fmin(open, self->bound) : open;
        open = self->count > 0 ? fmin(open, self->open[0]->bound) : open;
        raise_bound(self, open);
    }
    *done = !self->visiting && self->count == 0;
    return status;
}

void ap_cfn_branch_destroy(ap_cfn_branch_t *branch)
{
    if (branch == NULL) {
        return;
    }
    for (size_t k = 0; k < branch->count; ++k) {
        destroy_open(branch->open[k]);
    }
    if (branch->visiting) {
        ap_cfn_node_destroy(&branch->node);
    }
    free(branch->open);
    ap_cfn_tree_destroy(&branch->tree);
    free(branch);
}
