/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The presolve's view of time: which times matter, and what each node uses at them. Intervals are
 * given in integers of any size, but the set of live nodes changes only at their ends, and of those
 * times only the maximal sets can bind; there are at most as many as nodes. After contraction, one
 * node stands for many tensors whose lifetimes differ, so its usage is a list of segments, each
 * with its own usage by value.
 *
 * The minimum of each segment is taken off the capacities. What is left says directly which values
 * cannot fit, and which times can be exceeded at all.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver/reduce/reduce_private.h"

typedef struct boundary {
    int64_t time;
    int begins; /* whether something begins or ends here */
    int node;
} boundary_t;

static bool is_live(const ap_cfn_t *cfn, int node)
{
    return (size_t)node < cfn->nodes && cfn->interval[2 * node] < cfn->interval[2 * node + 1];
}

/* At one time ends come before beginnings, as intervals are half open; node numbers settle the
 * rest, so that the order is the same in every run. */
static int compare_boundaries(const void *left, const void *right)
{
    const boundary_t *a = left, *b = right;

    return a->time != b->time       ? xm_order(a->time, b->time)
           : a->begins != b->begins ? xm_order(a->begins, b->begins)
                                    : xm_order(a->node, b->node);
}

/* Finds the times that matter. Of two neighbouring times at which one's live nodes contain the
 * other's, the former is enough, so a time is kept where something begins and the next event is an
 * end: these are the maximal cliques of an interval graph. Every node gets its range of them. */
static xm_status_t find_times(ap_cfn_reduction_t *self, int (*range)[2])
{
    const ap_cfn_t *cfn = self->cfn;
    boundary_t *at = malloc((2 * cfn->nodes + 1) * sizeof(*at));
    int count = 0, times = 0;

    self->when = xm_arena_take(&self->pool, (cfn->nodes + 1) * sizeof(*self->when));
    if (at == NULL || self->when == NULL) {
        free(at);
        return ap_reduce_no_memory();
    }
    for (int n = 0; n < self->nodes; ++n) {
        /* Nodes made of edges, and nodes that are never live, have no time. */
        range[n][0] = range[n][1] = 0;
        if (is_live(cfn, n)) {
            at[count++] = (boundary_t){cfn->interval[2 * n], 1, n};
            at[count++] = (boundary_t){cfn->interval[2 * n + 1], 0, n};
        }
    }
    qsort(at, (size_t)count, sizeof(*at), compare_boundaries);
    /* Ends come before beginnings, so "an end after a beginning" closes a time. */
    for (int k = 0; k < count; ++k) {
        if (at[k].begins) {
            range[at[k].node][0] = times;
        } else {
            if (k > 0 && at[k - 1].begins) {
                self->when[times++] = at[k - 1].time;
            }
            range[at[k].node][1] = times;
        }
    }
    free(at);
    self->times = times;
    return XM_OK;
}

/* The two extremes of an array, which is never empty: every node has a value and every segment a
 * time. */
static double least(const double *values, int size)
{
    double found = values[0];

    for (int s = 1; s < size; ++s) {
        found = values[s] < found ? values[s] : found;
    }
    return found;
}

static double most(const double *values, int size)
{
    double found = values[0];

    for (int s = 1; s < size; ++s) {
        found = values[s] > found ? values[s] : found;
    }
    return found;
}

/* Turns changes per time into prefix sums. */
static void accumulate(double *change, int times)
{
    for (int t = 1; t < times; ++t) {
        change[t] += change[t - 1];
    }
}

/* Appends a segment and hands its array of usages out to be filled. The segments of a node
 * ascend, because callers go through time in order. */
static xm_status_t add_segment(ap_cfn_reduction_t *self, ap_reduce_node_t *node, int *room,
                               int from, int to, double **usage)
{
    if (node->segments == *room) {
        ap_reduce_segment_t *grown;

        *room = *room > 0 ? 2 * *room : 1;
        grown = xm_arena_take(&self->graph, (size_t)*room * sizeof(*grown));
        if (grown != NULL && node->segments > 0) {
            memcpy(grown, node->segment, (size_t)node->segments * sizeof(*grown));
        }
        node->segment = grown;
    }
    *usage = xm_arena_take(&self->graph, (size_t)node->size * sizeof(double));
    if (self->graph.failed) {
        return ap_reduce_no_memory();
    }
    node->segment[node->segments++] = (ap_reduce_segment_t){from, to, *usage};
    return XM_OK;
}

/* One segment for every live node. This is the profile before contraction, used only to find what
 * cannot fit. */
static xm_status_t make_segments(ap_cfn_reduction_t *self)
{
    xm_status_t status = XM_OK;

    for (int n = 0; status == XM_OK && n < self->nodes; ++n) {
        ap_reduce_node_t *node = &self->node[n];
        const int *range = self->range[n];
        double *usage;
        int room = 0;

        if (range[0] < range[1]) {
            status = add_segment(self, node, &room, range[0], range[1], &usage);
            for (int s = 0; status == XM_OK && s < node->size; ++s) {
                usage[s] =
                    (double)self->cfn->usages[self->cfn->node_at[n] + (size_t)node->origin[s]];
            }
        }
    }
    return status;
}

static void reset_capacity(ap_cfn_reduction_t *self)
{
    for (int t = 0; t < self->times; ++t) {
        self->capacity[t] = (double)self->cfn->limit;
    }
}

/* Takes what a segment uses anyhow (the minimum over its node's values) off the capacities, and
 * drops segments that use no more than that: they cannot make a difference. */
static void settle(ap_cfn_reduction_t *self, double *change)
{
    memset(change, 0, ((size_t)self->times + 1) * sizeof(double));
    for (int n = 0; n < self->nodes; ++n) {
        ap_reduce_node_t *node = &self->node[n];
        int kept = 0;

        for (int k = 0; k < node->segments && !node->gone; ++k) {
            ap_reduce_segment_t segment = node->segment[k];
            double base = least(segment.usage, node->size);

            change[segment.from] += base;
            change[segment.to] -= base;
            for (int s = 0; s < node->size; ++s) {
                segment.usage[s] -= base;
            }
            /* Equal usages cannot be influenced; their sum is in the capacity now. */
            if (most(segment.usage, node->size) > 0.0) {
                node->segment[kept++] = segment;
            }
        }
        node->segments = node->gone ? node->segments : kept;
    }
    accumulate(change, self->times);
    for (int t = 0; t < self->times; ++t) {
        self->capacity[t] -= change[t];
    }
}

/* A negative capacity means that even the smallest usages together exceed the limit, whatever is
 * chosen. */
static xm_status_t check_capacity(const ap_cfn_reduction_t *self)
{
    for (int t = 0; t < self->times; ++t) {
        if (self->capacity[t] < 0.0) {
            return XM_NO_SOLUTION("no choice fits: at some time the least that can be used is %.0f "
                                  "more than the limit %lld",
                                  -self->capacity[t], (long long)self->cfn->limit);
        }
    }
    return XM_OK;
}

/* Drops values that use more at some time than is left when all else uses its minimum. Usages are
 * relative to the minimum already, and so are the capacities, so the test is a comparison. No
 * solution is lost, because no choice of the others could make room. */
static xm_status_t drop_misfits(ap_cfn_reduction_t *self)
{
    xm_status_t status = XM_OK;
    bool *keep = self->keep;

    for (int n = 0; status == XM_OK && n < self->nodes && !self->noted; ++n) {
        const ap_reduce_node_t *node = &self->node[n];

        /* A node without usage always fits. */
        if (node->gone || node->segments == 0) {
            continue;
        }
        for (int s = 0; s < node->size; ++s) {
            keep[s] = true;
        }
        for (int k = 0; k < node->segments; ++k) {
            double room = least(self->capacity + node->segment[k].from,
                                node->segment[k].to - node->segment[k].from);

            for (int s = 0; s < node->size; ++s) {
                keep[s] = keep[s] && node->segment[k].usage[s] <= room;
            }
        }
        status = ap_reduce_shrink(self, n, keep);
    }
    return status;
}

/* The first look at usage, on the problem as it is given. It comes before contraction since a value
 * that is dropped here may make an edge functional. */
xm_status_t ap_reduce_fit(ap_cfn_reduction_t *self)
{
    double *change;
    xm_status_t status;

    if (!self->cfn->limited) {
        return XM_OK;
    }
    self->range = xm_arena_take(&self->graph, (size_t)self->nodes * sizeof(*self->range));
    if (self->graph.failed) {
        return ap_reduce_no_memory();
    }
    /* Times are found once; contraction does not change them, as every original node keeps its
     * range. */
    status = find_times(self, self->range);
    if (status != XM_OK) {
        return status;
    }
    self->capacity = xm_arena_take(&self->graph, ((size_t)self->times + 1) * sizeof(double));
    change = xm_arena_take(&self->graph, ((size_t)self->times + 1) * sizeof(*change));
    if (self->graph.failed) {
        return ap_reduce_no_memory();
    }
    reset_capacity(self);
    status = make_segments(self);
    if (status == XM_OK) {
        /* With the minima taken off, every capacity says what is free for choices. */
        settle(self, change);
        status = check_capacity(self);
    }
    return status == XM_OK ? drop_misfits(self) : status;
}

/* Which nodes were contracted into which, and the strategies that follow from the values of the one
 * that is left. */
typedef struct members {
    int *first, *next; /* lists by root; -1 ends */
    int **follows;     /* per node: its strategy for every value of its root */
    xm_arena_t pool;   /* all of them */
} members_t;

/* Finds the members of every node that is left. The log is read from its end, so a step's leader
 * has its root and its strategies already. So far every step has one leader; nodes with two are
 * eliminated only after the profile. */
static xm_status_t find_members(const ap_cfn_reduction_t *self, members_t *members)
{
    size_t nodes = (size_t)self->nodes;
    xm_arena_t *pool = &members->pool;
    int *root = xm_arena_take(pool, nodes * sizeof(*root));

    members->first = xm_arena_take(pool, nodes * sizeof(int));
    members->next = xm_arena_take(pool, nodes * sizeof(int));
    members->follows = xm_arena_take(pool, nodes * sizeof(int *));
    if (pool->failed) {
        return ap_reduce_no_memory();
    }
    for (int n = 0; n < self->nodes; ++n) {
        members->first[n] = -1;
        if (!self->node[n].gone) {
            size_t bytes = (size_t)self->node[n].size * sizeof(int);

            root[n] = n;
            members->follows[n] = xm_arena_take(pool, bytes);
            if (pool->failed) {
                return ap_reduce_no_memory();
            }
            /* A node that is left follows from itself. */
            memcpy(members->follows[n], self->node[n].origin, bytes);
        }
    }
    for (int k = self->steps - 1; k >= 0; --k) {
        const ap_reduce_step_t *step = &self->step[k];
        int size, leader = step->leader[0];

        /* Contracted nodes share the root of their leader, and their strategy is looked up
         * through the leader's. */
        root[step->node] = root[leader];
        size = self->node[root[leader]].size;
        members->follows[step->node] = xm_arena_take(pool, (size_t)size * sizeof(int));
        if (pool->failed) {
            return ap_reduce_no_memory();
        }
        for (int s = 0; s < size; ++s) {
            members->follows[step->node][s] = step->value[members->follows[leader][s]];
        }
    }
    for (int n = 0; n < self->nodes; ++n) {
        members->next[n] = members->first[root[n]];
        members->first[root[n]] = n;
    }
    return XM_OK;
}

/* Adds up the usage of a node and all that follow from it, by a sweep over their ranges: between
 * two events the same members are live, and make one segment. Its minimum goes to `change`, for the
 * capacities, and a segment of equal usages is left out. */
static xm_status_t sum_members(ap_cfn_reduction_t *self, int root, const members_t *members,
                               boundary_t *at, double *sum, double *change)
{
    const ap_cfn_t *cfn = self->cfn;
    ap_reduce_node_t *node = &self->node[root];
    int count = 0, live = 0, room = 0;
    xm_status_t status = XM_OK;

    for (int n = members->first[root]; n >= 0; n = members->next[n]) {
        if (self->range[n][0] < self->range[n][1]) {
            /* From here on times are numbers of kept times, and the same order of events serves
             * again. */
            at[count++] = (boundary_t){self->range[n][0], 1, n};
            at[count++] = (boundary_t){self->range[n][1], 0, n};
        }
    }
    qsort(at, (size_t)count, sizeof(*at), compare_boundaries);
    /* The sums are of integers, so taking a member off again leaves no rounding error. */
    memset(sum, 0, (size_t)node->size * sizeof(double));
    for (int k = 0; status == XM_OK && k < count; ++k) {
        const int64_t *usage = cfn->usages + cfn->node_at[at[k].node];
        const int *follows = members->follows[at[k].node];
        double sign = at[k].begins ? 1.0 : -1.0, base, *into;

        for (int s = 0; s < node->size; ++s) {
            sum[s] += sign * (double)usage[follows[s]];
        }
        live += at[k].begins ? 1 : -1;
        /* Nothing is live, or more happens at the same time: no segment ends here. */
        if (live == 0 || k + 1 == count || at[k + 1].time == at[k].time) {
            continue;
        }
        /* What the members use together under every value of the root is no choice. */
        base = least(sum, node->size);
        change[at[k].time] += base;
        change[at[k + 1].time] -= base;
        if (most(sum, node->size) > base) {
            status = add_segment(self, node, &room, (int)at[k].time, (int)at[k + 1].time, &into);
            for (int s = 0; status == XM_OK && s < node->size; ++s) {
                into[s] = sum[s] - base;
            }
        }
    }
    return status;
}

/* Makes the segments of every node that is left, with those of all that follow from it, and the
 * capacities anew from the limit. `sum` is scratch of a node's values. */
static xm_status_t gather(ap_cfn_reduction_t *self, members_t *members)
{
    boundary_t *at = xm_arena_take(&members->pool, 2 * (size_t)self->nodes * sizeof(*at));
    double *sum = xm_arena_take(&members->pool, (size_t)self->largest * sizeof(*sum));
    double *change = xm_arena_get(&members->pool, (size_t)self->times + 1, sizeof(*change));
    xm_status_t status = members->pool.failed ? ap_reduce_no_memory() : XM_OK;

    for (int n = 0; status == XM_OK && n < self->nodes; ++n) {
        /* The segments of the first look are replaced. */
        self->node[n].segments = 0;
        if (!self->node[n].gone) {
            status = sum_members(self, n, members, at, sum, change);
        }
    }
    if (status == XM_OK) {
        accumulate(change, self->times);
        reset_capacity(self);
        for (int t = 0; t < self->times; ++t) {
            self->capacity[t] -= change[t];
        }
    }
    return status;
}

/* Keeps one time of each run of times at which the same segments are live, the tightest, and keeps
 * it only if the largest usages together could exceed it; renumbers the segments. Fewer times are
 * fewer prices, and so better steps of the dual. */
static xm_status_t thin_times(ap_cfn_reduction_t *self, xm_arena_t *pool)
{
    size_t room = (size_t)self->times + 2;
    double *worst = xm_arena_get(pool, room, sizeof(*worst));
    bool *cut = xm_arena_get(pool, room, sizeof(*cut));
    int *number =
        xm_arena_take(pool, room * sizeof(*number)); /* of the first kept time at or after */
    int kept = 0;

    if (pool->failed) {
        return ap_reduce_no_memory();
    }
    for (int n = 0; n < self->nodes; ++n) {
        const ap_reduce_node_t *node = &self->node[n];

        for (int k = 0; k < node->segments && !node->gone; ++k) {
            double usage = most(node->segment[k].usage, node->size);

            worst[node->segment[k].from] += usage;
            worst[node->segment[k].to] -= usage;
            cut[node->segment[k].from] = cut[node->segment[k].to] = true;
        }
    }
    accumulate(worst, self->times);
    /* A run ends where any segment begins or ends. */
    for (int t = 0; t < self->times;) {
        int end = t + 1;
        int tightest = t;

        for (; end < self->times && !cut[end]; ++end) {
            tightest = self->capacity[end] < self->capacity[tightest] ? end : tightest;
        }
        for (int k = t; k < end; ++k) {
            number[k] = kept;
        }
        /* A segment's ends are cuts, so only the numbers of the first times of runs are asked
         * for. */
        if (worst[t] > self->capacity[tightest]) {
            self->when[kept] = self->when[tightest];
            self->capacity[kept++] = self->capacity[tightest];
        }
        t = end;
    }
    /* Segments that end with the last time need a number for the time behind it. */
    number[self->times] = kept;
    for (int n = 0; n < self->nodes; ++n) {
        ap_reduce_node_t *node = &self->node[n];
        int count = 0;

        for (int k = 0; k < node->segments && !node->gone; ++k) {
            ap_reduce_segment_t segment = node->segment[k];

            /* A segment that covers no kept time can make no difference any more. */
            segment.from = number[segment.from];
            segment.to = number[segment.to];
            if (segment.from < segment.to) {
                node->segment[count++] = segment;
            }
        }
        node->segments = node->gone ? node->segments : count;
    }
    /* The capacities of the kept times have moved to the front already. */
    self->times = kept;
    return XM_OK;
}

/* What every value of a node uses has gone to the capacities when values have gone, and times may
 * not matter any more. */
xm_status_t ap_reduce_refit(ap_cfn_reduction_t *self)
{
    xm_arena_t pool = {0};
    double *change = xm_arena_take(&pool, ((size_t)self->times + 1) * sizeof(*change));
    xm_status_t status = change == NULL ? ap_reduce_no_memory() : XM_OK;

    if (status == XM_OK) {
        settle(self, change);
        status = check_capacity(self);
    }
    if (status == XM_OK) {
        status = drop_misfits(self);
    }
    if (status == XM_OK) {
        status = thin_times(self, &pool);
    }
    xm_arena_clear(&pool);
    return status;
}

/* Makes the final profile. From here on usage is tied to its node (`profiled`), and contraction
 * leaves nodes with usage where they are. */
xm_status_t ap_reduce_profile(ap_cfn_reduction_t *self)
{
    members_t members = {.first = NULL};
    xm_status_t status;

    /* Also without a limit, where no node has segments and contraction may go on. */
    self->profiled = true;
    if (!self->cfn->limited) {
        return XM_OK;
    }
    /* Who stands for whom, then their usage, then what cannot fit any more. */
    status = find_members(self, &members);
    if (status == XM_OK) {
        status = gather(self, &members);
    }
    if (status == XM_OK) {
        status = check_capacity(self);
    }
    if (status == XM_OK) {
        status = drop_misfits(self);
    }
    if (status == XM_OK) {
        status = thin_times(self, &members.pool);
    }
    xm_arena_clear(&members.pool);
    return status;
}
