/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bound on all copies together (bound_relay.h has the statement and the proof), and
 * the maximum flow behind it that openshop also asks for amounts to send. Demands with
 * equal holders and receivers are merged into groups first, because the flow's size is
 * that of its groups and a batch has thousands of demands but few groups. Amounts are
 * integers throughout, so a flow that fits is a split that can be carried out to the
 * byte.
 */
#include "resharding/solve/bound_relay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "resharding/flow.h"
#include "resharding/solve/openshop.h"

/* A demand and its place in the problem, which breaks ties between demands of one group. */
typedef struct {
    const xm_demand_t *demand;
    int64_t index;
} member_t;

/* Orders host lists by length and then by content; equal lists come together, which is
 * all that grouping needs. */
static int compare_hosts(const int *a, int a_count, const int *b, int b_count)
{
    XM_ORDER_BY(a_count, b_count);
    for (int i = 0; i < a_count; ++i) {
        XM_ORDER_BY(a[i], b[i]);
    }
    return 0;
}

/* Holders first, then receivers: demands that compare equal form one group. */
static int compare_demands(const xm_demand_t *a, const xm_demand_t *b)
{
    int order = compare_hosts(a->holders, a->holder_count, b->holders, b->holder_count);

    return order != 0
               ? order
               : compare_hosts(a->receivers, a->receiver_count, b->receivers, b->receiver_count);
}

/* The index as last key makes the order total, so qsort() gives the same groups on every
 * machine. */
static int compare_members(const void *a, const void *b)
{
    const member_t *left = a, *right = b;
    int order = compare_demands(left->demand, right->demand);

    return order != 0 ? order : (left->index > right->index) - (left->index < right->index);
}

/* Refuses what the arithmetic cannot carry. Below 2^52 bytes in all copies, every amount
 * and every sum of amounts is exact in an int64_t and in a double. */
static xm_status_t check_demands(const xm_problem_t *problem)
{
    double most = 0;

    for (int64_t d = 0; d < problem->count; ++d) {
        const xm_demand_t *demand = &problem->demands[d];

        if (demand->bytes < 1 || demand->holder_count < 1 || demand->receiver_count < 1) {
            return XM_INVALID(
                "demand %lld has %lld bytes, %d holders and %d receivers; all must be at least 1",
                (long long)d, (long long)demand->bytes, demand->holder_count,
                demand->receiver_count);
        }
        most += (double)demand->bytes * demand->receiver_count;
    }
    if (most > 0x1p52) {
        return XM_UNSUPPORTED(
            "the demands' copies add up to %g bytes; schedules are computed for at most 2^52",
            most);
    }
    return XM_OK;
}

/* Lays the demands of each group end to end, in problem order; `offset` says where each
 * begins. The members come sorted, so a new group starts wherever two neighbours differ. */
static void fill_groups(xm_shop_t *shop, const member_t *members)
{
    for (int64_t i = 0; i < shop->problem->count; ++i) {
        xm_shop_group_t *group = &shop->group[shop->groups - 1];

        if (i == 0 || compare_demands(members[i - 1].demand, members[i].demand) != 0) {
            group = &shop->group[shop->groups++];
            *group = (xm_shop_group_t){
                .hosts = members[i].demand, .first_member = i, .first_entry = shop->entries};
            shop->entries += members[i].demand->holder_count + members[i].demand->receiver_count;
        }
        shop->member[i] = members[i].index;
        shop->offset[i] = group->bytes;
        group->bytes += members[i].demand->bytes;
        ++group->members;
    }
}

/* Finds the busiest ingress: condition (1) of the bound. It needs no flow, for every
 * receiver takes in its own copy whatever the senders do. */
static xm_status_t find_ingress(xm_shop_t *shop)
{
    int64_t *needed = calloc((size_t)shop->hosts, sizeof(*needed));

    XM_NEED_MEMORY(needed, "%d hosts", shop->hosts);
    for (int64_t g = 0; g < shop->groups; ++g) {
        const xm_demand_t *hosts = shop->group[g].hosts;

        for (int r = 0; r < hosts->receiver_count; ++r) {
            needed[hosts->receivers[r]] += shop->group[g].bytes;
        }
    }
    for (int h = 0; h < shop->hosts; ++h) {
        /* A little less, because the times of the hops that add up to it are rounded doubles. */
        double time = (double)needed[h] * 1e9 / xm_network_ingress(shop->network, h);
        int64_t ns = (int64_t)ceil(time * (1 - 0x1p-50));

        shop->ingress_bytes = needed[h] > shop->ingress_bytes ? needed[h] : shop->ingress_bytes;
        shop->ingress_ns = ns > shop->ingress_ns ? ns : shop->ingress_ns;
    }
    free(needed);
    return XM_OK;
}

/* Groups a problem's demands. The shop keeps pointers to the problem and its network, so
 * both must outlive it; on failure it is left empty. */
xm_status_t xm_shop_create(const xm_problem_t *problem, xm_shop_t *shop)
{
    size_t count = (size_t)problem->count + 1; /* never 0 */
    xm_status_t status = check_demands(problem);
    member_t *members;

    *shop = (xm_shop_t){.problem = problem, .network = problem->network};
    XM_TRY(status);
    shop->hosts = xm_network_hosts(problem->network);
    shop->group = malloc(count * sizeof(*shop->group));
    shop->member = malloc(count * sizeof(*shop->member));
    shop->offset = malloc(count * sizeof(*shop->offset));
    members = malloc(count * sizeof(*members));
    if (shop->group == NULL || shop->member == NULL || shop->offset == NULL || members == NULL) {
        status = XM_NO_MEMORY("%lld demands", (long long)problem->count);
        goto free_members;
    }
    for (int64_t d = 0; d < problem->count; ++d) {
        members[d] = (member_t){&problem->demands[d], d};
    }
    qsort(members, (size_t)problem->count, sizeof(*members), compare_members);
    fill_groups(shop, members);
    status = find_ingress(shop);

free_members:
    free(members);
    if (status < 0) {
        xm_shop_free(shop);
    }
    return status;
}

void xm_shop_free(xm_shop_t *shop)
{
    free(shop->offset);
    free(shop->member);
    free(shop->group);
    *shop = (xm_shop_t){0};
}

/* Bytes that a host can send in a time; the excess keeps the rounding of doubles from cutting a
 * byte off. */
static int64_t egress_bytes(const xm_shop_t *shop, int host, int64_t ns)
{
    double bytes = xm_network_egress(shop->network, host) * 1e-9 * (double)ns;

    return bytes < 0x1p53 ? (int64_t)floor(bytes * (1 + 0x1p-50) + 0x1p-20) : INT64_C(1) << 53;
}

/*
 * Adds one of the two kinds of copies: for each group an edge from the source and edges
 * to its holders. Nodes are the groups' first copies, their further copies (from `groups`
 * on), hosts (from 2 `groups` on), source and sink. `times` 0 stands for the further
 * copies, of which there is one less than receivers; where only receivers send these, the edges
 * carry nothing. read_sent() relies on the order in which edges are added.
 */
static xm_status_t add_copies(const xm_shop_t *shop, xm_flow_t *flow, int base, int64_t times,
                              bool relays)
{
    int groups = (int)shop->groups, source = 2 * groups + shop->hosts;

    for (int g = 0; g < groups; ++g) {
        const xm_demand_t *hosts = shop->group[g].hosts;
        int64_t copies = times > 0 ? times : hosts->receiver_count - 1;
        bool held = times > 0 || !relays || !shop->group[g].relayed;

        XM_TRY(xm_flow_add_edge(flow, source, base + g, copies * shop->group[g].bytes));
        for (int i = 0; i < hosts->holder_count; ++i) {
            XM_TRY(xm_flow_add_edge(flow, base + g, 2 * groups + hosts->holders[i],
                                    held ? copies * shop->group[g].bytes : 0));
        }
    }
    return XM_OK;
}

/* Lets receivers send further copies. The first copy of a byte can only come from a
 * holder, so these edges leave from the node of the further copies alone. */
static xm_status_t add_relays(const xm_shop_t *shop, xm_flow_t *flow)
{
    int groups = (int)shop->groups;

    for (int g = 0; g < groups; ++g) {
        const xm_demand_t *hosts = shop->group[g].hosts;

        for (int i = 0; i < hosts->receiver_count; ++i) {
            XM_TRY(xm_flow_add_edge(flow, groups + g, 2 * groups + hosts->receivers[i],
                                    (hosts->receiver_count - 1) * shop->group[g].bytes));
        }
    }
    return XM_OK;
}

/* Reads what every host sends of every group out of a solved flow: first copies, further
 * copies, and the relays' share, in the order in which solve() added the edges. */
static void read_sent(const xm_shop_t *shop, const xm_flow_t *flow, bool relays, int64_t *sent)
{
    int edge = 0;

    memset(sent, 0, (size_t)shop->entries * sizeof(*sent));
    for (int pass = 0; pass < 2; ++pass) {
        for (int64_t g = 0; g < shop->groups; ++g) {
            const xm_demand_t *hosts = shop->group[g].hosts;

            ++edge; /* from the source */
            for (int i = 0; i < hosts->holder_count; ++i) {
                sent[shop->group[g].first_entry + i] += xm_flow_along(flow, edge++);
            }
        }
    }
    edge += shop->hosts; /* to the sink */
    for (int64_t g = 0; relays && g < shop->groups; ++g) {
        const xm_demand_t *hosts = shop->group[g].hosts;

        for (int i = 0; i < hosts->receiver_count; ++i) {
            sent[shop->group[g].first_entry + hosts->holder_count + i] +=
                xm_flow_along(flow, edge++);
        }
    }
}

/* Returns how much the hosts on the source's side of the minimum cut can send in a time;
 * hosts with a fixed time have that time instead. */
static int64_t cut_bytes(const xm_shop_t *shop, const xm_flow_t *flow, const int64_t *fixed,
                         int64_t ns)
{
    int64_t bytes = 0;

    for (int h = 0; h < shop->hosts; ++h) {
        if (xm_flow_on_source_side(flow, (int)(2 * shop->groups + h))) {
            bytes += egress_bytes(shop, h, fixed != NULL && fixed[h] > 0 ? fixed[h] : ns);
        }
    }
    return bytes;
}

/*
 * The least time above `ns` in which those hosts can send the copies that only they can
 * send. The first loop ends because the cut contains a host whose time is not fixed:
 * fixed times come from a flow that fitted, so they are never too short by themselves.
 * The second loop halves its step, and as the amount grows with time it stops exactly at
 * the first time that is enough.
 */
static int64_t time_of_cut(const xm_shop_t *shop, const xm_flow_t *flow, const int64_t *fixed,
                           int64_t ns)
{
    int64_t groups = shop->groups, needed = 0, step = 1, enough;

    for (int64_t g = 0; g < groups; ++g) {
        int64_t bytes = shop->group[g].bytes;

        needed += xm_flow_on_source_side(flow, (int)g) ? bytes : 0;
        needed += xm_flow_on_source_side(flow, (int)(groups + g))
                      ? bytes * (shop->group[g].hosts->receiver_count - 1)
                      : 0;
    }
    while (cut_bytes(shop, flow, fixed, ns + step) < needed) {
        step *= 2;
    }
    for (enough = ns + step; step > 0; step /= 2) {
        while (enough - step > ns && cut_bytes(shop, flow, fixed, enough - step) >= needed) {
            enough -= step;
        }
    }
    return enough;
}

/* Solves the flow for a time of `ns`, or fixed[host] where that is not 0; *fits says that
 * all copies are sent. The caller owns the flow. */
static xm_status_t solve(const xm_shop_t *shop, const int64_t *fixed, int64_t ns, bool relays,
                         xm_flow_t **solved, bool *fits)
{
    int groups = (int)shop->groups, source = 2 * groups + shop->hosts, sink = source + 1;
    int64_t copies = 0;
    uint64_t value = 0, more = 0;
    xm_flow_t *flow = NULL;
    xm_status_t status = xm_flow_create(sink + 1, &flow);

    XM_THEN(status, add_copies(shop, flow, 0, 1, relays));
    XM_THEN(status, add_copies(shop, flow, groups, 0, relays));
    /* A host's egress is the only limit; the edges between groups and hosts never bind by
     * themselves. */
    for (int h = 0; status == XM_OK && h < shop->hosts; ++h) {
        int64_t time = fixed != NULL && fixed[h] > 0 ? fixed[h] : ns;

        status = xm_flow_add_edge(flow, 2 * groups + h, sink, egress_bytes(shop, h, time));
    }
    /*
     * The holders come first. Pushing more later never takes flow away from a host's edge
     * to the sink, so relays get only what holders cannot send, and no more is relayed
     * than must be.
     */
    XM_THEN(status, xm_flow_maximise(flow, source, sink, &value));
    if (status == XM_OK && relays) {
        status = add_relays(shop, flow);
        XM_THEN(status, xm_flow_maximise(flow, source, sink, &more));
    }
    if (status < 0) {
        xm_flow_destroy(flow);
        return status;
    }
    for (int g = 0; g < groups; ++g) {
        copies += shop->group[g].bytes * shop->group[g].hosts->receiver_count;
    }
    *fits = (int64_t)(value + more) == copies;
    *solved = flow;
    return XM_OK;
}

/* Answers for given egress times and hands out the amounts only when they suffice. */
xm_status_t xm_shop_fits(const xm_shop_t *shop, const int64_t *ns, bool relays, bool *fits,
                         int64_t *sent)
{
    xm_flow_t *flow;
    XM_TRY(solve(shop, ns, 0, relays, &flow, fits));

    if (*fits) {
        read_sent(shop, flow, relays, sent);
    }
    xm_flow_destroy(flow);
    return XM_OK;
}

/*
 * Newton's method on cuts: a time that is too short names a cut, and the next time tried
 * is the least that satisfies this cut. Every step satisfies a further cut for good and
 * there are finitely many, so the loop ends, and the time it ends with is the least,
 * since no cut allows a shorter one.
 */
xm_status_t xm_shop_earliest(const xm_shop_t *shop, int64_t from_ns, bool relays,
                             const int64_t *fixed, int64_t *ns, bool *cut)
{
    int64_t later = from_ns;

    if (cut != NULL) {
        memset(cut, 0, (size_t)shop->hosts * sizeof(*cut));
    }
    for (bool fits = false; !fits;) {
        xm_flow_t *flow;

        XM_TRY(solve(shop, fixed, later, relays, &flow, &fits));
        if (!fits) {
            later = time_of_cut(shop, flow, fixed, later);
            for (int h = 0; cut != NULL && h < shop->hosts; ++h) {
                cut[h] = xm_flow_on_source_side(flow, (int)(2 * shop->groups + h));
            }
        }
        xm_flow_destroy(flow);
    }
    *ns = later;
    return XM_OK;
}

/*
 * Fixes the hosts of the tightest cut at the time they need, then looks for the least
 * time of the others, and so on: the longest time is as short as can be, then the next
 * longest. Every round fixes at least one host or ends the loop, so there are at most as
 * many flows to solve as hosts, apart from the steps inside each.
 */
xm_status_t xm_shop_balance(const xm_shop_t *shop, int64_t least_ns, bool relays, int64_t *ns)
{
    bool *cut = malloc((size_t)shop->hosts * sizeof(*cut));
    int64_t level = least_ns + 1;
    xm_status_t status = XM_OK;

    XM_NEED_MEMORY(cut, "%d hosts", shop->hosts);
    memset(ns, 0, (size_t)shop->hosts * sizeof(*ns));
    while (status == XM_OK && level > least_ns) {
        bool fixed_one = false;

        status = xm_shop_earliest(shop, least_ns, relays, ns, &level, cut);
        for (int h = 0; status == XM_OK && h < shop->hosts; ++h) {
            if (cut[h] && ns[h] == 0) {
                ns[h] = level;
                fixed_one = true;
            }
        }
        if (!fixed_one) {
            break;
        }
    }
    /* A host that was never part of a cut gets the last level, which was enough for it. */
    for (int h = 0; h < shop->hosts; ++h) {
        ns[h] = ns[h] > 0 ? ns[h] : level;
    }
    free(cut);
    return status;
}

/* Starts from the ingress time, condition (1), so that the result satisfies both
 * conditions. */
xm_status_t xm_bound_relay(const xm_problem_t *problem, int64_t *ns)
{
    xm_shop_t shop;
    xm_status_t status = xm_shop_create(problem, &shop);

    if (status == XM_OK) {
        status = xm_shop_earliest(&shop, shop.ingress_ns, true, NULL, ns, NULL);
        xm_shop_free(&shop);
    }
    return status;
}
