/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The openshop scheduler (docs/openshop.md): a preemptive open shop with relays, which
 * may cut demands and let receivers pass parts on. It first computes the relay bound and
 * the amounts that meet it, then builds schedules of several kinds and keeps the best:
 * turns of a colouring (proved near the bound for equal rates), the all-to-all
 * distribution (for many receivers), a list rule and cyclic orders (for unequal rates).
 * All work is limited by counts, so results do not depend on the machine.
 */
#include <stdlib.h>

#include "resharding/solve/bound.h"
#include "resharding/solve/openshop.h"

enum {
    MOST_HOPS = 2000000,        /* of a schedule, roughly */
    USUAL_HOPS = 400000,        /* more are not spent on the last per cent */
    CYCLE_TRANSFERS = 300,      /* more leave the search few trials */
    CYCLE_MOST = 1000,          /* and too few */
    MOST_PARTS = 4,             /* of a transfer in a turn of a cycle */
    LIST_PIECES = 1000,         /* pieces that the busiest direction carries in a list schedule */
    LIST_WORK = 400000000,      /* pieces of all directions times directions */
    MORE_TRANSFERS = 4000,      /* likewise, where turns are wanted anyway */
    DISTRIBUTION_HOSTS = 48,    /* among more, looking for senders takes longer than turns */
    MANY_TRANSFERS = 30000,     /* of a split with relays; more leave too few turns for its hops */
    DISTRIBUTION_PIECES = 1000, /* that a host receives */
    LEAST_SPARE = 16,           /* part of the time that is left to relays, where it can be */
    SPLITS = 3,                 /* ways to share out what the egresses have to spare */
};
void xm_openshop_offer(xm_openshop_t *o, xm_recorder_t *recorder)
{
    if (o->best != NULL && xm_recorder_makespan(o->best) <= xm_recorder_makespan(recorder)) {
        xm_recorder_destroy(recorder);
        return;
    }
    xm_recorder_destroy(o->best);
    o->best = recorder;
}

bool xm_openshop_within(const xm_openshop_t *o, double factor)
{
    return o->best != NULL && (double)xm_recorder_makespan(o->best) <= factor * (double)o->bound_ns;
}

/* Builds a list schedule. Choosing a piece looks at all directions, so the number of
 * pieces falls with the square of the hosts to keep the work bounded. */
static xm_status_t build_list(xm_openshop_t *o)
{
    int64_t directions = 2 * o->shop.hosts, pieces = LIST_WORK / (directions * directions);
    xm_recorder_t *recorder = NULL;
    xm_status_t status = xm_recorder_create(&o->shop, &o->transfers, &recorder);

    pieces = pieces < 1 ? 1 : pieces;
    pieces = pieces < LIST_PIECES ? pieces : LIST_PIECES;
    if (o->params->pieces_per_host > 0) {
        pieces = o->params->pieces_per_host;
    }
    XM_THEN(status, xm_shop_list(&o->shop, &o->transfers, o->bound_ns / pieces + 1, o->piece_bytes,
                                 recorder));
    if (status == XM_OK) {
        xm_openshop_offer(o, recorder);
    } else {
        xm_recorder_destroy(recorder);
    }
    return status;
}

/* Counts the transfers that relays would send. It is asked before the split is made,
 * because a split of too many transfers is not worth its memory. */
static int64_t relayed(const xm_openshop_t *o, const int64_t *sent)
{
    int64_t transfers = 0;

    for (int64_t g = 0; g < o->shop.groups; ++g) {
        const xm_demand_t *hosts = o->shop.group[g].hosts;

        for (int i = 0; i < hosts->receiver_count; ++i) {
            transfers += sent[o->shop.group[g].first_entry + hosts->holder_count + i] > 0
                             ? hosts->receiver_count - 1
                             : 0;
        }
    }
    return transfers;
}

/*
 * Splits so that no host's egress is busy for longer than ns[host]. *fits says whether
 * that is possible; o->many says that it would take too many transfers, and then the
 * split before is kept.
 */
static xm_status_t split(xm_openshop_t *o, const int64_t *ns, bool relays, bool *fits)
{
    size_t count = (size_t)o->shop.entries + 1;
    int64_t *sent = malloc(count * sizeof(*sent));
    xm_status_t status;

    XM_NEED_MEMORY(sent, "%lld groups on %d hosts", (long long)o->shop.groups, o->shop.hosts);
    /* Only relays multiply transfers: without them a group has about as many as it has
     * hosts. */
    status = xm_shop_fits(&o->shop, ns, relays, fits, sent);
    o->many = status == XM_OK && *fits && relays && relayed(o, sent) > MANY_TRANSFERS;
    if (status == XM_OK && *fits && !o->many) {
        free(o->transfers.at);
        o->transfers = (xm_shop_transfers_t){0};
        status = xm_shop_split(&o->shop, sent, &o->transfers);
    }
    o->relays = relays;
    free(sent);
    return status;
}

/* The same time for all hosts. */
static void fill(int64_t *ns, int hosts, int64_t value)
{
    for (int h = 0; h < hosts; ++h) {
        ns[h] = value;
    }
}

/*
 * Builds an all-to-all distribution by pieces. It needs no split, so it serves problems
 * that have too many transfers, and it declines only those that need more than half of
 * MOST_HOPS for one piece of each group.
 */
static xm_status_t build_distribution(xm_openshop_t *o)
{
    double copies = 0, pieces = 0, bytes, most;
    xm_shop_transfers_t transfers = {0};
    xm_recorder_t *recorder = NULL;
    xm_status_t status;

    for (int64_t g = 0; g < o->shop.groups; ++g) {
        int receivers = o->shop.group[g].hosts->receiver_count;

        copies += (double)o->shop.group[g].bytes * receivers;
        pieces += receivers; /* one of each group may be small */
    }
    if (2 * pieces > (double)o->most_hops) {
        return XM_UNSUPPORTED("open shop schedules have about %lld hops; %lld groups of demands on "
                              "%d hosts need more than half of them for one piece each",
                              (long long)o->most_hops, (long long)o->shop.groups, o->shop.hosts);
    }
    /* The pieces are large enough for the most hops in all, and about DISTRIBUTION_PIECES of them
     * make up what the busiest host receives. */
    bytes = copies / ((double)o->most_hops - pieces);
    most = (double)o->shop.ingress_bytes /
           (o->params->pieces_per_host > 0 ? o->params->pieces_per_host : DISTRIBUTION_PIECES);
    bytes = bytes < most ? most : bytes;
    bytes = bytes < (double)o->piece_bytes ? (double)o->piece_bytes : bytes;
    status = xm_shop_distribution(&o->shop, (int64_t)bytes + 1, o->params->seed, &transfers);
    XM_THEN(status, xm_recorder_create(&o->shop, &transfers, &recorder));
    /* The distribution's order is already a schedule; every transfer is recorded whole. */
    for (int64_t t = 0; status == XM_OK && t < transfers.count; ++t) {
        status = xm_recorder_add(recorder, t, 0, transfers.at[t].bytes);
    }
    if (status == XM_OK) {
        xm_openshop_offer(o, recorder);
    } else {
        xm_recorder_destroy(recorder);
    }
    free(transfers.at);
    return status;
}

/* Leaves that share of the time to hosts that only relay. What they pass on comes to them a turn
 * before, so those that were to send all the time would be a turn late in the end. */
static void spare_relays(const xm_openshop_t *o, int64_t share_ns, int64_t *ns)
{
    fill(ns, o->shop.hosts, o->bound_ns - share_ns);
    for (int64_t g = 0; g < o->shop.groups; ++g) {
        const xm_demand_t *hosts = o->shop.group[g].hosts;

        for (int i = 0; i < hosts->holder_count; ++i) {
            ns[hosts->holders[i]] = o->bound_ns;
        }
    }
}

/*
 * For equal rates. It does without relays when that costs nothing or next to nothing (0.2
 * %), for what is not relayed need not wait for anything. With relays the split always
 * fits, as the bound was computed with them.
 */
static xm_status_t build_equal(xm_openshop_t *o, int64_t *ns)
{
    int64_t some = o->params->turns > 0 ? MORE_TRANSFERS : XM_SHOP_SOME;
    bool fits = false;

    fill(ns, o->shop.hosts, o->bound_ns);
    XM_TRY(split(o, ns, false, &fits));
    if (!fits) {
        fill(ns, o->shop.hosts, o->bound_ns + o->bound_ns / 500);
        XM_TRY(split(o, ns, false, &fits));
    }
    for (int64_t spare = 2; !fits; spare *= 2) {
        spare_relays(o, spare > LEAST_SPARE ? 0 : o->bound_ns / spare, ns);
        XM_TRY(split(o, ns, true, &fits));
    }
    /* A distribution is tried first where turns would need more hops, and after them
     * where they fell short. */
    if (o->relays &&
        (o->many || (o->transfers.count > some && o->shop.hosts <= DISTRIBUTION_HOSTS))) {
        XM_TRY(build_distribution(o));
    }
    if (!o->many && !xm_openshop_within(o, XM_SHOP_FAIR)) {
        XM_TRY(xm_openshop_turns(o));
        if (o->relays && o->transfers.count <= XM_SHOP_SOME &&
            !xm_openshop_within(o, XM_SHOP_FAIR)) {
            XM_TRY(build_distribution(o));
        }
    }
    return XM_OK;
}

/*
 * Splits for NICs of several rates and builds from the split. Where egresses have time to
 * spare, sharing the load out evenly keeps them from holding others up, and using more of
 * it relays less; `share` of the spare time, in sixths, is used. Cycles are searched for
 * only where the list rule leaves a gap.
 */
static xm_status_t build_split(xm_openshop_t *o, const int64_t *level, bool relays, int share,
                               int64_t *ns)
{
    bool fits;
    xm_status_t status;

    for (int h = 0; h < o->shop.hosts; ++h) {
        int64_t spare = o->bound_ns > level[h] ? o->bound_ns - level[h] : 0;

        ns[h] = level[h] + spare / 6 * share;
    }
    status = split(o, ns, relays, &fits);
    XM_THEN(status, o->many ? build_distribution(o) : build_list(o));
    if (status == XM_OK && !o->many && o->transfers.count <= CYCLE_MOST &&
        !xm_openshop_within(o,
                            o->transfers.count <= CYCLE_TRANSFERS ? XM_SHOP_FAIR : XM_SHOP_POOR)) {
        status = xm_openshop_cycle(o, 1);
    }
    for (int parts = 2;
         status == XM_OK && parts <= MOST_PARTS && !o->many &&
         o->transfers.count <= CYCLE_TRANSFERS && !xm_openshop_within(o, XM_SHOP_POOR);
         ++parts) {
        status = xm_openshop_cycle(o, parts);
    }
    return status;
}

/* For unequal rates: first without relays, unless these alone can come near the bound,
 * then with them, each with none, a third and two thirds of the spare time. */
static xm_status_t build_unequal(xm_openshop_t *o, int64_t *ns)
{
    int64_t *level = malloc((size_t)o->shop.hosts * sizeof(*level));
    xm_status_t status = XM_OK;

    XM_NEED_MEMORY(level, "%d hosts", o->shop.hosts);
    for (int relays = 0; status == XM_OK && relays < 2 && !xm_openshop_within(o, XM_SHOP_GOOD);
         ++relays) {
        int64_t longest = 0;

        status = xm_shop_balance(&o->shop, o->bound_ns / 2, relays == 1, level);
        for (int h = 0; status == XM_OK && h < o->shop.hosts; ++h) {
            longest = level[h] > longest ? level[h] : longest;
        }
        if (relays == 0 && longest > o->bound_ns + o->bound_ns / 50) {
            continue; /* only relays can come near the bound */
        }
        for (int i = 0;
             status == XM_OK && i < SPLITS && !o->many && !xm_openshop_within(o, XM_SHOP_GOOD);
             ++i) {
            status = build_split(o, level, relays == 1, 2 * i, ns);
        }
    }
    free(level);
    return status;
}

/* The bound comes first: it is the time that splits aim at and the measure of when to
 * stop. */
static xm_status_t build(xm_openshop_t *o)
{
    bool uplinks = xm_network_uplink_bandwidth(o->shop.network) > 0;
    int64_t *ns = malloc((size_t)o->shop.hosts * sizeof(*ns));
    xm_bound_t bound = {0};
    xm_status_t status;

    XM_NEED_MEMORY(ns, "%d hosts", o->shop.hosts);
    status = xm_shop_earliest(&o->shop, o->shop.ingress_ns, true, NULL, &o->bound_ns, NULL);
    if (status == XM_OK && uplinks) {
        status = xm_bound_compute_problem(o->shop.problem, &bound);
        o->bound_ns = bound.uplink_ns > o->bound_ns ? bound.uplink_ns : o->bound_ns;
    }
    if (status == XM_OK && xm_network_uniform(o->shop.network)) {
        status = build_equal(o, ns);
    }
    /* Turns know nothing of uplinks, the list rule does. */
    if (status == XM_OK &&
        (o->best == NULL || (uplinks && !o->many && o->transfers.count <= CYCLE_MOST &&
                             !xm_openshop_within(o, XM_SHOP_POOR)))) {
        status = build_unequal(o, ns);
    }
    free(ns);
    return status;
}

/* One schedule, and the bound that it aims at; of demands by rack or of any. The caller owns the
 * hops. The problem must stay until the call returns, since the shop points into it. */
static xm_status_t schedule(const xm_problem_t *problem, const xm_openshop_params_t *params,
                            bool by_rack, xm_hop_t **hops, int64_t *count, int64_t *makespan_ns,
                            int64_t *bound_ns)
{
    xm_openshop_t o = {.params = params};
    xm_status_t status;

    XM_TRY(xm_shop_create(problem, &o.shop));
    if (by_rack) {
        xm_shop_enter_once(&o.shop);
    }
    o.most_hops =
        params->most_hops > 0 && params->most_hops < MOST_HOPS ? params->most_hops : MOST_HOPS;
    o.usual_hops = o.most_hops < USUAL_HOPS ? o.most_hops : USUAL_HOPS;
    o.piece_bytes = params->piece_bytes > 0 ? params->piece_bytes : 64 << 10;
    o.shop.most_bytes = params->most_bytes > 0 ? params->most_bytes : INT64_MAX;
    status = build(&o);
    if (status == XM_OK) {
        int64_t makespan = xm_recorder_makespan(o.best);

        status = xm_recorder_take(o.best, hops, count);
        if (status == XM_OK) {
            *makespan_ns = makespan;
            *bound_ns = o.bound_ns;
        }
    }
    xm_recorder_destroy(o.best);
    free(o.transfers.at);
    xm_shop_free(&o.shop);
    return status;
}

/* Schedules the demands by rack, and keeps that where it is shorter. */
static xm_status_t schedule_by_rack(const xm_problem_t *problem, const xm_openshop_params_t *params,
                                    xm_hop_t **hops, int64_t *count, int64_t *makespan_ns)
{
    int64_t other_count, other_ns, bound;
    xm_hop_t *other = NULL;
    xm_rack_problem_t racks;
    xm_status_t status;

    XM_TRY(xm_rack_problem_create(problem, &racks));
    status = schedule(&racks.problem, params, true, &other, &other_count, &other_ns, &bound);
    if (status == XM_OK && other_ns < *makespan_ns) {
        for (int64_t i = 0; i < other_count; ++i) {
            other[i].demand = racks.origin[other[i].demand];
        }
        free(*hops);
        *hops = other;
        *count = other_count;
        *makespan_ns = other_ns;
        other = NULL;
    }
    free(other);
    xm_rack_problem_free(&racks);
    return status == XM_ERR_UNSUPPORTED ? XM_OK : status;
}

xm_status_t xm_schedule_openshop(const xm_problem_t *problem, const xm_openshop_params_t *params,
                                 xm_hop_t **hops, int64_t *count, int64_t *makespan_ns)
{
    int64_t bound;
    XM_TRY(schedule(problem, params, false, hops, count, makespan_ns, &bound));

    if (xm_network_uplink_bandwidth(problem->network) > 0 &&
        (double)*makespan_ns > XM_SHOP_FAIR * (double)bound) {
        XM_TRY(schedule_by_rack(problem, params, hops, count, makespan_ns));
    }
    return XM_OK;
}
