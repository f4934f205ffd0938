/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A segment tree over time, with range additions that are not pushed down: a node's value is the
 * minimum of its subtree including what was added to the subtree as a whole, but without what its
 * ancestors were given. The plain alternative, an array of slacks, costs the length of a tensor's
 * lifetime for every change of value, and lifetimes of parameters span all times; here a change and
 * a query cost O(log times).
 */

#include "planner/solver/local/slack.h"

#include <math.h>
#include <stdlib.h>

/* The tree is complete: leaves behind the last time hold HUGE_VAL and never are a minimum. */
xm_status_t ap_cfn_slack_create(int times, const double *values, xm_arena_t *arena,
                                ap_cfn_slack_t *slack)
{
    int leaves = 1;

    while (leaves < times) {
        leaves *= 2;
    }
    slack->times = times;
    slack->leaves = leaves;
    slack->least = xm_arena_take(arena, 2 * (size_t)leaves * sizeof(double));
    slack->added = xm_arena_get(arena, 2 * (size_t)leaves, sizeof(double));
    if (arena->failed) {
        return XM_NO_MEMORY("%d times", times);
    }
    for (int t = 0; t < leaves; ++t) {
        slack->least[leaves + t] = t < times ? values[t] : HUGE_VAL;
    }
    /* Node n has the children 2n and 2n + 1; the root is 1. */
    for (int n = leaves - 1; n > 0; --n) {
        slack->least[n] = fmin(slack->least[2 * n], slack->least[2 * n + 1]);
    }
    return XM_OK;
}

/* Recomputes the ancestors of a leaf from their children. Nodes whose whole range was added to are
 * recomputed to what they are already. */
static void lift(ap_cfn_slack_t *slack, int leaf)
{
    for (int n = (leaf + slack->leaves) / 2; n > 0; n /= 2) {
        double left = slack->least[2 * n], right = slack->least[2 * n + 1];

        slack->least[n] = (left < right ? left : right) + slack->added[n];
    }
}

/* Adds to the largest nodes that lie inside [from, to), going up from both ends; then the ancestors
 * of both ends are the only nodes that are not up to date. */
void ap_cfn_slack_add(ap_cfn_slack_t *slack, int from, int to, double amount)
{
    if (from >= to) {
        return;
    }
    for (int l = from + slack->leaves, r = to + slack->leaves; l < r; l /= 2, r /= 2) {
        if (l % 2 == 1) {
            slack->least[l] += amount;
            slack->added[l++] += amount;
        }
        if (r % 2 == 1) {
            slack->least[--r] += amount;
            slack->added[r] += amount;
        }
    }
    lift(slack, from);
    lift(slack, to - 1);
}

/* The minimum of the part of [from, to) below a node. What was added to the node applies to all of
 * it, and is added on the way back. */
static double least_in(const ap_cfn_slack_t *slack, int node, int first, int last, int from, int to)
{
    int middle = (first + last) / 2;
    double found = HUGE_VAL;

    if (from <= first && last <= to) {
        return slack->least[node];
    }
    if (from < middle) {
        found = least_in(slack, 2 * node, first, middle, from, to);
    }
    if (to > middle) {
        double right = least_in(slack, 2 * node + 1, middle, last, from, to);

        found = right < found ? right : found;
    }
    return found + slack->added[node];
}

double ap_cfn_slack_least(const ap_cfn_slack_t *slack, int from, int to)
{
    return least_in(slack, 1, 0, slack->leaves, from, to);
}

/* The first time below the limit under a node. On the way down the limit loses what was added,
 * so that it compares with the children's values. A subtree whose minimum is not below the limit
 * is left out, so only nodes at the borders of the range can be searched in vain. */
static int first_in(const ap_cfn_slack_t *slack, int node, int first, int last, int from, int to,
                    double limit)
{
    int middle = (first + last) / 2, found = -1;

    if (last <= from || first >= to || !(slack->least[node] < limit)) {
        return -1;
    }
    if (last - first == 1) {
        return first;
    }
    limit -= slack->added[node];
    found = first_in(slack, 2 * node, first, middle, from, to, limit);
    return found >= 0 ? found : first_in(slack, 2 * node + 1, middle, last, from, to, limit);
}

int ap_cfn_slack_first_below(const ap_cfn_slack_t *slack, int from, int to, double limit)
{
    return first_in(slack, 1, 0, slack->leaves, from, to, limit);
}
