/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedules of openshop that repeat themselves in turns: by one colouring for equal rates, by a
 * cyclic order for unequal ones.
 */
#include <stdlib.h>
#include <string.h>

#include "resharding/solve/openshop.h"

enum {
    USUAL_TURNS = 64,    /* unless there are fewer hops than usual */
    MOST_TURNS = 512,    /* of a colouring */
    SHARES = 16,         /* of a turn, the smallest that the last one is cut into */
    CYCLE_TURNS = 300,   /* of an order found by xm_shop_cycle() */
    CYCLE_STEPS = 400000 /* of the search for one */
};

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

/* A schedule of turns that repeat the same pieces. */
typedef struct {
    const xm_turn_piece_t *pieces;
    int64_t count, turns;
    bool tail; /* the last turn is halved again and again */
} repeated_t;

/*
 * Records shares [from, to) of a turn, of which each has all its pieces, only shorter. A child's
 * piece stands one turn behind its parent's, so that it has arrived; what the rounding of weights
 * left over is cut off at the end of each turn's part.
 */
static xm_status_t record_shares(xm_recorder_t *recorder, const xm_shop_transfers_t *transfers,
                                 const repeated_t *r, int64_t turn, int64_t from, int64_t to)
{
    for (int64_t i = 0; i < r->count; ++i) {
        const xm_turn_piece_t *piece = &r->pieces[i];
        const xm_shop_transfer_t *transfer = &transfers->at[piece->transfer];
        int64_t parts = turns_of(transfer, r->turns), at = turn - (transfer->parent >= 0);
        int64_t before = (transfer->bytes + parts - 1) / parts * from;
        int64_t first = cut(transfer->bytes, at, parts), end = cut(transfer->bytes, at + 1, parts);
        int64_t last = first + (before + (piece->first + piece->bytes) * (to - from)) / SHARES;

        first += (before + piece->first * (to - from)) / SHARES;
        end = last < end ? last : end;
        if (at >= 0 && at < parts && first < end) {
            XM_TRY(xm_recorder_add(recorder, piece->transfer, first, end - first));
        }
    }
    return XM_OK;
}

/* Records all turns by one colouring. With a tail, what comes last is short, as others may have to
 * wait for it. */
static xm_status_t record_turns(xm_recorder_t *recorder, const xm_shop_transfers_t *transfers,
                                const repeated_t *r)
{
    for (int64_t turn = 0; turn < r->turns; ++turn) {
        XM_TRY(record_shares(recorder, transfers, r, turn, 0, SHARES));
    }
    for (int64_t from = 0, to; from < SHARES; from = to) {
        to = r->tail ? (from + SHARES + 1) / 2 : SHARES;
        XM_TRY(record_shares(recorder, transfers, r, r->turns, from, to));
    }
    return XM_OK;
}

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
static int64_t most_turns(const xm_openshop_t *o)
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
static xm_status_t choose_turns(const xm_openshop_t *o, int64_t *turns)
{
    int directions = 2 * o->shop.hosts;
    direction_t *direction = calloc((size_t)directions, sizeof(*direction));
    double bytes_per_ns = xm_network_nic_bandwidth(o->shop.network) * 1e-9, good, best = 0;
    /* A turn may have to wait for what came last in the turn before, but seldom for all of that. */
    double latency = xm_network_nic_latency(o->shop.network) * 1e9 * bytes_per_ns / 4;
    int64_t most = most_turns(o);

    XM_NEED_MEMORY(direction, "%d hosts", o->shop.hosts);
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
    good = (o->transfers.count > XM_SHOP_SOME ? XM_SHOP_FAIR : XM_SHOP_GOOD) *
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

/* Records the turns of one colouring or cycle and offers the schedule. */
static xm_status_t offer_turns(xm_openshop_t *o, const repeated_t *repeated)
{
    xm_recorder_t *recorder = NULL;
    xm_status_t status = xm_recorder_create(&o->shop, &o->transfers, &recorder);

    XM_THEN(status, record_turns(recorder, &o->transfers, repeated));
    if (status == XM_OK) {
        xm_openshop_offer(o, recorder);
    } else {
        xm_recorder_destroy(recorder);
    }
    return status;
}

/* Colours the weights of one turn and offers the schedule. The weights depend on the
 * number of turns, so each number needs a colouring of its own. */
static xm_status_t colour_turns(xm_openshop_t *o, int64_t turns)
{
    int64_t *weight = malloc(((size_t)o->transfers.count + 1) * sizeof(*weight));
    xm_turn_piece_t *pieces = NULL;
    int64_t count = 0;
    xm_status_t status;

    XM_NEED_MEMORY(weight, "%lld transfers", (long long)o->transfers.count);
    turn_weights(&o->transfers, turns, weight);
    status = xm_shop_colour(&o->shop, &o->transfers, weight, &pieces, &count);
    XM_THEN(status, offer_turns(o, &(repeated_t){pieces, count, turns, o->params->turns > 0}));
    free(pieces);
    free(weight);
    return status;
}

/*
 * Builds turns; without relays there is one turn, whose colouring is optimal. Fewer turns
 * than chosen are tried afterwards because the colouring cuts more pieces than
 * choose_turns() could count.
 */
xm_status_t xm_openshop_turns(xm_openshop_t *o)
{
    int64_t turns = 0, even = o->usual_hops / (o->transfers.count + 1);
    xm_status_t status = o->relays ? choose_turns(o, &turns) : XM_OK;

    /* More turns than the network needs, as long as there are few hops. */
    even = even < o->params->turns ? even : o->params->turns;
    turns = turns < even ? even : turns;
    XM_THEN(status, colour_turns(o, turns));
    for (int tries = 0;
         tries < 2 && status == XM_OK && turns > 1 && !xm_openshop_within(o, XM_SHOP_FAIR);
         ++tries) {
        turns = (turns + 1) / 2;
        status = colour_turns(o, turns);
    }
    return status;
}

/* Bytes of the longest transfer. */
static int64_t longest_transfer(const xm_openshop_t *o)
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
static void cut_parts(const xm_openshop_t *o, const int64_t *order, int64_t entries, int parts,
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
xm_status_t xm_openshop_cycle(xm_openshop_t *o, int parts)
{
    int64_t longest = longest_transfer(o), entries = 0;
    int64_t least = longest / parts / o->shop.most_bytes + 1;
    size_t count = (size_t)o->transfers.count * (size_t)parts + 1;
    int64_t *order = malloc(count * sizeof(*order)), *next = malloc(count * sizeof(*next));
    xm_turn_piece_t *pieces = malloc(count * sizeof(*pieces));
    xm_status_t status;

    if (order == NULL || next == NULL || pieces == NULL) {
        status = XM_NO_MEMORY("%zu pieces", count);
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
                                turns <= 4 * least && !xm_openshop_within(o, XM_SHOP_FAIR);
         turns *= 4) {
        cut_parts(o, order, entries, parts, turns, next, pieces);
        status = offer_turns(o, &(repeated_t){pieces, entries, turns, false});
    }

free_pieces:
    free(pieces);
    free(next);
    free(order);
    return status;
}
