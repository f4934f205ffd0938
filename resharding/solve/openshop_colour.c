/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Orders one turn of openshop: a preemptive open shop at a common rate, solved exactly.
 * The transfers are the edges of a weighted bipartite graph of senders and receivers, and
 * König's theorem says that its edges can be coloured with as many colours as the largest
 * load; here a colour is a moment, so the turn lasts exactly as long as its busiest
 * direction. Matchings change one at a time instead of being computed anew for every
 * moment, and sets of nodes are words of bits, which makes each change cheap.
 */
#include <stdlib.h>
#include <string.h>

#include "resharding/solve/openshop.h"

/*
 * Nodes are the sending hosts, from 0, and the receiving hosts, from `senders` on. A cell is what
 * one sender sends one receiver. At every moment a matching of cells is active that covers all
 * tight nodes, those whose load fills all the time left. One exists: the nodes of largest load of a
 * bipartite multigraph can always be matched. It changes when a cell is used up or a node becomes
 * tight, each of which happens to a cell or node once, so there are at most cells + nodes changes.
 */
typedef struct {
    int senders, receivers, nodes, words;   /* words: of a set of nodes of one side */
    int *node_of_sender, *node_of_receiver; /* by host; −1: none */
    int64_t *cell;                          /* [sender * receivers + receiver], bytes left */
    int64_t *first;                         /* like `cell`: next transfer; −1: none */
    int64_t *next;                          /* by transfer: another of the same cell, or −1 */
    int64_t *used;                          /* by transfer: bytes that have their place */
    int64_t *load;                          /* by node */
    uint64_t *adjacent;                     /* by node: set of nodes of the other side */
    uint64_t *open;                         /* two sets: uncovered senders, receivers */
    uint64_t *unseen;                       /* a set, of a search */
    int *mate;                              /* by node: node of the other side, or −1 */
    int64_t *since;                         /* by sender: when its mate became that */
    int *queue, *from;                      /* of a search */
    int64_t now, left;
    xm_arena_t arena; /* of all but the pieces, which the caller takes over */
    xm_turn_piece_t *piece;
    int64_t pieces;
    size_t capacity;
} colouring_t;

static void set_insert(uint64_t *set, int i)
{
    set[i / 64] |= UINT64_C(1) << (i % 64);
}

static void set_remove(uint64_t *set, int i)
{
    set[i / 64] &= ~(UINT64_C(1) << (i % 64));
}

/* Index of a node on its side, and its set of neighbours. */
static int side_index(const colouring_t *c, int node)
{
    return node < c->senders ? node : node - c->senders;
}

static uint64_t *neighbours(const colouring_t *c, int node)
{
    return &c->adjacent[(size_t)node * (size_t)c->words];
}

static uint64_t *open_side(const colouring_t *c, bool of_receivers)
{
    return &c->open[of_receivers ? c->words : 0];
}

/* The cell of two nodes of different sides, in either order. */
static int64_t *cell_of(const colouring_t *c, int a, int b)
{
    int sender = a < b ? a : b, receiver = (a < b ? b : a) - c->senders;

    return &c->cell[(size_t)sender * (size_t)c->receivers + (size_t)receiver];
}

/* Numbers the hosts that have something to send or to receive in this turn. Senders come
 * first, so a node's number also says its side. */
static xm_status_t number_hosts(colouring_t *c, const xm_shop_t *shop,
                                const xm_shop_transfers_t *transfers, const int64_t *weight)
{
    size_t hosts = (size_t)shop->hosts;

    c->node_of_sender = xm_arena_take(&c->arena, hosts * sizeof(int));
    c->node_of_receiver = xm_arena_take(&c->arena, hosts * sizeof(int));
    XM_NEED_MEMORY(!c->arena.failed, "%d hosts", shop->hosts);
    memset(c->node_of_sender, -1, hosts * sizeof(int));
    memset(c->node_of_receiver, -1, hosts * sizeof(int));
    for (int64_t t = 0; t < transfers->count; ++t) {
        if (weight[t] > 0) {
            c->node_of_sender[transfers->at[t].sender] = 0;
            c->node_of_receiver[transfers->at[t].receiver] = 0;
        }
    }
    for (int h = 0; h < shop->hosts; ++h) {
        if (c->node_of_sender[h] == 0) {
            c->node_of_sender[h] = c->senders++;
        }
    }
    for (int h = 0; h < shop->hosts; ++h) {
        if (c->node_of_receiver[h] == 0) {
            c->node_of_receiver[h] = c->senders + c->receivers++;
        }
    }
    c->nodes = c->senders + c->receivers;
    c->words = ((c->senders > c->receivers ? c->senders : c->receivers) + 63) / 64;
    return XM_OK;
}

/* One element more than needed everywhere, so that a turn without weights still
 * allocates. */
static xm_status_t allocate(colouring_t *c, int64_t transfers)
{
    size_t nodes = (size_t)c->nodes + 1, words = (size_t)c->words + 1;
    size_t cells = (size_t)c->senders * (size_t)c->receivers + 1, count = (size_t)transfers + 1;

    c->cell = xm_arena_get(&c->arena, cells, sizeof(int64_t));
    c->first = xm_arena_take(&c->arena, cells * sizeof(int64_t));
    c->next = xm_arena_take(&c->arena, count * sizeof(int64_t));
    c->used = xm_arena_get(&c->arena, count, sizeof(int64_t));
    c->load = xm_arena_get(&c->arena, nodes, sizeof(int64_t));
    c->adjacent = xm_arena_get(&c->arena, nodes * words, sizeof(uint64_t));
    c->open = xm_arena_get(&c->arena, 2 * words, sizeof(uint64_t));
    c->unseen = xm_arena_take(&c->arena, words * sizeof(uint64_t));
    c->mate = xm_arena_take(&c->arena, nodes * sizeof(int));
    c->since = xm_arena_get(&c->arena, nodes, sizeof(int64_t));
    c->queue = xm_arena_take(&c->arena, nodes * sizeof(int));
    c->from = xm_arena_take(&c->arena, nodes * sizeof(int));
    XM_NEED_MEMORY(!c->arena.failed, "colouring %d x %d hosts", c->senders, c->receivers);
    memset(c->first, -1, cells * sizeof(int64_t));
    memset(c->mate, -1, nodes * sizeof(int));
    return XM_OK;
}

/* Adds up the cells and loads. The turn lasts as long as its largest load, and all nodes
 * start uncovered. */
static void fill_cells(colouring_t *c, const xm_shop_transfers_t *transfers, const int64_t *weight)
{
    for (int64_t t = transfers->count - 1; t >= 0; --t) { /* cells list them in rising order */
        int sender = c->node_of_sender[transfers->at[t].sender];
        int receiver = c->node_of_receiver[transfers->at[t].receiver];
        int64_t *cell;

        if (weight[t] == 0) {
            continue;
        }
        cell = cell_of(c, sender, receiver);
        *cell += weight[t];
        c->load[sender] += weight[t];
        c->load[receiver] += weight[t];
        c->next[t] = c->first[cell - c->cell];
        c->first[cell - c->cell] = t;
        set_insert(neighbours(c, sender), receiver - c->senders);
        set_insert(neighbours(c, receiver), sender);
    }
    for (int v = 0; v < c->nodes; ++v) {
        c->left = c->load[v] > c->left ? c->load[v] : c->left;
        set_insert(open_side(c, v >= c->senders), side_index(c, v));
    }
}

static xm_status_t add_piece(colouring_t *c, xm_turn_piece_t piece)
{
    XM_NEED_MEMORY(XM_ARRAY_ROOM(c->piece, c->capacity, c->pieces), "%lld pieces",
                   (long long)c->pieces + 1);
    c->piece[c->pieces++] = piece;
    return XM_OK;
}

/*
 * Ends the run of a sender's mate. Its bytes are taken from the cell's transfers one
 * after the other, so a transfer is cut only where a run ends, and its pieces come in
 * rising order.
 */
static xm_status_t end_run(colouring_t *c, int sender, const int64_t *weight)
{
    int64_t start = c->since[sender];
    int64_t *first = &c->first[cell_of(c, sender, c->mate[sender]) - c->cell];
    xm_status_t status = XM_OK;

    while (status == XM_OK && start < c->now) {
        int64_t transfer = *first, bytes = weight[transfer] - c->used[transfer];

        bytes = c->now - start < bytes ? c->now - start : bytes;
        status = add_piece(c, (xm_turn_piece_t){transfer, c->used[transfer], bytes, start});
        c->used[transfer] += bytes;
        start += bytes;
        if (c->used[transfer] == weight[transfer]) {
            *first = c->next[transfer];
        }
    }
    return status;
}

/* Separates a sender from its receiver, after recording what went between them since they
 * joined. */
static xm_status_t part(colouring_t *c, int sender, const int64_t *weight)
{
    xm_status_t status = end_run(c, sender, weight);
    int receiver = c->mate[sender];

    c->mate[sender] = c->mate[receiver] = -1;
    set_insert(open_side(c, false), sender);
    set_insert(open_side(c, true), receiver - c->senders);
    return status;
}

/* Joins two nodes that are uncovered and have bytes left between them. */
static void join(colouring_t *c, int a, int b)
{
    int sender = a < b ? a : b, receiver = a < b ? b : a;

    c->mate[sender] = receiver;
    c->mate[receiver] = sender;
    c->since[sender] = c->now;
    set_remove(open_side(c, false), sender);
    set_remove(open_side(c, true), receiver - c->senders);
}

/*
 * Gives an uncovered node the uncovered neighbour with the largest cell, if there is one.
 * Nobody needs this for the proof, but time that is used now makes nodes tight later; the
 * largest cell keeps the matching the longest.
 */
static void join_open(colouring_t *c, int node)
{
    const uint64_t *adjacent = neighbours(c, node), *open = open_side(c, node < c->senders);
    int base = node < c->senders ? c->senders : 0, best = -1;
    int64_t most = 0;

    for (int w = 0; w < c->words; ++w) {
        for (uint64_t set = adjacent[w] & open[w]; set != 0; set &= set - 1) {
            int other = base + w * 64 + __builtin_ctzll(set);

            if (*cell_of(c, node, other) > most) {
                most = *cell_of(c, node, other);
                best = other;
            }
        }
    }
    if (best >= 0) {
        join(c, node, best);
    }
}

/* A node is tight when its load fills all the time left, so it may not be idle any more. */
static bool tight(const colouring_t *c, int node)
{
    return c->load[node] == c->left;
}

/*
 * Turns the path of a search over: `end` gets c->from[end], whose old mate gets its own,
 * and so on back to the root. Every node of the path but the last of this side stays
 * covered.
 */
static xm_status_t turn_over(colouring_t *c, int end, const int64_t *weight)
{
    xm_status_t status = XM_OK;

    for (int node = end; status == XM_OK && node >= 0;) {
        int other = c->from[node], next = c->mate[other];

        if (c->mate[node] >= 0) {
            status = part(c, node < c->mate[node] ? node : c->mate[node], weight);
        }
        if (status == XM_OK && next >= 0) {
            status = part(c, other < next ? other : next, weight);
        }
        join(c, other, node);
        node = next;
    }
    return status;
}

/*
 * Covers a tight node by an alternating path, breadth first, that ends at an uncovered
 * node of the other side or leaves a node of this side uncovered that is not tight. One
 * of the two exists: were all nodes reached on this side tight and all their neighbours
 * matched to tight nodes, the neighbours would have to carry more than the time left.
 */
static xm_status_t cover(colouring_t *c, int root, const int64_t *weight)
{
    int head = 0, tail = 0, base = root < c->senders ? c->senders : 0;
    const uint64_t *open = open_side(c, root < c->senders);

    memset(c->unseen, -1, (size_t)c->words * sizeof(*c->unseen));
    c->queue[tail++] = root;
    while (head < tail) {
        int node = c->queue[head++];
        const uint64_t *adjacent = neighbours(c, node);

        /* An uncovered neighbour ends the search at once, so these are looked for first. */
        for (int w = 0; w < c->words; ++w) {
            uint64_t set = adjacent[w] & c->unseen[w] & open[w];

            if (set != 0) {
                int end = base + w * 64 + __builtin_ctzll(set);

                c->from[end] = node;
                return turn_over(c, end, weight);
            }
        }
        for (int w = 0; w < c->words; ++w) {
            uint64_t set = adjacent[w] & c->unseen[w];

            c->unseen[w] &= ~set;
            for (; set != 0; set &= set - 1) {
                int other = base + w * 64 + __builtin_ctzll(set), next = c->mate[other];

                c->from[other] = node;
                if (!tight(c, next)) {
                    return turn_over(c, other, weight);
                }
                c->queue[tail++] = next;
            }
        }
    }
    return xm_error_set(XM_ERR_INTERNAL, "a node of the largest load cannot be matched");
}

/*
 * How long the matching may stay as it is: until a cell of it is used up or an uncovered
 * node becomes tight. The result is positive, since tight nodes are covered and matched
 * cells have bytes left.
 */
static int64_t next_change(const colouring_t *c)
{
    int64_t step = c->left;

    for (int v = 0; v < c->nodes; ++v) {
        int64_t limit = c->left - c->load[v];

        if (c->mate[v] >= 0) {
            limit = v < c->senders ? *cell_of(c, v, c->mate[v]) : c->left;
        }
        step = limit < step ? limit : step;
    }
    return step;
}

/* Lets the matching run for a time and separates the pairs whose cell is used up. */
static xm_status_t advance(colouring_t *c, int64_t step, const int64_t *weight)
{
    xm_status_t status = XM_OK;

    c->now += step;
    c->left -= step;
    for (int s = 0; status == XM_OK && s < c->senders; ++s) {
        int r = c->mate[s];

        if (r < 0) {
            continue;
        }
        c->load[s] -= step;
        c->load[r] -= step;
        *cell_of(c, s, r) -= step;
        if (*cell_of(c, s, r) == 0) {
            set_remove(neighbours(c, s), r - c->senders);
            set_remove(neighbours(c, r), s);
            status = part(c, s, weight);
        }
    }
    return status;
}

/*
 * Tight nodes first, then whoever else can be joined, then time goes on. Every round uses
 * up a cell or makes a node tight, and a tight node stays tight, so there are at most
 * cells + nodes rounds.
 */
static xm_status_t run(colouring_t *c, const int64_t *weight)
{
    xm_status_t status = XM_OK;

    while (status == XM_OK && c->left > 0) {
        for (int v = 0; status == XM_OK && v < c->nodes; ++v) {
            if (c->mate[v] < 0 && c->load[v] > 0 && tight(c, v)) {
                status = cover(c, v, weight);
            }
        }
        for (int s = 0; s < c->senders; ++s) {
            if (c->mate[s] < 0 && c->load[s] > 0) {
                join_open(c, s);
            }
        }
        XM_THEN(status, advance(c, next_change(c), weight));
    }
    return status;
}

/* By start, then by transfer. Pieces of one transfer never start at the same time, so the
 * order is total. */
static int compare_pieces(const void *a, const void *b)
{
    const xm_turn_piece_t *left = a, *right = b;

    XM_ORDER_BY(left->start, right->start);
    return xm_order(left->transfer, right->transfer);
}

/* The caller frees the pieces, which are NULL when no transfer has weight. */
xm_status_t xm_shop_colour(const xm_shop_t *shop, const xm_shop_transfers_t *transfers,
                           const int64_t *weight, xm_turn_piece_t **pieces, int64_t *count)
{
    colouring_t c = {0};
    xm_status_t status = number_hosts(&c, shop, transfers, weight);

    XM_THEN(status, allocate(&c, transfers->count));
    if (status == XM_OK) {
        fill_cells(&c, transfers, weight);
        status = run(&c, weight);
    }
    if (status == XM_OK && c.pieces > 0) {
        qsort(c.piece, (size_t)c.pieces, sizeof(*c.piece), compare_pieces);
    }
    if (status == XM_OK) {
        *pieces = c.piece;
        *count = c.pieces;
    } else {
        free(c.piece);
    }
    xm_arena_clear(&c.arena);
    return status;
}
