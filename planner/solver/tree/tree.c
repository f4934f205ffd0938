/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes of a search tree, shared by branch and bound and by dives. A node owns a small core and
 * dual of its own, with the numbers of the root's variables and values, so that what it settles can
 * be written into one assignment of the root. That assignment is shared by the whole tree: below a
 * node, all that its ancestors settled is in it, and what siblings wrote is overwritten on the way
 * down. Who leaves a node and comes back to it later brings what it knew (branch.c).
 */

#include "planner/solver/tree/tree.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver/tree/sums.h"

enum { ROUNDS_LOOK = 5, SUMS_WORK = 200000 };
/* A node goes on improving its bound while each check finds this part of the gap closed. */
static const double worthwhile = 0.05;
/* Usage that lies apart by less than this part of the gap is decided. */
static const double decided = 1e-3, least_share = 1e-6;
/* Cells that a pass of elimination may look at, per nanosecond that messages would take. */
static const double exact_cells = 2.5, fewer = 0.8;
/* Nanoseconds of a usual core for making a node, with the sums and the order of an elimination, by
 * its values, its parent's links, and in any case. Each by itself would cost as much to count.
 * Small nodes are made by the thousand each second, and half of their time is this: when it was
 * counted as three sweeps, so many seconds of work took ten times as long. */
static const double value_time = 60.0, link_time = 140.0, least_time = 3000.0;
/* Of the steps' length, where prices are nearly right already. Steps as long as a root's lead away
 * from its prices, and a node's few rounds do not find back. */
static const double first_factor = 0.03;

/* The root's first node borrows its dual; core == NULL says so. */
void ap_cfn_node_destroy(ap_cfn_node_t *node)
{
    if (node->core != NULL) {
        ap_cfn_dual_destroy(node->dual);
        ap_cfn_core_destroy(node->core);
    }
    xm_arena_clear(&node->pool);
}

/* Tables of a node, with all values kept. */
static xm_status_t allocate(ap_cfn_node_t *node)
{
    size_t values = ap_cfn_core_values(node->dual->core);

    node->root = xm_arena_take(&node->pool, (size_t)node->dual->core->variables * sizeof(int));
    node->root_value = xm_arena_take(&node->pool, values * sizeof(int));
    node->keep = xm_arena_take(&node->pool, values * sizeof(bool));
    if (node->pool.failed) {
        ap_cfn_node_destroy(node);
        return XM_NO_MEMORY("a branch");
    }
    memset(node->keep, true, values * sizeof(bool));
    return XM_OK;
}

/* Takes to elimination where that costs little, unless it was refused for hardly more values. Its
 * bound does not wait for messages to converge, and where links close circles it can be some
 * percent higher than any that they converge to. */
static xm_status_t eliminate(const ap_cfn_node_t *from, ap_cfn_node_t *to)
{
    double values = (double)ap_cfn_core_values(to->core), most = fewer * from->refused;
    xm_status_t status = XM_OK;

    to->refused = from->refused;
    if (to->dual->exact == NULL && to->core->variables > 0 && (most == 0.0 || values <= most)) {
        status = ap_cfn_dual_eliminate(to->dual, exact_cells * to->dual->nanoseconds);
        to->refused = to->dual->exact != NULL ? 0.0 : values;
    }
    if (status != XM_OK) {
        ap_cfn_node_destroy(to);
    }
    return status;
}

/* Notes what was folded on the way to a node, in numbers of the root, as the node's own are gone
 * with it: a dive destroys the nodes above the one that it goes on from. Each record ends with its
 * count of pairs, as they are read from the last to the first. What a sibling noted is
 * overwritten. */
static bool note_folds(ap_cfn_tree_t *tree, const ap_cfn_node_t *from, const ap_cfn_folds_t *folds,
                       ap_cfn_node_t *to)
{
    size_t end = from->folded;

    for (int k = 0; k < folds->count; ++k) {
        const ap_cfn_fold_t *fold = &folds->fold[k];
        const size_t at = from->dual->at[fold->variable], other = from->dual->at[fold->other];
        int size = from->dual->core->variable[fold->other].size, pairs = 0;

        if (!xm_array_reserve(&tree->fold, &tree->fold_capacity, end + 2 * (size_t)size + 3,
                              sizeof(*tree->fold))) {
            return false;
        }
        for (int y = 0; y < size; ++y) {
            if (from->keep[other + (size_t)y]) {
                tree->fold[end++] = from->root_value[other + (size_t)y];
                tree->fold[end++] = from->root_value[at + (size_t)fold->best[y]];
                ++pairs;
            }
        }
        tree->fold[end++] = from->root[fold->variable];
        tree->fold[end++] = from->root[fold->other];
        tree->fold[end++] = pairs;
    }
    to->folded = end;
    return true;
}

/* Gives folded variables the values that follow from the others', those folded last first: a
 * variable can have been folded into one that was folded after it, or settled since. Called before
 * an assignment is offered, which is seldom beside the nodes that are made. */
static void unfold(ap_cfn_tree_t *tree, const ap_cfn_node_t *node)
{
    for (size_t end = node->folded; end > 0;) {
        const int *tail = tree->fold + end - 3;
        size_t begin = end - 3 - 2 * (size_t)tail[2];

        for (size_t k = begin; k < end - 3; k += 2) {
            if (tree->fold[k] == tree->value[tail[1]]) {
                tree->value[tail[0]] = tree->fold[k + 1];
            }
        }
        end = begin;
    }
}

/* Makes the node that is left of another one. Variables with one value are written into the tree's
 * assignment; capacities are lowered to sums that still can occur, because fewer values leave wider
 * gaps. */
xm_status_t ap_cfn_node_narrow(ap_cfn_tree_t *tree, const ap_cfn_node_t *from, ap_cfn_node_t *to)
{
    const ap_cfn_core_t *core = from->dual->core;
    int *number = malloc(((size_t)core->variables + 1) * sizeof(int));
    ap_cfn_folds_t folds = {.count = 0};
    xm_status_t status;

    *to = (ap_cfn_node_t){.depth = from->depth, .split = from->split, .folded = from->folded};
    if (number == NULL) {
        return XM_NO_MEMORY("a branch");
    }
    status = ap_cfn_dual_restrict(from->dual, from->keep, tree->plain ? NULL : &folds, &to->core,
                                  &to->dual, number);
    if (status == XM_OK) {
        status = allocate(to);
    }
    if (status == XM_OK && !note_folds(tree, from, &folds, to)) {
        ap_cfn_node_destroy(to);
        status = XM_NO_MEMORY("a branch");
    }
    xm_arena_clear(&folds.pool);
    if (status == XM_OK && !tree->plain) {
        ap_cfn_shared_spend(tree->shared, value_time * (double)ap_cfn_core_values(to->core) +
                                              link_time * core->links + least_time);
        status = eliminate(from, to);
    }
    for (int v = 0; status == XM_OK && v < core->variables; ++v) {
        const int *values = from->root_value + from->dual->at[v];

        if (number[v] == AP_CFN_FOLDED) {
            continue;
        }
        if (number[v] < 0) {
            /* The variable is settled: its root's value is written down. */
            tree->value[from->root[v]] = values[-1 - number[v]];
        } else {
            size_t next = to->dual->at[number[v]];

            /* A variable and its kept values keep their numbers of the root. */
            to->root[number[v]] = from->root[v];
            for (int x = 0; x < core->variable[v].size; ++x) {
                if (from->keep[from->dual->at[v] + (size_t)x]) {
                    to->root_value[next++] = values[x];
                }
            }
        }
    }
    free(number);
    if (status == XM_OK && !tree->plain) {
        status = ap_cfn_lower_capacities(to->core, to->dual->at, to->keep, to->dual->price,
                                         (size_t)fmin(SUMS_WORK, 0.5 * to->dual->nanoseconds),
                                         ap_cfn_core_capacity(to->core));
        if (status != XM_OK) {
            ap_cfn_node_destroy(to);
        }
    }
    return status;
}

/* Drops values that do not fit beside the minimum that the other variables use. Returns how many
 * went, or -1 when not even the minimum fits. The first pass adds up the minima, the second one
 * compares; what the second pass drops only makes later comparisons more careful. */
static int drop_misfits(ap_cfn_node_t *node)
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
                /* No value of a variable is left. */
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

/* A solution of interest must be cheaper by 1 at least, as costs are integers; so bounds from `cost
 * - 1` on (less the rounding) end a node. */
double ap_cfn_tree_goal(ap_cfn_tree_t *tree)
{
    double cost = ap_cfn_shared_cost(tree->shared);

    cost = cost - 1.0 + ap_cfn_rounding(cost);
    return cost < tree->cap ? cost : tree->cap;
}

/* Offers what an elimination has found, if it fits. At prices an assignment that fits is a solution
 * like any other, and in tight problems elimination finds them often. */
void ap_cfn_node_offer_choice(ap_cfn_tree_t *tree, const ap_cfn_node_t *node)
{
    ap_cfn_dual_t *dual = node->dual;
    double cost;

    /* Message passing gives no assignment worth checking; decoding one each round would cost as
     * much as a sweep. */
    if (dual->exact == NULL || !(dual->bound < HUGE_VAL) || !ap_cfn_dual_choice_fits(dual)) {
        return;
    }
    cost = dual->core->constant + ap_cfn_core_cost(dual->core, dual->choice);
    if (cost < ap_cfn_shared_cost(tree->shared)) {
        for (int v = 0; v < dual->core->variables; ++v) {
            tree->value[node->root[v]] = node->root_value[dual->at[v] + (size_t)dual->choice[v]];
        }
        unfold(tree, node);
        (void)ap_cfn_shared_offer(tree->shared, tree->value, cost);
    }
}

/* Improves a node's bound round by round: a sweep that also drops values, then a step of the
 * prices. The bound starts anew, as the node is another problem than its parent, while messages and
 * prices are the parent's. */
static bool tighten(ap_cfn_tree_t *tree, ap_cfn_node_t *node, int rounds, size_t *dropped)
{
    ap_cfn_dual_t *dual = node->dual;
    double last = -HUGE_VAL;
    int misfits = drop_misfits(node);

    *dropped = misfits > 0 ? (size_t)misfits : 0;
    /* Not even the smallest usages fit beside each other. */
    if (misfits < 0) {
        return true;
    }
    dual->best = -HUGE_VAL;
    /* The step length begins anew as well: the parent's may have become tiny on the way to its
     * own optimum. */
    dual->factor = first_factor;
    for (int round = 0; round < rounds; ++round) {
        double goal = ap_cfn_tree_goal(tree);

        *dropped += (size_t)ap_cfn_dual_fix(dual, goal, node->keep);
        ap_cfn_shared_spend(tree->shared, dual->nanoseconds + dual->fixing);
        ap_cfn_node_offer_choice(tree, node);
        if (dual->bound >= goal) {
            return true;
        }
        if (4 * *dropped > ap_cfn_core_values(node->dual->core) ||
            ap_cfn_shared_is_over(tree->shared)) {
            return false; /* smaller first */
        }
        /* Looks from time to time whether the bound still rises; the root goes on regardless, since
         * all nodes inherit from it. */
        if (round % ROUNDS_LOOK == 0) {
            if (dual->best - last < worthwhile * (goal - dual->best) && node->depth > 0) {
                return false;
            }
            last = dual->best;
        }
        ap_cfn_dual_move_prices(dual, ap_cfn_dual_aim(dual, goal));
    }
    return false;
}

/* The last step may have been a bad one, so what comes after begins at the best prices. */
bool ap_cfn_node_tighten(ap_cfn_tree_t *tree, ap_cfn_node_t *node, int rounds, size_t *dropped)
{
    ap_cfn_dual_t *dual = node->dual;
    bool closed = tighten(tree, node, rounds, dropped);

    memcpy(dual->price, dual->best_price, (size_t)dual->core->times * sizeof(double));
    ap_cfn_dual_prices_changed(dual);
    return closed;
}

/* What a value's usage costs at the prices. */
static double priced_usage(const ap_cfn_dual_t *dual, int v, int x)
{
    const ap_cfn_variable_t *variable = &dual->core->variable[v];
    double priced = 0.0;

    for (int k = 0; k < variable->segments; ++k) {
        const ap_cfn_segment_t *segment = &variable->segment[k];

        priced += segment->usage[x] * (dual->sums[segment->to] - dual->sums[segment->from]);
    }
    return priced;
}

/* How far the usage of a variable's kept values lies apart, at the prices, in the mixture of
 * assignments that the bound is that of; *mean is the middle. */
static double spread(const ap_cfn_node_t *node, int v, double *mean)
{
    const ap_cfn_dual_t *dual = node->dual;
    const bool *keep = node->keep + dual->at[v];
    const double *share = dual->share + dual->at[v];
    double all = 0.0, sum = 0.0, apart = 0.0;
    int size = dual->core->variable[v].segments > 0 ? dual->core->variable[v].size : 0;

    for (int x = 0; x < size; ++x) {
        all += keep[x] ? share[x] : 0.0;
        sum += keep[x] ? share[x] * priced_usage(dual, v, x) : 0.0;
    }
    *mean = sum / fmax(all, least_share);
    for (int x = 0; x < size; ++x) {
        apart += keep[x] ? share[x] * fabs(priced_usage(dual, v, x) - *mean) : 0.0;
    }
    return all > least_share ? apart / all : 0.0;
}

/* Where prices meet a limit, the best bound is that of a mixture: a variable has much usage in some
 * of the assignments and little in others. The one for which these lie farthest apart is chosen,
 * or what earlier branches make expect most of. Where no usage is mixed, it is the one whose second
 * cheapest value costs most more. By themselves both count by links, because a variable with many
 * changes the bound of more neighbours. */
int ap_cfn_node_choose(const ap_cfn_node_t *node, const ap_cfn_pseudo_costs_t *costs, bool by_usage,
                       double gap, double *mean)
{
    const ap_cfn_dual_t *dual = node->dual;
    double most = 0.0, largest = -1.0;
    int mixed = -1, surest = 0;

    for (int v = 0; v < dual->core->variables; ++v) {
        double links = 1.0 + dual->core->variable[v].degree, middle = 0.0;
        double apart = by_usage ? spread(node, v, &middle) : 0.0, score = apart * links;

        if (score > decided * gap) {
            ap_cfn_split_t split = {.variable = node->root[v], .apart = apart, .links = links};

            score = costs != NULL ? ap_cfn_pseudo_costs_score(costs, &split, gap) : score;
            if (score > most) {
                most = score;
                *mean = middle;
                mixed = v;
            }
        }
        if (dual->margin[v] * links > largest) {
            largest = dual->margin[v] * links;
            surest = v;
        }
    }
    *mean = mixed >= 0 ? *mean : -1.0;
    return mixed >= 0 ? mixed : surest;
}

/* What uses more than the mean of a mixture, and what does not, are two sides that both lack the
 * mixture, so the bound rises on both. The side that it is mostly made of comes first. Where
 * nothing is mixed, it is the cheapest value and all others. */
int ap_cfn_node_split(const ap_cfn_node_t *node, const ap_cfn_pseudo_costs_t *costs, double gap,
                      bool *first, ap_cfn_split_t *split)
{
    const ap_cfn_dual_t *dual = node->dual;
    double mean, above = 0.0, below = 0.0;
    int v = ap_cfn_node_choose(node, costs, true, gap, &mean), best = dual->choice[v];
    int size = dual->core->variable[v].size;
    const bool *keep = node->keep + dual->at[v];

    for (int x = 0; x < size; ++x) {
        best = keep[best] ? best : x; /* dropped since: any other */
    }
    for (int x = 0; x < size; ++x) {
        first[x] = mean < 0.0 ? x == best : priced_usage(dual, v, x) > mean;
        *(first[x] ? &above : &below) += keep[x] ? dual->share[dual->at[v] + (size_t)x] : 0.0;
    }
    for (int x = 0; x < size && mean >= 0.0 && below > above; ++x) {
        first[x] = !first[x];
    }
    *split = (ap_cfn_split_t){.variable = mean < 0.0 ? -1 : node->root[v],
                              .above = below <= above,
                              .apart = spread(node, v, &mean),
                              .links = 1.0 + dual->core->variable[v].degree};
    return v;
}

/* A node without variables is one assignment. It fits if no capacity went below 0, as what was
 * settled has been taken off them. */
void ap_cfn_node_offer(ap_cfn_tree_t *tree, const ap_cfn_node_t *node)
{
    const ap_cfn_core_t *core = node->dual->core;

    for (int t = 0; t < core->times; ++t) {
        if (core->capacity[t] < 0.0) {
            return;
        }
    }
    if (core->constant < HUGE_VAL) {
        unfold(tree, node);
        (void)ap_cfn_shared_offer(tree->shared, tree->value, core->constant);
    }
}

/* The first node is narrowed from a pretended one that has all variables and values; so the
 * caller's dual is only read. */
xm_status_t ap_cfn_tree_create(const ap_cfn_dual_t *dual, ap_cfn_shared_t *shared, bool plain,
                               ap_cfn_tree_t *tree, ap_cfn_node_t *root)
{
    const ap_cfn_core_t *core = dual->core;
    /* Only read: narrowing copies what the node will change. */
    ap_cfn_node_t all = {.dual = (ap_cfn_dual_t *)(uintptr_t)dual, .split = {.variable = -1}};
    xm_status_t status;

    tree->shared = shared;
    tree->cap = HUGE_VAL;
    tree->plain = plain;
    tree->fold = NULL;
    tree->fold_capacity = 0;
    tree->value = malloc(((size_t)core->variables + 1) * sizeof(int));
    if (tree->value == NULL) {
        return XM_NO_MEMORY("a branch");
    }
    status = allocate(&all);
    if (status == XM_OK) {
        for (int v = 0; v < core->variables; ++v) {
            all.root[v] = v;
            for (int x = 0; x < core->variable[v].size; ++x) {
                all.root_value[dual->at[v] + (size_t)x] = x;
            }
        }
        status = ap_cfn_node_narrow(tree, &all, root);
        ap_cfn_node_destroy(&all);
    }
    if (status != XM_OK) {
        ap_cfn_tree_destroy(tree);
    }
    return status;
}

void ap_cfn_tree_destroy(ap_cfn_tree_t *tree)
{
    free(tree->value);
    free(tree->fold);
    tree->value = tree->fold = NULL;
}
