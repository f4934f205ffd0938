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
#include <string.h>

#include "resharding/solve/bound.h"
#include "resharding/solve/openshop.h"

enum {
    MOST_HOPS = 2000000,        /* of a schedule, roughly */
    USUAL_HOPS = 400000,        /* more are not spent on the last per cent */
    USUAL_TURNS = 64,           /* unless there are fewer turns than this */
    MOST_TURNS = 512,           /* of a colouring */
    CYCLE_TURNS = 300,          /* of an order found by xm_shop_cycle() */
    CYCLE_STEPS = 400000,       /* of the search for one */
    CYCLE_TRANSFERS = 300,      /* more leave the search few trials */
    CYCLE_MOST = 1000,          /* and too few */
    MOST_PARTS = 4,             /* of a transfer in a turn of a cycle */
    LIST_PIECES = 1000,         /* pieces that the busiest direction carries in a list schedule */
    LIST_WORK = 400000000,      /* pieces of all directions times directions */
    SOME_TRANSFERS = 500,       /* of a split with relays; with more, turns need more hops */
    MORE_TRANSFERS = 4000,      /* likewise, where turns are wanted anyway */
    MANY_TRANSFERS = 30000,     /* of a split with relays; more leave too few turns for its hops */
    DISTRIBUTION_PIECES = 1000, /* that a host receives */
    SPLITS = 3,                 /* ways to share out what the egresses have to spare */
};
/* Makespans over the shortest possible: good, not worth more work, and worth any. */
static const double GOOD = 1.004, FAIR = 1.01, POOR = 1.03;

/*
 * Turns. The parts that are relayed are cut into `turns` equal pieces. In turn p holders
 * send piece p and relays send piece p − 1, which arrived in the turn before; what is not
 * relayed is spread over all turns + 1. So all turns have the same weights, and one
 * colouring serves them all.
 *
 * cut() says where a turn begins in a transfer's bytes. It divides before it multiplies,
 * so that the product stays small.
 */
static int64_t cut(int64_t bytes, int64_t turn, int64_t turns)
{
    if (turn <= 0) {
        return 0;
    }
    return turn >= turns ? bytes : bytes / turns * turn + bytes % turns * turn / turns;
}

/* The number of pieces that a transfer is cut into. */
static int64_t turns_of(const xm_shop_transfer_t *transfer, int64_t turns)
{
    return transfer->feeds || transfer->parent >= 0 ? turns : turns + 1;
}

/* The bytes of a transfer in one turn, rounded up, so that the colouring leaves room for
 * the longest of its pieces. */
static void turn_weights(const xm_shop_transfers_t *transfers, int64_t turns, int64_t *weight)
{
    for (int64_t t = 0; t < transfers->count; ++t) {
        int64_t parts = turns_of(&transfers->at[t], turns);

        weight[t] = (transfers->at[t].bytes + parts - 1) / parts;
    }
}

/*
 * Records all turns by one colouring. A child's piece stands one turn behind its
 * parent's, so that it has arrived; what the rounding of weights left over is cut off at
 * the end of each turn's part.
 */
static xm_status_t record_turns(xm_recorder_t *recorder, const xm_shop_transfers_t *transfers,
                                const xm_turn_piece_t *pieces, int64_t count, int64_t turns)
{
    xm_status_t status = XM_OK;

    for (int64_t turn = 0; turn <= turns; ++turn) {
        for (int64_t i = 0; status == XM_OK && i < count; ++i) {
            const xm_shop_transfer_t *transfer = &transfers->at[pieces[i].transfer];
            int64_t parts = turns_of(transfer, turns);
            int64_t at = transfer->parent >= 0 ? turn - 1 : turn;
            int64_t first = cut(transfer->bytes, at, parts) + pieces[i].first;
            int64_t end = cut(transfer->bytes, at + 1, parts);

            end = first + pieces[i].bytes < end ? first + pieces[i].bytes : end;
            if (at >= 0 && at < parts && first < end) {
                status = xm_recorder_add(recorder, pieces[i].transfer, first, end - first);
            }
        }
    }
    return status;
}

typedef struct {
    xm_shop_t shop;
    xm_shop_transfers_t transfers;
    const xm_openshop_params_t *params;
    int64_t piece_bytes;
    int64_t most_hops, usual_hops;
    int64_t bound_ns;
    bool relays;
    bool many;           /* transfers, so that it was not split */
    xm_recorder_t *best; /* NULL: none yet */
} openshop_t;

/* The load of a NIC direction. */
typedef struct {
    double relayed, direct; /* bytes of transfers that are cut into turns and of others */
    double pieces;          /* transfers */
} direction_t;

/*
 * The makespan, in bytes at the common rate, that so many turns should have: one more than carries
 * all that is relayed, and on average half a nanosecond a piece, for hops take whole ones.
 */
static double length_of_turns(const direction_t *direction, int directions, int64_t turns,
                              double bytes_per_ns)
{
    double longest = 0;

    for (int v = 0; v < directions; ++v) {
        double length = direction[v].relayed * (double)(turns + 1) / (double)turns +
                        direction[v].direct +
                        direction[v].pieces * (double)(turns + 1) * bytes_per_ns / 2;

        longest = length > longest ? length : longest;
    }
    return longest;
}

/*
 * The most turns that keep pieces at the least size or above, on average, and the number
 * of hops bounded. The average weighs transfers by their bytes, since the large ones
 * decide the makespan.
 */
static int64_t most_turns(const openshop_t *o)
{
    double sum = 0, squares = 0;
    int64_t most, usual = o->usual_hops / (o->transfers.count + 1);
    int64_t limit = o->most_hops / (2 * o->transfers.count + 1); /* colouring cuts about half */

    for (int64_t t = 0; t < o->transfers.count; ++t) {
        const xm_shop_transfer_t *transfer = &o->transfers.at[t];
        bool turned = transfer->feeds || transfer->parent >= 0;
        double bytes = (double)transfer->bytes;

        sum += turned ? bytes : 0;
        squares += turned ? bytes * bytes : 0;
    }
    most = sum > 0 ? (int64_t)(squares / sum / (double)o->piece_bytes) : 0;
    limit = limit < USUAL_TURNS ? limit : USUAL_TURNS;
    usual = usual < limit ? limit : usual;
    /* The usual number of hops may be exceeded only as far as it takes for the usual
     * number of turns. */
    most = most < usual ? most : usual;
    if (o->params->pieces_per_host > 0 && most > o->params->pieces_per_host) {
        most = o->params->pieces_per_host; /* at least one piece a turn */
    }
    most = most < MOST_TURNS ? most : MOST_TURNS;
    return most > 1 ? most : 1;
}

/*
 * Chooses as few turns as make the schedule good, or as good as it gets: more turns waste
 * less on filling and draining the relays, but each piece costs half a nanosecond of
 * rounding and a hop. The numbers tried grow by a half each time, so some fifteen trials
 * cover all.
 */
static xm_status_t choose_turns(const openshop_t *o, int64_t *turns)
{
    int directions = 2 * o->shop.hosts;
    direction_t *direction = calloc((size_t)directions, sizeof(*direction));
    double bytes_per_ns = xm_network_nic_bandwidth(o->shop.network) * 1e-9, good, best = 0;
    /* A turn may have to wait for what came last in the turn before, but seldom for all of that. */
    double latency = xm_network_nic_latency(o->shop.network) * 1e9 * bytes_per_ns / 4;
    int64_t most = most_turns(o);

    if (direction == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d hosts", o->shop.hosts);
    }
    for (int64_t t = 0; t < o->transfers.count; ++t) {
        const xm_shop_transfer_t *transfer = &o->transfers.at[t];
        int ends[2] = {transfer->sender, o->shop.hosts + transfer->receiver};
        bool turned = transfer->feeds || transfer->parent >= 0;

        for (int i = 0; i < 2; ++i) {
            direction[ends[i]].pieces += 1;
            direction[ends[i]].relayed += turned ? (double)transfer->bytes : 0;
            direction[ends[i]].direct += turned ? 0 : (double)transfer->bytes;
        }
    }
    /* The length of endlessly many turns without rounding is what no number of turns can
     * beat. */
    good = (o->transfers.count > SOME_TRANSFERS ? FAIR : GOOD) *
           length_of_turns(direction, directions, INT64_C(1) << 50, 0);
    for (int64_t tried = 1;; tried = 3 * tried / 2 + 1 < most ? 3 * tried / 2 + 1 : most) {
        double length =
            length_of_turns(direction, directions, tried, bytes_per_ns) + latency * (double)tried;

        if (tried == 1 || length < best) {
            *turns = tried;
            best = length;
        }
        if (tried >= most || length <= good) {
            break;
        }
    }
    free(direction);
    return XM_OK;
}

/* Keeps the shorter schedule of the two, the earlier one of equals. It takes the recorder
 * over. */
static void offer(openshop_t *o, xm_recorder_t *recorder)
{
    if (o->best != NULL && xm_recorder_makespan(o->best) <= xm_recorder_makespan(recorder)) {
        xm_recorder_destroy(recorder);
        return;
    }
    xm_recorder_destroy(o->best);
    o->best = recorder;
}

/* True when the best schedule so far takes at most `factor` times the bound. */
static bool within(const openshop_t *o, double factor)
{
    return o->best != NULL && (double)xm_recorder_makespan(o->best) <= factor * (double)o->bound_ns;
}

/* Records the turns of one colouring or cycle and offers the schedule. */
static xm_status_t offer_turns(openshop_t *o, const xm_turn_piece_t *pieces, int64_t count,
                               int64_t turns)
{
    xm_recorder_t *recorder = NULL;
    xm_status_t status = xm_recorder_create(&o->shop, &o->transfers, &recorder);

    if (status == XM_OK) {
        status = record_turns(recorder, &o->transfers, pieces, count, turns);
    }
    if (status == XM_OK) {
        offer(o, recorder);
    } else {
        xm_recorder_destroy(recorder);
    }
    return status;
}

/* Colours the weights of one turn and offers the schedule. The weights depend on the
 * number of turns, so each number needs a colouring of its own. */
static xm_status_t colour_turns(openshop_t *o, int64_t turns)
{
    int64_t *weight = malloc(((size_t)o->transfers.count + 1) * sizeof(*weight));
    xm_turn_piece_t *pieces = NULL;
    int64_t count = 0;
    xm_status_t status;

    if (weight == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %lld transfers",
                            (long long)o->transfers.count);
    }
    turn_weights(&o->transfers, turns, weight);
    status = xm_shop_colour(&o->shop, &o->transfers, weight, &pieces, &count);
    if (status == XM_OK) {
        status = offer_turns(o, pieces, count, turns);
    }
    free(pieces);
    free(weight);
    return status;
}

/*
 * Builds turns; without relays there is one turn, whose colouring is optimal. Fewer turns
 * than chosen are tried afterwards because the colouring cuts more pieces than
 * choose_turns() could count.
 */
static xm_status_t build_turns(openshop_t *o)
{
    int64_t turns = 0, even = o->usual_hops / (o->transfers.count + 1);
    xm_status_t status = o->relays ? choose_turns(o, &turns) : XM_OK;

    /* More turns than the network needs, as long as there are few hops. */
    even = even < o->params->turns ? even : o->params->turns;
    turns = turns < even ? even : turns;
    if (status == XM_OK) {
        status = colour_turns(o, turns);
    }
    for (int tries = 0; tries < 2 && status == XM_OK && turns > 1 && !within(o, FAIR); ++tries) {
        turns = (turns + 1) / 2;
        status = colour_turns(o, turns);
    }
    return status;
}

/* Builds a list schedule. Choosing a piece looks at all directions, so the number of
 * pieces falls with the square of the hosts to keep the work bounded. */
static xm_status_t build_list(openshop_t *o)
{
    int64_t directions = 2 * o->shop.hosts, pieces = LIST_WORK / (directions * directions);
    xm_recorder_t *recorder = NULL;
    xm_status_t status = xm_recorder_create(&o->shop, &o->transfers, &recorder);

    pieces = pieces < 1 ? 1 : pieces;
    pieces = pieces < LIST_PIECES ? pieces : LIST_PIECES;
    if (o->params->pieces_per_host > 0) {
        pieces = o->params->pieces_per_host;
    }
    if (status == XM_OK) {
        status = xm_shop_list(&o->shop, &o->transfers, o->bound_ns / pieces + 1, o->piece_bytes,
                              recorder);
    }
    if (status == XM_OK) {
        offer(o, recorder);
    } else {
        xm_recorder_destroy(recorder);
    }
    return status;
}

/* Bytes of the longest transfer. */
static int64_t longest_transfer(const openshop_t *o)
{
    int64_t most = 1;

    for (int64_t t = 0; t < o->transfers.count; ++t) {
        most = o->transfers.at[t].bytes > most ? o->transfers.at[t].bytes : most;
    }
    return most;
}

/* How often the parts of a transfer come in a turn, where those of the longest come so often: parts
 * are about equally long, so that each of them leaves room for one of another transfer. */
static int64_t parts_of(const xm_shop_transfer_t *transfer, int parts, int64_t longest)
{
    int64_t own = (int64_t)((double)parts * (double)transfer->bytes / (double)longest + 0.5);

    return own > 1 ? own : 1;
}

/* The parts of a turn in an order, whose entries name transfers; `next` has an entry for each
 * transfer. */
static void cut_parts(const openshop_t *o, const int64_t *order, int64_t entries, int parts,
                      int64_t turns, int64_t *next, xm_turn_piece_t *pieces)
{
    int64_t longest = longest_transfer(o);

    memset(next, 0, (size_t)o->transfers.count * sizeof(*next));
    for (int64_t i = 0; i < entries; ++i) {
        const xm_shop_transfer_t *transfer = &o->transfers.at[order[i]];
        int64_t in_turns = turns_of(transfer, turns), own = parts_of(transfer, parts, longest);
        int64_t bytes = (transfer->bytes + in_turns - 1) / in_turns;
        int64_t first = bytes * next[order[i]] / own, end = bytes * (next[order[i]] + 1) / own;

        pieces[i] = (xm_turn_piece_t){order[i], first, end - first, 0};
        ++next[order[i]];
    }
}

/* Builds schedules that repeat a cyclic order, with so many turns that parts of transfers are
 * messages. More turns help where demands end in the middle of pieces, for what is left of a piece
 * is a hop of its own and upsets the order. */
static xm_status_t build_cycle(openshop_t *o, int parts)
{
    int64_t longest = longest_transfer(o), entries = 0;
    int64_t least = longest / parts / o->shop.most_bytes + 1;
    size_t count = (size_t)o->transfers.count * (size_t)parts + 1;
    int64_t *order = malloc(count * sizeof(*order)), *next = malloc(count * sizeof(*next));
    xm_turn_piece_t *pieces = malloc(count * sizeof(*pieces));
    xm_status_t status;

    if (order == NULL || next == NULL || pieces == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "no memory for %zu pieces", count);
        goto free_pieces;
    }
    for (int64_t t = 0; t < o->transfers.count; ++t) {
        for (int64_t own = parts_of(&o->transfers.at[t], parts, longest); own > 0; --own) {
            order[entries++] = t;
        }
    }
    least = least > CYCLE_TURNS ? least : CYCLE_TURNS;
    status = xm_shop_cycle(&o->shop, &o->transfers, o->params->seed, CYCLE_STEPS * parts, entries,
                           order);
    for (int64_t turns = least; status == XM_OK && turns * entries <= o->usual_hops &&
                                turns <= 4 * least && !within(o, FAIR);
         turns *= 4) {
        cut_parts(o, order, entries, parts, turns, next, pieces);
        status = offer_turns(o, pieces, entries, turns);
    }

free_pieces:
    free(pieces);
    free(next);
    free(order);
    return status;
}

/* Counts the transfers that relays would send. It is asked before the split is made,
 * because a split of too many transfers is not worth its memory. */
static int64_t relayed(const openshop_t *o, const int64_t *sent)
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
static xm_status_t split(openshop_t *o, const int64_t *ns, bool relays, bool *fits)
{
    size_t count = (size_t)o->shop.entries + 1;
    int64_t *sent = malloc(count * sizeof(*sent));
    xm_status_t status;

    if (sent == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %lld groups on %d hosts",
                            (long long)o->shop.groups, o->shop.hosts);
    }
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
static xm_status_t build_distribution(openshop_t *o)
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
        return xm_error_set(XM_ERR_UNSUPPORTED,
                            "open shop schedules have about %lld hops; %lld groups of demands "
                            "on %d hosts need more than half of them for one piece each",
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
    if (status == XM_OK) {
        status = xm_recorder_create(&o->shop, &transfers, &recorder);
    }
    /* The distribution's order is already a schedule; every transfer is recorded whole. */
    for (int64_t t = 0; status == XM_OK && t < transfers.count; ++t) {
        status = xm_recorder_add(recorder, t, 0, transfers.at[t].bytes);
    }
    if (status == XM_OK) {
        offer(o, recorder);
    } else {
        xm_recorder_destroy(recorder);
    }
    free(transfers.at);
    return status;
}

/*
 * For equal rates. It does without relays when that costs nothing or next to nothing (0.2
 * %), for what is not relayed need not wait for anything. With relays the split always
 * fits, as the bound was computed with them.
 */
static xm_status_t build_equal(openshop_t *o, int64_t *ns)
{
    int64_t some = o->params->turns > 0 ? MORE_TRANSFERS : SOME_TRANSFERS;
    bool fits = false;
    xm_status_t status;

    fill(ns, o->shop.hosts, o->bound_ns);
    status = split(o, ns, false, &fits);
    if (status == XM_OK && !fits) {
        fill(ns, o->shop.hosts, o->bound_ns + o->bound_ns / 500);
        status = split(o, ns, false, &fits);
    }
    if (status == XM_OK && !fits) {
        fill(ns, o->shop.hosts, o->bound_ns);
        status = split(o, ns, true, &fits);
    }
    /* A distribution is tried first where turns would need more hops, and after them
     * where they fell short. */
    if (status == XM_OK && o->relays && (o->many || o->transfers.count > some)) {
        status = build_distribution(o);
    }
    if (status == XM_OK && !o->many && !within(o, FAIR)) {
        status = build_turns(o);
        if (status == XM_OK && o->relays && o->transfers.count <= SOME_TRANSFERS &&
            !within(o, FAIR)) {
            status = build_distribution(o);
        }
    }
    return status;
}

/*
 * Splits for NICs of several rates and builds from the split. Where egresses have time to
 * spare, sharing the load out evenly keeps them from holding others up, and using more of
 * it relays less; `share` of the spare time, in sixths, is used. Cycles are searched for
 * only where the list rule leaves a gap.
 */
static xm_status_t build_split(openshop_t *o, const int64_t *level, bool relays, int share,
                               int64_t *ns)
{
    bool fits;
    xm_status_t status;

    for (int h = 0; h < o->shop.hosts; ++h) {
        int64_t spare = o->bound_ns > level[h] ? o->bound_ns - level[h] : 0;

        ns[h] = level[h] + spare / 6 * share;
    }
    status = split(o, ns, relays, &fits);
    if (status == XM_OK) {
        status = o->many ? build_distribution(o) : build_list(o);
    }
    if (status == XM_OK && !o->many && o->transfers.count <= CYCLE_MOST &&
        !within(o, o->transfers.count <= CYCLE_TRANSFERS ? FAIR : POOR)) {
        status = build_cycle(o, 1);
    }
    for (int parts = 2; status == XM_OK && parts <= MOST_PARTS && !o->many &&
                        o->transfers.count <= CYCLE_TRANSFERS && !within(o, POOR);
         ++parts) {
        status = build_cycle(o, parts);
    }
    return status;
}

/* For unequal rates: first without relays, unless these alone can come near the bound,
 * then with them, each with none, a third and two thirds of the spare time. */
static xm_status_t build_unequal(openshop_t *o, int64_t *ns)
{
    int64_t *level = malloc((size_t)o->shop.hosts * sizeof(*level));
    xm_status_t status = XM_OK;

    if (level == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d hosts", o->shop.hosts);
    }
    for (int relays = 0; status == XM_OK && relays < 2 && !within(o, GOOD); ++relays) {
        int64_t longest = 0;

        status = xm_shop_balance(&o->shop, o->bound_ns / 2, relays == 1, level);
        for (int h = 0; status == XM_OK && h < o->shop.hosts; ++h) {
            longest = level[h] > longest ? level[h] : longest;
        }
        if (relays == 0 && longest > o->bound_ns + o->bound_ns / 50) {
            continue; /* only relays can come near the bound */
        }
        for (int i = 0; status == XM_OK && i < SPLITS && !o->many && !within(o, GOOD); ++i) {
            status = build_split(o, level, relays == 1, 2 * i, ns);
        }
    }
    free(level);
    return status;
}

/* The bound comes first: it is the time that splits aim at and the measure of when to
 * stop. */
static xm_status_t build(openshop_t *o)
{
    bool uplinks = xm_network_uplink_bandwidth(o->shop.network) > 0;
    int64_t *ns = malloc((size_t)o->shop.hosts * sizeof(*ns));
    xm_bound_t bound = {0};
    xm_status_t status;

    if (ns == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d hosts", o->shop.hosts);
    }
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
        (o->best == NULL ||
         (uplinks && !o->many && o->transfers.count <= CYCLE_MOST && !within(o, POOR)))) {
        status = build_unequal(o, ns);
    }
    free(ns);
    return status;
}

/* The caller owns the hops. The problem must stay until the call returns, since the shop
 * points into it. */
xm_status_t xm_schedule_openshop(const xm_problem_t *problem, const xm_openshop_params_t *params,
                                 xm_hop_t **hops, int64_t *count, int64_t *makespan_ns)
{
    openshop_t o = {.params = params};
    xm_status_t status = xm_shop_create(problem, &o.shop);

    if (status < 0) {
        return status;
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
        }
    }
    xm_recorder_destroy(o.best);
    free(o.transfers.at);
    xm_shop_free(&o.shop);
    return status;
}
