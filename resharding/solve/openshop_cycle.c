/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Orders transfers for schedules that repeat, where rates differ and matchings do not
 * apply. When every transfer sends a small share of itself in a fixed order, again and
 * again, the time of a turn tends to the largest ratio of a circuit of that order. For
 * forests any order reaches the busiest direction's time; otherwise a local search moves
 * single entries and keeps what does not make the turn longer. A turn's time is measured
 * by running a few turns, which costs entries, not circuits.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "resharding/solve/openshop.h"

enum { WARM_UP = 6, MEASURED = 6 }; /* turns of a trial */

/* What a part of a transfer's share of a turn occupies; any unit. */
typedef struct {
    int egress, ingress; /* nodes: hosts, and hosts + host */
    int parts;
    double egress_time, ingress_time;
} share_t;

typedef struct {
    int64_t count; /* entries of the order */
    int nodes;
    share_t *share; /* by transfer: of one of its parts */
    double *free_at, *load;
    double busiest;
    xm_random_t random;
} cycle_t;

/* The random numbers come from the seed alone, so the same input gives the same order. */
static int64_t random_below(cycle_t *c, int64_t limit)
{
    return (int64_t)(xm_random_below(&c->random, (uint64_t)limit));
}

/* Computes what each part of a transfer occupies. Only ratios matter, so times are in
 * seconds of a whole transfer and are never rounded. */
static xm_status_t prepare(cycle_t *c, const xm_shop_t *shop, const xm_shop_transfers_t *transfers,
                           const int64_t *order)
{
    c->share = calloc((size_t)transfers->count + 1, sizeof(*c->share));
    c->free_at = calloc((size_t)c->nodes, sizeof(double));
    c->load = calloc((size_t)c->nodes, sizeof(double));
    if (c->share == NULL || c->free_at == NULL || c->load == NULL) {
        return XM_NO_MEMORY("ordering %lld transfers", (long long)transfers->count);
    }
    for (int64_t i = 0; i < c->count; ++i) {
        ++c->share[order[i]].parts;
    }
    for (int64_t t = 0; t < transfers->count; ++t) {
        const xm_shop_transfer_t *of = &transfers->at[t];
        double bytes = (double)of->bytes, parts = c->share[t].parts;
        double egress = bytes / xm_network_egress(shop->network, of->sender);
        double ingress = bytes / xm_network_ingress(shop->network, of->receiver);

        c->share[t] = (share_t){of->sender, shop->hosts + of->receiver, c->share[t].parts,
                                egress / parts, ingress / parts};
        c->load[c->share[t].egress] += egress;
        c->load[c->share[t].ingress] += ingress;
    }
    for (int v = 0; v < c->nodes; ++v) {
        c->busiest = c->load[v] > c->busiest ? c->load[v] : c->busiest;
    }
    return XM_OK;
}

/* A share starts when both of its directions are free. */
static double start_of(const cycle_t *c, const share_t *share)
{
    double egress = c->free_at[share->egress], ingress = c->free_at[share->ingress];

    return egress > ingress ? egress : ingress;
}

/* Occupies both directions from the same start, each for its own time: the faster one is
 * free earlier. */
static void occupy(cycle_t *c, const share_t *share)
{
    double start = start_of(c, share);

    c->free_at[share->egress] = start + share->egress_time;
    c->free_at[share->ingress] = start + share->ingress_time;
}

/*
 * A first order: earliest start first, and of those the one whose busier direction has
 * the most left to do. It costs the square of the entries, which is why openshop asks for
 * cycles only of few transfers.
 */
static void order_by_start(cycle_t *c, int64_t *order)
{
    for (int64_t i = 0; i < c->count; ++i) {
        int64_t best = i, chosen;
        double best_start = 0, best_load = 0;

        for (int64_t j = i; j < c->count; ++j) {
            const share_t *share = &c->share[order[j]];
            double start = start_of(c, share);
            double load = c->load[share->egress] > c->load[share->ingress]
                              ? c->load[share->egress]
                              : c->load[share->ingress];

            /* Exact comparisons of doubles are wanted here: ties are real, as many shares
             * start at 0. */
            if (j == i || start < best_start || (start <= best_start && load > best_load)) {
                best = j;
                best_start = start;
                best_load = load;
            }
        }
        chosen = order[best];
        order[best] = order[i];
        order[i] = chosen;
        occupy(c, &c->share[chosen]);
        c->load[c->share[chosen].egress] -= c->share[chosen].egress_time;
        c->load[c->share[chosen].ingress] -= c->share[chosen].ingress_time;
    }
}

static double last_free(const cycle_t *c)
{
    double last = 0;

    for (int v = 0; v < c->nodes; ++v) {
        last = c->free_at[v] > last ? c->free_at[v] : last;
    }
    return last;
}

/* The time that a turn takes once the turns follow each other: the first turns are left
 * out, because they start with all directions free, and the mean of the next ones counts. */
static double turn_time(cycle_t *c, const int64_t *order)
{
    double from = 0;

    memset(c->free_at, 0, (size_t)c->nodes * sizeof(double));
    for (int turn = 0; turn < WARM_UP + MEASURED; ++turn) {
        if (turn == WARM_UP) {
            from = last_free(c);
        }
        for (int64_t i = 0; i < c->count; ++i) {
            occupy(c, &c->share[order[i]]);
        }
    }
    return (last_free(c) - from) / MEASURED;
}

/* Moves one entry, shifting those between. The same call with the places exchanged takes
 * it back. */
static void move(int64_t *order, int64_t from, int64_t to)
{
    int64_t moved = order[from];

    if (from < to) {
        memmove(&order[from], &order[from + 1], (size_t)(to - from) * sizeof(*order));
    } else {
        memmove(&order[to + 1], &order[to], (size_t)(from - to) * sizeof(*order));
    }
    order[to] = moved;
}

/* Tries single moves until the turn is within 0.1 % of its busiest direction or the steps
 * are used up. Moves that change nothing are kept, so the search can drift over plateaus. */
xm_status_t xm_shop_cycle(const xm_shop_t *shop, const xm_shop_transfers_t *transfers,
                          uint64_t seed, int64_t steps, int64_t entries, int64_t *order)
{
    cycle_t c = {.count = entries, .nodes = 2 * shop->hosts, .random = {seed}};
    xm_status_t status = prepare(&c, shop, transfers, order);

    if (status == XM_OK) {
        double best;

        order_by_start(&c, order);
        best = turn_time(&c, order);
        for (; steps > 0 && c.count > 1 && best > 1.001 * c.busiest;
             steps -= (WARM_UP + MEASURED) * c.count) {
            int64_t from = random_below(&c, c.count), to = random_below(&c, c.count);
            double time;

            move(order, from, to);
            time = turn_time(&c, order);
            if (time <= best) {
                best = time;
            } else {
                move(order, to, from);
            }
        }
    }
    free(c.load);
    free(c.free_at);
    free(c.share);
    return status;
}
