/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list rule of openshop for NICs of several rates. It records piece by piece: of the
 * directions that are free next, the one that would be done last chooses, from the
 * partners it could work with, the one that it delays least. A piece lasts the same on
 * its slower side whatever the rates, so a slow NIC does not block a fast one for long.
 * Each piece costs a pass over the chosen direction's transfers; openshop.c limits the
 * number of pieces.
 */
#include <stdlib.h>
#include <string.h>

#include "resharding/solve/openshop.h"

/* Nodes are the hosts' egresses, from 0, and their ingresses, from `hosts` on. */
typedef struct {
    const xm_shop_t *shop;
    const xm_shop_transfers_t *transfers;
    xm_recorder_t *recorder;
    int64_t piece_ns, piece_bytes, window_ns;
    int64_t *done;   /* by transfer: bytes recorded */
    int64_t *first;  /* by node: where its transfers start in `list`; nodes + 1 entries */
    int64_t *length; /* by node: how many of them are not done */
    int64_t *list;
    double *rest;  /* by node: time that its remaining transfers take */
    bool *blocked; /* by node: nothing it could do now has arrived */
    xm_arena_t arena;
} list_t;

/* Returns when a node is free, by what is recorded so far. */
static int64_t free_at(const list_t *l, int node)
{
    return node < l->shop->hosts ? xm_recorder_egress_free(l->recorder, node)
                                 : xm_recorder_ingress_free(l->recorder, node - l->shop->hosts);
}

/* The time that a byte takes at a node. */
static double ns_per_byte(const list_t *l, int node)
{
    return 1e9 / (node < l->shop->hosts
                      ? xm_network_egress(l->shop->network, node)
                      : xm_network_ingress(l->shop->network, node - l->shop->hosts));
}

/* The node at one end of a transfer. */
static int node_of(const list_t *l, int64_t transfer, bool receiving)
{
    const xm_shop_transfer_t *of = &l->transfers->at[transfer];

    return receiving ? l->shop->hosts + of->receiver : of->sender;
}

/* Lists the transfers by node, with a counting pass first, and adds up how long each node
 * has to work. */
static xm_status_t fill_list(list_t *l)
{
    size_t nodes = 2 * (size_t)l->shop->hosts, count = (size_t)l->transfers->count + 1;

    l->done = xm_arena_get(&l->arena, count, sizeof(int64_t));
    l->first = xm_arena_get(&l->arena, nodes + 1, sizeof(int64_t));
    l->length = xm_arena_get(&l->arena, nodes, sizeof(int64_t));
    l->list = xm_arena_take(&l->arena, 2 * count * sizeof(int64_t));
    l->rest = xm_arena_get(&l->arena, nodes, sizeof(double));
    l->blocked = xm_arena_get(&l->arena, nodes, sizeof(bool));
    XM_NEED_MEMORY(!l->arena.failed, "scheduling %lld transfers", (long long)l->transfers->count);
    for (int64_t t = 0; t < l->transfers->count; ++t) {
        ++l->first[node_of(l, t, false) + 1];
        ++l->first[node_of(l, t, true) + 1];
    }
    for (size_t v = 0; v < nodes; ++v) {
        l->first[v + 1] += l->first[v];
    }
    for (int64_t t = 0; t < l->transfers->count; ++t) {
        for (int side = 0; side < 2; ++side) {
            int node = node_of(l, t, side == 1);

            l->list[l->first[node] + l->length[node]++] = t;
            l->rest[node] += (double)l->transfers->at[t].bytes * ns_per_byte(l, node);
        }
    }
    return XM_OK;
}

/* A piece that could be next: how late it makes the two directions, and what it is. */
typedef struct {
    int64_t transfer, bytes;
    double end, partner_end;
    bool feeds;
} choice_t;

/* Less delay first, then parents of relayed transfers, because others wait for them, then
 * the partner that would be done later. */
static bool better(const choice_t *a, const choice_t *b)
{
    if (b->transfer < 0 || a->end < b->end || a->end > b->end) {
        return b->transfer < 0 || a->end < b->end;
    }
    if (a->feeds != b->feeds) {
        return a->feeds;
    }
    return a->partner_end > b->partner_end;
}

/* The best piece for a node; .transfer is −1 when nothing has arrived that it could send
 * or be sent. Only the winner's length is computed, as the delays do not depend on it. */
static choice_t choose(list_t *l, int node)
{
    choice_t best = {.transfer = -1};

    for (int64_t i = l->first[node]; i < l->first[node] + l->length[node]; ++i) {
        int64_t t = l->list[i], ready = 0, start, bytes = INT64_MAX;
        const xm_shop_transfer_t *of = &l->transfers->at[t];
        int partner = node_of(l, t, node < l->shop->hosts);
        choice_t choice = {.transfer = t, .feeds = of->feeds};
        double node_end, slower;

        /* A relay can pass on no more than has arrived with one hop of the parent. */
        if (of->parent >= 0) {
            xm_recorder_source(l->recorder, t, l->done[t], &ready, &bytes);
            if (bytes == 0) {
                continue;
            }
        }
        start = xm_recorder_free_for(l->recorder, of->sender, of->receiver);
        start = ready > start ? ready : start;
        node_end = (double)start + l->rest[node];
        choice.partner_end = (double)start + l->rest[partner];
        choice.end = node_end > choice.partner_end ? node_end : choice.partner_end;
        if (better(&choice, &best)) {
            int64_t rest = of->bytes - l->done[t];

            slower = ns_per_byte(l, node) > ns_per_byte(l, partner) ? ns_per_byte(l, node)
                                                                    : ns_per_byte(l, partner);
            choice.bytes = (int64_t)((double)l->piece_ns / slower);
            choice.bytes = choice.bytes < l->piece_bytes ? l->piece_bytes : choice.bytes;
            /* no small rest is left over */
            choice.bytes = rest < choice.bytes + choice.bytes / 2 ? rest : choice.bytes;
            choice.bytes = bytes < choice.bytes ? bytes : choice.bytes;
            choice.bytes = l->shop->most_bytes < choice.bytes ? l->shop->most_bytes : choice.bytes;
            best = choice;
        }
    }
    return best;
}

/* The last transfer takes the place of the removed one; the lists need no order. */
static void remove_transfer(list_t *l, int64_t transfer, int node)
{
    int64_t *list = &l->list[l->first[node]];

    for (int64_t i = 0; i < l->length[node]; ++i) {
        if (list[i] == transfer) {
            list[i] = list[--l->length[node]];
            return;
        }
    }
}

/* Records the piece and takes it off both directions' rest. A parent's progress may give
 * its children something to send, so their directions are asked again. */
static xm_status_t commit(list_t *l, const choice_t *choice)
{
    int64_t t = choice->transfer;
    xm_status_t status = xm_recorder_add(l->recorder, t, l->done[t], choice->bytes);

    l->done[t] += choice->bytes;
    for (int side = 0; side < 2; ++side) {
        int node = node_of(l, t, side == 1);

        l->rest[node] -= (double)choice->bytes * ns_per_byte(l, node);
        if (l->done[t] == l->transfers->at[t].bytes) {
            remove_transfer(l, t, node);
        }
    }
    if (choice->feeds) { /* children follow their parent */
        for (int64_t child = t + 1;
             child < l->transfers->count && l->transfers->at[child].parent == t; ++child) {
            l->blocked[node_of(l, child, false)] = false;
            l->blocked[node_of(l, child, true)] = false;
        }
    }
    return status;
}

/* A node is worth asking while it has transfers left and something could have arrived
 * since it was asked in vain. */
static bool waits(const list_t *l, int node)
{
    return l->length[node] > 0 && !l->blocked[node];
}

/*
 * Returns the node that would be done last among those that are free next, give or take
 * some pieces; −1 when all are done. Recorded pieces do not move, so choosing a node that
 * is free much later would lose the others' time up to then.
 */
static int most_urgent(const list_t *l)
{
    int64_t next = INT64_MAX;
    double latest = 0;
    int urgent = -1;

    for (int v = 0; v < 2 * l->shop->hosts; ++v) {
        if (waits(l, v) && free_at(l, v) < next) {
            next = free_at(l, v);
        }
    }
    for (int v = 0; v < 2 * l->shop->hosts; ++v) {
        if (waits(l, v) && free_at(l, v) <= next + l->window_ns) {
            double end = (double)free_at(l, v) + l->rest[v];

            if (urgent < 0 || end > latest) {
                urgent = v;
                latest = end;
            }
        }
    }
    return urgent;
}

/* The loop ends: a transfer from a holder can always go on, so a blocked node always
 * waits for another one that still has a piece to record. */
xm_status_t xm_shop_list(const xm_shop_t *shop, const xm_shop_transfers_t *transfers,
                         int64_t piece_ns, int64_t piece_bytes, xm_recorder_t *recorder)
{
    list_t l = {.shop = shop,
                .transfers = transfers,
                .recorder = recorder,
                .piece_ns = piece_ns,
                .piece_bytes = piece_bytes,
                .window_ns = piece_ns + piece_ns / 2};
    xm_status_t status = fill_list(&l);

    while (status == XM_OK) {
        int node = most_urgent(&l);
        choice_t choice;

        if (node < 0) {
            break;
        }
        choice = choose(&l, node);
        if (choice.transfer < 0) {
            l.blocked[node] = true;
            continue;
        }
        status = commit(&l, &choice);
    }
    xm_arena_clear(&l.arena);
    return status;
}
