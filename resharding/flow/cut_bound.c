/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cut bound: how soon data can have left its holders when each byte may leave from
 * any of them. The answer is the largest, over all sets of nodes, of what only the set
 * holds over what the set can send. Enumerating sets is exponential; Dinkelbach's method
 * for such ratios asks a maximum flow whether a time is enough, and when it is not, the
 * minimum cut names a set that needs more. Times rise strictly and end at the exact
 * value, in whole bytes and whole nanoseconds.
 */
#include "resharding/flow/cut_bound.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "resharding/flow/flow.h"

/* Longer times are reported as this one (219 years), which keeps sums with other times
 * from overflowing. */
static const int64_t longest_ns = INT64_C(3) << 61;

/* Data held by the same set of at least two nodes. */
typedef struct {
    int64_t bytes;
    size_t first; /* of its holders in `holder` */
    int count;
} group_t;

struct xm_cut_bound {
    int nodes;
    double *rate;
    int64_t *own; /* by node: bytes that nobody else holds */
    int64_t total;
    group_t *group;
    int groups;
    int *holder;
    size_t holders, holder_room, group_room;
    xm_index_t index; /* of groups, by their holders */
};

/* The rounding up by 2^-50 keeps the bound valid: without it, errors in doubles could
 * take a byte away that a schedule manages to send. */
int64_t xm_cut_bound_capacity(double rate, int64_t ns, int64_t limit)
{
    double bytes = floor((double)ns * rate / 1e9 * (1 + 0x1p-50));

    return bytes < (double)limit ? (int64_t)bytes : limit;
}

/* The rates are copied, so the caller's array may go away. */
xm_status_t xm_cut_bound_create(int nodes, const double *rate, xm_cut_bound_t **cut_bound)
{
    xm_cut_bound_t *created = calloc(1, sizeof(*created));

    XM_NEED_MEMORY(created, "a bound");
    created->nodes = nodes;
    created->rate = malloc((size_t)nodes * sizeof(*created->rate));
    created->own = calloc((size_t)nodes, sizeof(*created->own));
    if (created->rate == NULL || created->own == NULL) {
        xm_cut_bound_destroy(created);
        return XM_NO_MEMORY("the bound of %d hosts", nodes);
    }
    memcpy(created->rate, rate, (size_t)nodes * sizeof(*rate));
    *cut_bound = created;
    return XM_OK;
}

void xm_cut_bound_destroy(xm_cut_bound_t *cut_bound)
{
    if (cut_bound != NULL) {
        xm_index_clear(&cut_bound->index);
        free(cut_bound->holder);
        free(cut_bound->group);
        free(cut_bound->own);
        free(cut_bound->rate);
        free(cut_bound);
    }
}

/* Values mostly come in order, so the search begins at the end. */
int xm_set_insert(int *set, int count, int value)
{
    int at = count;

    while (at > 0 && set[at - 1] > value) {
        --at;
    }
    if (at > 0 && set[at - 1] == value) {
        return count;
    }
    memmove(set + at + 1, set + at, (size_t)(count - at) * sizeof(*set));
    set[at] = value;
    return count + 1;
}

/* Finds the group of these holders or makes it. Equal sets share a node of the flow,
 * which is what keeps it small: demands are many, sets of holders are few. */
static xm_status_t add_to_group(xm_cut_bound_t *cut_bound, const int *holders, int count,
                                int64_t bytes)
{
    uint64_t hash = xm_hash_list(0, holders, count);
    int64_t g;

    for (size_t step = 0; (g = xm_index_next(&cut_bound->index, hash, &step)) >= 0;) {
        group_t *group = &cut_bound->group[g];

        if (group->count == count &&
            memcmp(cut_bound->holder + group->first, holders, (size_t)count * sizeof(int)) == 0) {
            group->bytes += bytes;
            return XM_OK;
        }
    }
    /* The set is new; its holders are appended to the common list, which groups index. */
    XM_NEED_MEMORY(XM_ARRAY_ROOM(cut_bound->group, cut_bound->group_room, cut_bound->groups) &&
                       xm_array_reserve(&cut_bound->holder, &cut_bound->holder_room,
                                        cut_bound->holders + (size_t)count,
                                        sizeof(*cut_bound->holder)) &&
                       xm_index_enter(&cut_bound->index, hash, cut_bound->groups),
                   "the bound of %d sets of holders", cut_bound->groups + 1);
    memcpy(cut_bound->holder + cut_bound->holders, holders, (size_t)count * sizeof(int));
    cut_bound->group[cut_bound->groups++] = (group_t){bytes, cut_bound->holders, count};
    cut_bound->holders += (size_t)count;
    return XM_OK;
}

/* Adds up all bytes and refuses sums that do not fit, so that no later sum over a part
 * can overflow. Data with one holder is kept apart, as it needs no group. */
xm_status_t xm_cut_bound_add(xm_cut_bound_t *cut_bound, const int *holders, int count,
                             int64_t bytes)
{
    if (bytes > INT64_MAX - cut_bound->total) {
        return XM_INVALID("the data of a resharding exceeds %lld bytes", (long long)INT64_MAX);
    }
    if (count == 1) {
        cut_bound->own[holders[0]] += bytes;
    } else {
        XM_TRY(add_to_group(cut_bound, holders, count, bytes));
    }
    cut_bound->total += bytes;
    return XM_OK;
}

/* Bytes that only the set holds: a group counts when all its holders are members. */
static int64_t held_inside(const xm_cut_bound_t *cut_bound, const bool *in_set)
{
    int64_t bytes = 0;

    for (int n = 0; n < cut_bound->nodes; ++n) {
        bytes += in_set[n] ? cut_bound->own[n] : 0;
    }
    for (int g = 0; g < cut_bound->groups; ++g) {
        const group_t *group = &cut_bound->group[g];
        int i = 0;

        while (i < group->count && in_set[cut_bound->holder[group->first + (size_t)i]]) {
            ++i;
        }
        bytes += i == group->count ? group->bytes : 0;
    }
    return bytes;
}

/* True when the members can send `bytes` within `ns`, each whole bytes. The sum stops as
 * soon as it is enough, which also keeps it from overflowing. */
static bool fits(const xm_cut_bound_t *cut_bound, const bool *in_set, int64_t bytes, int64_t ns)
{
    for (int n = 0; n < cut_bound->nodes && bytes > 0; ++n) {
        bytes -= in_set[n] ? xm_cut_bound_capacity(cut_bound->rate[n], ns, bytes) : 0;
    }
    return bytes <= 0;
}

/*
 * The smallest time above `low` in which `bytes` fit through the set; the caller knows
 * that they do not fit in `low`. The exact time differs from the quotient because every
 * member sends whole bytes.
 */
static int64_t set_time(const xm_cut_bound_t *cut_bound, const bool *in_set, int64_t bytes,
                        int64_t low)
{
    double rate = 0, estimate;
    int64_t high, step = 1;

    for (int n = 0; n < cut_bound->nodes; ++n) {
        rate += in_set[n] ? cut_bound->rate[n] : 0;
    }
    /* The search starts a little below what it would take in fractions of bytes, and goes
     * on in growing steps; bisection between the last two then finds the exact time. */
    estimate = floor((double)bytes * 1e9 / rate * (1 - 0x1p-40)) - 1;
    /* No longer time can be reported, so the search would not end before it either. */
    if (estimate > (double)longest_ns) {
        return longest_ns;
    }
    if ((int64_t)estimate > low && !fits(cut_bound, in_set, bytes, (int64_t)estimate)) {
        low = (int64_t)estimate;
    }
    for (;;) {
        high = low < longest_ns - step ? low + step : longest_ns;
        if (high == longest_ns || fits(cut_bound, in_set, bytes, high)) {
            break;
        }
        low = high;
        step *= 2;
    }
    /* Here `bytes` do not fit in `low` and fit in `high`, or `high` is the longest time. */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;

        if (fits(cut_bound, in_set, bytes, middle)) {
            high = middle;
        } else {
            low = middle;
        }
    }
    return high;
}

/* A set of one node, without a flow. */
int64_t xm_cut_bound_single(double rate, int64_t bytes)
{
    const xm_cut_bound_t single = {.nodes = 1, .rate = &rate};
    const bool in_set[] = {true};

    return bytes > 0 ? set_time(&single, in_set, bytes, 0) : 0;
}

/*
 * Finds the nodes of a set that needs more than `ns`; *enough when there is none. The
 * flow goes from the source through groups to holders to the sink. When it falls short,
 * the nodes on the source's side of the minimum cut hold something alone that their
 * capacities cannot carry.
 */
static xm_status_t find_tighter(const xm_cut_bound_t *cut_bound, int64_t ns, bool *in_set,
                                bool *enough)
{
    /* Nodes of the flow: groups from 0, then hosts or racks, then source and sink. */
    int source = cut_bound->groups + cut_bound->nodes, sink = source + 1;
    xm_flow_t *flow = NULL;
    uint64_t value = 0;
    xm_status_t status = xm_flow_create(sink + 1, &flow);

    for (int n = 0; status == XM_OK && n < cut_bound->nodes; ++n) {
        int64_t capacity = xm_cut_bound_capacity(cut_bound->rate[n], ns, cut_bound->total);

        status = xm_flow_add_edge(flow, cut_bound->groups + n, sink, capacity);
        if (status == XM_OK && cut_bound->own[n] > 0) {
            /* A node's own data need no group between. */
            status = xm_flow_add_edge(flow, source, cut_bound->groups + n, cut_bound->own[n]);
        }
    }
    for (int g = 0; status == XM_OK && g < cut_bound->groups; ++g) {
        const group_t *group = &cut_bound->group[g];
        const int *holder = cut_bound->holder + group->first;

        status = xm_flow_add_edge(flow, source, g, group->bytes);
        for (int i = 0; status == XM_OK && i < group->count; ++i) {
            status = xm_flow_add_edge(flow, g, cut_bound->groups + holder[i], group->bytes);
        }
    }
    XM_THEN(status, xm_flow_maximise(flow, source, sink, &value));
    for (int n = 0; status == XM_OK && n < cut_bound->nodes; ++n) {
        in_set[n] = xm_flow_on_source_side(flow, cut_bound->groups + n);
    }
    *enough = value == (uint64_t)cut_bound->total;
    xm_flow_destroy(flow);
    return status;
}

/* Starts from the largest time of a single node, which saves most of the flows, then lets
 * cuts raise it. Each cut's own time is computed exactly, so a set is never named twice. */
xm_status_t xm_cut_bound_time(const xm_cut_bound_t *cut_bound, int64_t *ns)
{
    bool *in_set, enough = cut_bound->total == 0;
    int64_t time = 0;
    xm_status_t status = XM_OK;

    in_set = malloc((size_t)cut_bound->nodes * sizeof(*in_set));
    XM_NEED_MEMORY(in_set, "the bound of %d hosts", cut_bound->nodes);
    /* Data with a single holder need no flow. */
    for (int n = 0; n < cut_bound->nodes; ++n) {
        int64_t own = xm_cut_bound_single(cut_bound->rate[n], cut_bound->own[n]);

        time = own > time ? own : time;
    }
    /* Without groups no set is tighter than its worst member. */
    enough = enough || cut_bound->groups == 0;
    /* Every pass either proves the time enough or raises it to what a tighter set needs. */
    while (!enough && time < longest_ns) {
        status = find_tighter(cut_bound, time, in_set, &enough);
        if (status < 0) {
            break;
        }
        if (!enough) {
            time = set_time(cut_bound, in_set, held_inside(cut_bound, in_set), time);
        }
    }
    if (status == XM_OK) {
        *ns = time;
    }
    free(in_set);
    return status;
}
