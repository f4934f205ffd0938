/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The all-to-all distribution of openshop, for problems in which turns would need too
 * many hops: pieces spread from receiver to receiver in rounds, as files do among peers
 * that share them. It is a heuristic, measured and not proved: P pieces take about P +
 * log₂ n rounds for n receivers. Memory is hosts times pieces, and a round costs up to
 * hosts² looks at sets of pieces.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "resharding/solve/openshop.h"

/*
 * Every group is cut into pieces. In a round each host sends at most one piece and
 * receives at most one; hosts with pieces that nobody was sent yet come first, then every
 * receiver takes, from a host that is not sending yet, the piece with the fewest copies.
 * So the copies of a piece double from round to round, and all have it after a number of
 * rounds that grows with the logarithm of the receivers.
 */
typedef struct {
    int64_t group, first, bytes;
    int copies; /* with receivers */
} piece_t;

typedef struct {
    const xm_shop_t *shop;
    int hosts;
    int64_t pieces;
    size_t words; /* of a set of pieces */
    piece_t *piece;
    uint64_t *has, *lacks;    /* by host: sets of pieces */
    uint64_t *unsent;         /* set: no copies yet */
    int64_t *brought;         /* [host * pieces + piece]: transfer that brought it; −1: held */
    int *busy_to, *busy_from; /* by host: the other end in this round; −1: none */
    int *order;               /* of hosts, shuffled */
    int64_t *sent;            /* pieces of this round */
    int64_t left;             /* copies still to be made */
    xm_random_t random;
    xm_arena_t arena;
    xm_shop_transfers_t *transfers;
} distribution_t;

static uint64_t *set_of(const distribution_t *w, uint64_t *sets, int host)
{
    return &sets[(size_t)host * w->words];
}

static void insert(uint64_t *set, int64_t i)
{
    set[i / 64] |= UINT64_C(1) << (i % 64);
}

static void remove_from(uint64_t *set, int64_t i)
{
    set[i / 64] &= ~(UINT64_C(1) << (i % 64));
}

/* The number of copies is known beforehand, so the transfers are allocated once. */
static xm_status_t allocate(distribution_t *w)
{
    size_t hosts = (size_t)w->hosts, pieces = (size_t)w->pieces;

    w->words = (pieces + 63) / 64;
    w->piece = xm_arena_take(&w->arena, pieces * sizeof(*w->piece));
    w->has = xm_arena_get(&w->arena, hosts * w->words, sizeof(uint64_t));
    w->lacks = xm_arena_get(&w->arena, hosts * w->words, sizeof(uint64_t));
    w->unsent = xm_arena_get(&w->arena, w->words, sizeof(uint64_t));
    w->brought = xm_arena_take(&w->arena, hosts * pieces * sizeof(int64_t));
    w->busy_to = xm_arena_take(&w->arena, hosts * sizeof(int));
    w->busy_from = xm_arena_take(&w->arena, hosts * sizeof(int));
    w->order = xm_arena_take(&w->arena, hosts * sizeof(int));
    w->sent = xm_arena_take(&w->arena, hosts * sizeof(int64_t));
    w->transfers->at = malloc((size_t)w->left * sizeof(*w->transfers->at));
    w->transfers->capacity = (size_t)w->left;
    w->transfers->count = 0;
    XM_NEED_MEMORY(!w->arena.failed && w->transfers->at != NULL, "%lld pieces on %d hosts",
                   (long long)w->pieces, w->hosts);
    return XM_OK;
}

static int64_t pieces_of(const xm_shop_group_t *group, int64_t piece_bytes)
{
    return (group->bytes + piece_bytes - 1) / piece_bytes;
}

/*
 * Cuts the groups into pieces of nearly equal length: a short last piece would take a
 * round of its own like any other. At first only the holders have pieces, and no copy
 * exists.
 */
static void cut_groups(distribution_t *w, int64_t piece_bytes)
{
    int64_t next = 0;

    memset(w->brought, -1, (size_t)w->hosts * (size_t)w->pieces * sizeof(*w->brought));
    for (int64_t g = 0; g < w->shop->groups; ++g) {
        const xm_shop_group_t *group = &w->shop->group[g];
        int64_t count = pieces_of(group, piece_bytes), rest = group->bytes % count, at = 0;

        for (int64_t i = 0; i < count; ++i, ++next) {
            int64_t bytes = group->bytes / count + (i < rest);

            w->piece[next] = (piece_t){g, at, bytes, 0};
            at += bytes;
            insert(w->unsent, next);
            for (int h = 0; h < group->hosts->holder_count; ++h) {
                insert(set_of(w, w->has, group->hosts->holders[h]), next);
            }
            for (int h = 0; h < group->hosts->receiver_count; ++h) {
                insert(set_of(w, w->lacks, group->hosts->receivers[h]), next);
            }
        }
    }
    for (int h = 0; h < w->hosts; ++h) {
        w->order[h] = h;
    }
}

/* Fisher and Yates. A new order in every round keeps the same hosts from always choosing
 * first. */
static void shuffle(distribution_t *w)
{
    for (int i = w->hosts - 1; i > 0; --i) {
        int j = (int)(xm_random_below(&w->random, (uint64_t)i + 1)), swap = w->order[i];

        w->order[i] = w->order[j];
        w->order[j] = swap;
    }
}

/*
 * The piece with the fewest copies that a sender has and a receiver lacks; −1 when there
 * is none. Rare pieces first keeps every piece available from many hosts. Ties go to the
 * lowest piece.
 */
static int64_t rarest(distribution_t *w, int sender, int receiver, bool unsent)
{
    const uint64_t *has = set_of(w, w->has, sender), *lacks = set_of(w, w->lacks, receiver);
    int64_t best = -1;

    for (size_t i = 0; i < w->words; ++i) {
        uint64_t set = has[i] & lacks[i];

        set = unsent ? set & w->unsent[i] : set;
        for (; set != 0; set &= set - 1) {
            int64_t piece = (int64_t)i * 64 + __builtin_ctzll(set);

            if (best < 0 || w->piece[piece].copies < w->piece[best].copies) {
                best = piece;
            }
        }
    }
    return best;
}

/* True when a sender has anything for a receiver; it does not search for the best piece,
 * which is chosen only once the pairs of the round are fixed. */
static bool useful(distribution_t *w, int sender, int receiver)
{
    const uint64_t *has = set_of(w, w->has, sender), *lacks = set_of(w, w->lacks, receiver);

    for (size_t i = 0; i < w->words; ++i) {
        if ((has[i] & lacks[i]) != 0) {
            return true;
        }
    }
    return false;
}

/* Reserves both sides for this round. */
static void pair(distribution_t *w, int sender, int receiver)
{
    w->busy_to[sender] = receiver;
    w->busy_from[receiver] = sender;
}

/*
 * Finds a free sender for a receiver; or, with `exchange`, a busy one whose own receiver
 * can be served by a free sender instead. Exchanging once recovers most of what a greedy
 * choice loses, and the recursion is one level deep.
 */
static void find_sender(distribution_t *w, int receiver, bool exchange)
{
    for (int i = 0; i < w->hosts; ++i) {
        int sender = w->order[i], other = w->busy_to[sender];

        if ((other >= 0) != exchange || !useful(w, sender, receiver)) {
            continue;
        }
        if (exchange) {
            w->busy_from[other] = -1;
            find_sender(w, other, false);
            if (w->busy_from[other] < 0) {
                w->busy_from[other] = sender;
                continue;
            }
        }
        pair(w, sender, receiver);
        return;
    }
}

/* Gives every host with unsent pieces a receiver for one. The first copies set the pace
 * of the whole distribution, as only their holders can make them. */
static void pair_holders(distribution_t *w)
{
    for (int h = 0; h < w->hosts; ++h) {
        const uint64_t *has = set_of(w, w->has, h);
        bool obliged = false;

        for (size_t i = 0; i < w->words && !obliged; ++i) {
            obliged = (has[i] & w->unsent[i]) != 0;
        }
        for (int i = 0; i < w->hosts && obliged; ++i) {
            int receiver = w->order[i];

            if (w->busy_from[receiver] < 0 && rarest(w, h, receiver, true) >= 0) {
                pair(w, h, receiver);
                break;
            }
        }
    }
}

/* Sends what the pairs of the round allow. Pieces arrive at its end, so a host never
 * passes on in a round what it gets in the same round. */
static void send_round(distribution_t *w)
{
    int64_t from = w->transfers->count;

    for (int i = 0; i < w->hosts; ++i) {
        int receiver = w->order[i], sender = w->busy_from[receiver];
        int64_t piece, parent;

        if (sender < 0) {
            continue;
        }
        piece = rarest(w, sender, receiver, true);
        /* Another holder may have sent the last unsent piece in this round already; any
         * other piece is as good then. */
        piece = piece < 0 ? rarest(w, sender, receiver, false) : piece;
        parent = w->brought[sender * w->pieces + piece];
        if (parent >= 0) {
            w->transfers->at[parent].feeds = true;
        }
        w->sent[w->transfers->count - from] = piece;
        w->brought[receiver * w->pieces + piece] = w->transfers->count;
        w->transfers->at[w->transfers->count++] = (xm_shop_transfer_t){w->piece[piece].group,
                                                                       w->piece[piece].first,
                                                                       w->piece[piece].bytes,
                                                                       parent,
                                                                       sender,
                                                                       receiver,
                                                                       false};
        remove_from(set_of(w, w->lacks, receiver), piece);
        remove_from(w->unsent, piece);
        ++w->piece[piece].copies;
        --w->left;
    }
    for (int64_t i = from; i < w->transfers->count; ++i) {
        insert(set_of(w, w->has, w->transfers->at[i].receiver), w->sent[i - from]);
    }
}

/* Holders with unsent pieces choose first, then every other receiver, and in the end
 * those that found no sender may exchange. */
static void run_round(distribution_t *w)
{
    memset(w->busy_to, -1, (size_t)w->hosts * sizeof(int));
    memset(w->busy_from, -1, (size_t)w->hosts * sizeof(int));
    shuffle(w);
    pair_holders(w);
    for (int exchange = 0; exchange < 2; ++exchange) {
        for (int i = 0; i < w->hosts; ++i) {
            if (w->busy_from[w->order[i]] < 0) {
                find_sender(w, w->order[i], exchange == 1);
            }
        }
    }
    send_round(w);
}

/* Every round makes at least one copy, since some host has what another lacks and all are
 * free at its start; so the rounds end. */
xm_status_t xm_shop_distribution(const xm_shop_t *shop, int64_t piece_bytes, uint64_t seed,
                                 xm_shop_transfers_t *transfers)
{
    distribution_t w = {
        .shop = shop, .hosts = shop->hosts, .random = {seed}, .transfers = transfers};
    xm_status_t status;

    for (int64_t g = 0; g < shop->groups; ++g) {
        int64_t count = pieces_of(&shop->group[g], piece_bytes);

        w.pieces += count;
        w.left += count * shop->group[g].hosts->receiver_count;
    }
    status = allocate(&w);
    if (status == XM_OK) {
        cut_groups(&w, piece_bytes);
        while (w.left > 0) {
            run_round(&w);
        }
    }
    xm_arena_clear(&w.arena);
    return status;
}
