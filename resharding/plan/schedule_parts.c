/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns the hops of bundles into transfers of the tasks in them. openshop knows rails and
 * bytes only, so this file chooses ranks, cuts between elements, and finds for each
 * relayed part the transfer that brings it.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "comm/base.h"
#include "resharding/plan/bundles.h"

/*
 * What has come in a part of the time is passed on inside the hosts: a window where one rail serves
 * several heads, otherwise a turn of the schedule, in which all rails bring equal shares of what is
 * passed on.
 */
enum { WINDOWS = 100, LAST_WINDOWS = 4 };

/* What a rank has to pass on, over the average of its host, that counts as even. */
static const double UNEVEN = 1.1;

/* Bytes [first, end) of a bundle on a hop, and the place of their transfers, for the hops that
 * pass them on. */
typedef struct {
    const xm_hop_t *hop;
    int64_t first, end;
    int64_t parent; /* piece that contains it, or −1 */
    int64_t start_ns;
    int64_t first_sent, end_sent; /* in parts_t.sent */
} piece_t;

/* A transfer that has come to one rank of a host where others need it too. */
typedef struct {
    int64_t transfer;
    const int *ranks; /* that need it */
    int count, head;
} arrival_t;

/* What has come to a host and was not passed on yet. */
typedef struct {
    arrival_t *at;
    int64_t count;
    size_t room;
    int64_t bytes, most; /* of all, of the rank that has most */
} arrived_t;

typedef struct {
    xm_scheduling_t *s;
    const xm_bundles_t *bundles;
    xm_transfer_emitter_t *emitter;
    int64_t *grain;      /* by bundle: pieces are cut at multiples of so many bytes */
    arrived_t *arrived;  /* by host */
    int64_t *waiting;    /* by rank: bytes in the arrived of its host that it has to pass on */
    int64_t local_count; /* transfers inside hosts, which stand before */
    piece_t *pieces;     /* in the order of hops */
    int64_t piece_count;
    size_t piece_room;
    int64_t *sent; /* transfers between hosts, in their order */
    int64_t sent_count;
    size_t sent_room;
    double *passed; /* by rail: bytes that come by it and are passed on, in all … */
    double *left;   /* … and those of them still to come */
    xm_arena_t arena;
} parts_t;

static xm_status_t no_memory(const parts_t *p)
{
    return XM_NO_MEMORY("scheduling %" PRId64 " unit tasks in parts", p->s->plan->task_count);
}

/*
 * Limits the chunks of relayed tasks: a chunk should not be longer than what a relay
 * waits for, but a short piece left over between two cuts must not turn all the rest into
 * chunks of a few bytes.
 */
static void set_part_chunks(parts_t *p, int64_t *shortest)
{
    const xm_hop_t *hops = p->bundles->hops;

    for (int64_t d = 0; d < p->bundles->count; ++d) {
        shortest[d] = INT64_MAX;
    }
    for (int64_t i = 0; i < p->bundles->hop_count; ++i) {
        int64_t length = hops[i].end - hops[i].first;

        if (hops[i].parent >= 0 && p->bundles->message == 0 &&
            p->grain[hops[i].demand] == INT64_MAX && length < shortest[hops[i].demand]) {
            shortest[hops[i].demand] = length;
        }
    }
    for (int64_t d = 0; d < p->bundles->count; ++d) {
        int64_t bytes = shortest[d] > XM_SMALLEST_CHUNK ? shortest[d] : XM_SMALLEST_CHUNK;

        for (int64_t e = p->bundles->first[2 * d]; e < p->bundles->first[2 * d + 2]; ++e) {
            xm_scheduling_set_chunk(p->s, p->emitter->builder, p->bundles->entries[e].task, bytes);
        }
    }
}

/*
 * The transfer among those of a parent's piece that brings an element of a task; they are in the
 * order of tasks and elements, so the search is by halves. The parent contains the child's range,
 * so there is one.
 */
static int64_t find_parent(const parts_t *p, const piece_t *parent, int64_t task, int64_t element)
{
    const xm_transfer_t *transfers = p->emitter->builder->transfers;
    int64_t low = parent->first_sent + 1;

    XM_BISECT(int64_t, i, low, parent->end_sent,
              transfers[p->sent[i]].task < task ||
                  (transfers[p->sent[i]].task == task && transfers[p->sent[i]].first <= element));
    return p->sent[low - 1];
}

/* The transfer inside a host that brings a task to a rank; they come first, in the order of tasks.
 */
static int64_t find_local(const parts_t *p, int64_t task, int rank)
{
    const xm_builder_t *builder = p->emitter->builder;
    int64_t low = 0;

    XM_BISECT(int64_t, i, low, p->local_count, builder->transfers[i].task < task);
    for (;; ++low) {
        const xm_route_t *route = xm_builder_route_of(builder, &builder->transfers[low]);

        for (int i = 0; i < route->count; ++i) {
            if (route->ranks[i] == rank) {
                return low;
            }
        }
    }
}

/* The last entry of a stream that starts at or before a byte. */
static int64_t entry_at(const parts_t *p, int64_t stream, int64_t byte)
{
    int64_t low = p->bundles->first[stream] + 1;

    XM_BISECT(int64_t, i, low, p->bundles->first[stream + 1],
              p->bundles->entries[i].offset <= byte);
    return low - 1;
}

/* A transfer to one rank. */
static xm_status_t append_single(parts_t *p, xm_transfer_t *transfer, int receiver)
{
    xm_builder_t *builder = p->emitter->builder;
    XM_TRY(xm_builder_route(builder, 1, &receiver, &(int){-1}, &transfer->route));

    return xm_builder_append(builder, transfer, NULL);
}

static int compare_arrivals(const void *a, const void *b)
{
    const arrival_t *x = a, *y = b;

    XM_ORDER_BY(x->ranks[x->head], y->ranks[y->head]);
    return xm_order(x->transfer, y->transfer);
}

/*
 * Passes on what has come to the heads of a host since the last time. In round j every head
 * sends to the rank j places behind it, so in each round all ports work side by side, each for
 * one sender and one receiver; heads that have taken in equally much keep in step.
 */
static xm_status_t pass_on(parts_t *p, int host)
{
    arrived_t *arrived = &p->arrived[host];
    xm_status_t status = XM_OK;
    int most = 0;

    if (arrived->count > 1) {
        qsort(arrived->at, (size_t)arrived->count, sizeof(*arrived->at), compare_arrivals);
    }
    for (int64_t i = 0; i < arrived->count; ++i) {
        most = arrived->at[i].count > most ? arrived->at[i].count : most;
        p->waiting[arrived->at[i].ranks[arrived->at[i].head]] = 0;
    }
    for (int round = 1; round < most; ++round) {
        for (int64_t i = 0; status == XM_OK && i < arrived->count; ++i) {
            const arrival_t *arrival = &arrived->at[i];
            xm_transfer_t transfer = p->emitter->builder->transfers[arrival->transfer];

            if (round < arrival->count) {
                transfer.parent = arrival->transfer;
                transfer.sender = arrival->ranks[arrival->head];
                status = append_single(p, &transfer,
                                       arrival->ranks[(arrival->head + round) % arrival->count]);
            }
        }
    }
    arrived->count = arrived->bytes = arrived->most = 0;
    return status;
}

/* Notes that the next transfer comes to a head whose neighbours need it too. */
static xm_status_t note_arrival(parts_t *p, const xm_inner_t *inner, int head, int64_t bytes)
{
    arrived_t *arrived = &p->arrived[xm_network_host_of_rail(p->emitter->network, inner->rail)];

    if (!XM_ARRAY_ROOM(arrived->at, arrived->room, arrived->count)) {
        return no_memory(p);
    }
    p->left[inner->rail] -= (double)bytes;
    p->waiting[inner->ranks[head]] += bytes;
    arrived->bytes += bytes;
    if (p->waiting[inner->ranks[head]] > arrived->most) {
        arrived->most = p->waiting[inner->ranks[head]];
    }
    arrived->at[arrived->count++] =
        (arrival_t){p->emitter->builder->transfer_count, inner->ranks, inner->count, head};
    return XM_OK;
}

/*
 * Lets the devices of a host pass on what they have when it is time for that, and says how much
 * more the next head of a rail may get. Several heads of one rail get equal shares by turns. Heads
 * of different rails get theirs as the network brings it: they wait until they have about equally
 * much, at most for a turn of the whole schedule, in which all get equal shares.
 */
static xm_status_t make_room(parts_t *p, const xm_inner_t *inner, int64_t *room)
{
    int host = xm_network_host_of_rail(p->emitter->network, inner->rail);
    int heads = xm_chain_heads(p->emitter, inner);
    int rank = inner->ranks[xm_chain_head(p->emitter, inner, p->waiting)];
    const arrived_t *arrived = &p->arrived[host];
    double share = p->passed[inner->rail] / heads, left = p->left[inner->rail] / heads;
    /* The last ones are ever shorter, as nothing goes on beside what is passed on after them. */
    double window = fmin(share / WINDOWS, left / LAST_WINDOWS);
    double turn = fmin(share / p->bundles->turns, left / LAST_WINDOWS);
    double most = fmax(heads > 1 ? window : turn, XM_SMALLEST_CHUNK);
    bool even = (double)arrived->bytes >= window * inner->count &&
                (double)arrived->most * inner->count <= UNEVEN * (double)arrived->bytes;

    if ((double)p->waiting[rank] > (heads > 1 ? 0.875 : 0.97) * most || (heads == 1 && even)) {
        XM_TRY(pass_on(p, host));
    }
    *room = heads > 1 ? (int64_t)most - p->waiting[rank] : INT64_MAX / 2;
    return XM_OK;
}

/*
 * Chooses the device that gets a part from the network, and shortens the part to what suits it:
 * of the ranks on the rail the one that has least to pass on, and what comes by the rail in a
 * window is shared out evenly. When all have that, they pass it on. With send_recv it is the
 * single receiver.
 */
static xm_status_t choose_receiver(parts_t *p, const xm_entry_t *entry, int rail,
                                   xm_transfer_t *transfer, int *receiver)
{
    const xm_class_t *class = &p->s->classes->classes[p->s->classes->class_of[entry->task]];
    const xm_plan_t *plan = p->s->plan;
    int64_t size = plan->tensors[plan->tasks[entry->task].tensor].element_size, room = 0;
    xm_inner_t inner;
    xm_status_t status = XM_OK;
    int head;

    *receiver = entry->receiver;
    if (entry->receiver >= 0) {
        return XM_OK;
    }
    inner = xm_chain_inner(p->emitter, class, rail);
    if (inner.count > 1) {
        status = make_room(p, &inner, &room);
    }
    head = xm_chain_head(p->emitter, &inner, p->waiting);
    if (inner.count > 1) {
        /* What would be left must be worth a message. */
        if ((transfer->end - transfer->first) * size > room + room / 8 && room >= size &&
            p->bundles->message == 0) {
            transfer->end = transfer->first + room / size;
        }
        XM_THEN(status, note_arrival(p, &inner, head, (transfer->end - transfer->first) * size));
    }
    xm_chain_take(p->emitter, &inner, head, (transfer->end - transfer->first) * size);
    *receiver = inner.ranks[head];
    return status;
}

/* Appends a transfer between hosts. */
static xm_status_t append_sent(parts_t *p, xm_transfer_t *transfer, int receiver)
{
    if (!XM_ARRAY_ROOM(p->sent, p->sent_room, p->sent_count)) {
        return no_memory(p);
    }
    p->sent[p->sent_count++] = p->emitter->builder->transfer_count;
    return append_single(p, transfer, receiver);
}

/*
 * Makes the transfers of one entry's part of a piece. Cuts between elements are rounded
 * down, on both sides of a cut alike, so that parts stay contiguous and a relay's part
 * stays inside what it was brought. A cut inside one element leaves nothing for this part; the
 * other side of the cut has the element.
 */
static xm_status_t emit_entry(parts_t *p, const piece_t *piece, const xm_entry_t *entry,
                              const piece_t *parent)
{
    const xm_plan_t *plan = p->s->plan;
    const xm_class_t *class = &p->s->classes->classes[p->s->classes->class_of[entry->task]];
    const xm_transfer_t *transfers;
    int64_t size = plan->tensors[plan->tasks[entry->task].tensor].element_size;
    xm_part_t part = entry->part;
    xm_status_t status = XM_OK;

    /* The entry's part of the piece, in elements: all of it where the piece covers it. */
    if (piece->end < entry->offset + (part.end - part.first) * size) {
        part.end = part.first + (piece->end - entry->offset) / size;
    }
    if (piece->first > entry->offset) {
        part.first += (piece->first - entry->offset) / size;
    }
    while (status == XM_OK && part.first < part.end) {
        xm_transfer_t transfer = {entry->task, -1, part.first, part.end, 0, 0};
        int receiver;

        /* A relay sends from the device that the parent's route begins with, for that one has
         * the data first. */
        if (parent != NULL) {
            transfer.parent = find_parent(p, parent, entry->task, part.first);
            transfers = p->emitter->builder->transfers;
            transfer.end = transfers[transfer.parent].end < part.end
                               ? transfers[transfer.parent].end
                               : part.end;
            transfer.sender =
                xm_builder_route_of(p->emitter->builder, &transfers[transfer.parent])->ranks[0];
        } else {
            transfer.sender = xm_transfer_emitter_pick_rail(p->emitter, class, piece->hop->sender);
        }
        if (transfer.sender < 0) {
            transfer.sender = xm_transfer_emitter_pick_near(p->emitter, class, piece->hop->sender);
            transfer.parent = find_local(p, entry->task, transfer.sender);
        }
        status = choose_receiver(p, entry, piece->hop->receiver, &transfer, &receiver);
        /* The count lets later picks spread the work over the devices of the sending rail. */
        p->emitter->sent[transfer.sender] += (transfer.end - transfer.first) * size;
        XM_THEN(status, append_sent(p, &transfer, receiver));
        part.first = transfer.end;
    }
    return status;
}

/* Where a byte of a bundle lies in one of its streams, which advance together. */
static int64_t stream_byte(const parts_t *p, int64_t stream, int64_t byte)
{
    int64_t all = p->bundles->demands[stream / 2].bytes;

    return p->bundles->bytes[stream] == all
               ? byte
               : (int64_t)((__int128)byte * p->bundles->bytes[stream] / all);
}

/* Makes the transfers of a piece and notes where they are, for the pieces that relay it. */
static xm_status_t emit_piece(parts_t *p, piece_t *piece, const piece_t *parent)
{
    xm_status_t status = XM_OK;

    piece->first_sent = p->sent_count;
    for (int64_t stream = 2 * piece->hop->demand; stream < 2 * piece->hop->demand + 2; ++stream) {
        piece_t part = *piece;

        part.first = stream_byte(p, stream, piece->first);
        part.end = stream_byte(p, stream, piece->end);
        for (int64_t e = entry_at(p, stream, part.first);
             status == XM_OK && e < p->bundles->first[stream + 1] &&
             p->bundles->entries[e].offset < part.end;
             ++e) {
            status = emit_entry(p, &part, &p->bundles->entries[e], parent);
        }
    }
    piece->end_sent = p->sent_count;
    return status;
}

/*
 * Chooses how finely the hops of each bundle are cut. Where receivers pass on what they get, that
 * goes on beside the network's work: so of what comes by several rails side by side, each rail's
 * part of a window of time is a piece. Where rates differ, the faster end of a hop has time for
 * others while the hop lasts, between its messages: so these are pieces of their own.
 */
static void choose_grains(parts_t *p)
{
    double window_ns = (double)p->bundles->makespan_ns / WINDOWS;

    for (int64_t d = 0; d < p->bundles->count; ++d) {
        double rate = INFINITY, bytes;

        for (int r = 0; r < p->bundles->demands[d].receiver_count; ++r) {
            rate = fmin(rate, xm_network_ingress(p->bundles->lanes->network,
                                                 p->bundles->demands[d].receivers[r]));
        }
        bytes =
            p->bundles->message == 0 && p->bundles->wide[d] ? 1e-9 * window_ns * rate : INFINITY;
        bytes = fmax(bytes, XM_SMALLEST_CHUNK);
        p->grain[d] = bytes < (double)p->bundles->demands[d].bytes ? (int64_t)bytes : INT64_MAX;
        for (int r = 0; p->bundles->wide[d] && r < p->bundles->demands[d].receiver_count; ++r) {
            p->passed[p->bundles->demands[d].receivers[r]] += (double)p->bundles->bytes[2 * d];
            p->left[p->bundles->demands[d].receivers[r]] += (double)p->bundles->bytes[2 * d];
        }
    }
}

static int compare_pieces(const void *a, const void *b)
{
    const piece_t *x = *(const piece_t *const *)a, *y = *(const piece_t *const *)b;

    XM_ORDER_BY(x->start_ns, y->start_ns);
    return (x > y) - (x < y);
}

/* Appends a piece, or several: those that nobody passes on between hosts get ever shorter towards
 * the end, as nothing goes on beside what is passed on after them. */
static xm_status_t add_piece(parts_t *p, piece_t piece, bool last)
{
    const xm_hop_t *hop = piece.hop;
    double pace = fmin(xm_network_ingress(p->bundles->lanes->network, hop->receiver),
                       xm_network_egress(p->bundles->lanes->network, hop->sender)) *
                  1e-9;
    int64_t first = piece.first, bytes = piece.end - first, parts = 1;
    int64_t left =
        p->bundles->makespan_ns - hop->start_ns - (int64_t)((double)(first - hop->first) / pace);

    if (last && p->grain[hop->demand] < INT64_MAX && left > 0) {
        parts = (int64_t)((double)bytes / pace / (double)left * LAST_WINDOWS);
        parts = parts < bytes / XM_SMALLEST_CHUNK ? parts : bytes / XM_SMALLEST_CHUNK;
        parts = parts > 1 ? parts : 1;
    }
    if (!xm_array_reserve(&p->pieces, &p->piece_room, (size_t)(p->piece_count + parts),
                          sizeof(*p->pieces))) {
        return no_memory(p);
    }
    for (int64_t i = 0; i < parts; ++i) {
        piece.first = first + bytes / parts * i;
        piece.end = i + 1 < parts ? piece.first + bytes / parts : first + bytes;
        piece.start_ns = hop->start_ns + (int64_t)((double)(piece.first - hop->first) / pace);
        p->pieces[p->piece_count++] = piece;
    }
    return XM_OK;
}

/* Cuts hops into pieces. A parent contains its child's range, so of its pieces one contains the
 * child's piece. first_piece is −1 where nobody relays what the hop brings. */
static xm_status_t cut_hops(parts_t *p, int64_t *first_piece)
{
    const xm_hop_t *hops = p->bundles->hops;
    xm_status_t status = XM_OK;

    for (int64_t i = p->bundles->hop_count - 1; i >= 0; --i) {
        first_piece[i] = -1;
    }
    for (int64_t i = 0; i < p->bundles->hop_count; ++i) {
        if (hops[i].parent >= 0) {
            first_piece[hops[i].parent] = 0;
        }
    }
    for (int64_t i = 0; i < p->bundles->hop_count; ++i) {
        const xm_hop_t *hop = &hops[i];
        int64_t grain = p->grain[hop->demand], at = hop->first / grain;
        bool last = first_piece[i] < 0;

        first_piece[i] = p->piece_count;
        for (int64_t k = at; status == XM_OK && k <= (hop->end - 1) / grain; ++k) {
            piece_t piece = {.hop = hop, .first = k > at ? k * grain : hop->first, .parent = -1};

            piece.end = k < (hop->end - 1) / grain ? (k + 1) * grain : hop->end;
            if (hop->parent >= 0) {
                piece.parent = first_piece[hop->parent] + k - hops[hop->parent].first / grain;
            }
            status = add_piece(p, piece, last);
        }
    }
    return status;
}

/* Parents come before children in the list of hops and start earlier. */
static xm_status_t emit_hops(parts_t *p)
{
    int64_t *first_piece = malloc(((size_t)p->bundles->hop_count + 1) * sizeof(*first_piece));
    int64_t *shortest = malloc(((size_t)p->bundles->count + 1) * sizeof(*shortest));
    piece_t **order = NULL;
    xm_status_t status =
        first_piece != NULL && shortest != NULL ? cut_hops(p, first_piece) : no_memory(p);

    if (status == XM_OK) {
        set_part_chunks(p, shortest);
        order = malloc(((size_t)p->piece_count + 1) * sizeof(*order));
        status = order != NULL ? XM_OK : no_memory(p);
    }
    for (int64_t i = 0; status == XM_OK && i < p->piece_count; ++i) {
        order[i] = &p->pieces[i];
    }
    if (status == XM_OK) {
        qsort(order, (size_t)p->piece_count, sizeof(*order), compare_pieces);
    }
    for (int64_t i = 0; status == XM_OK && i < p->piece_count; ++i) {
        status =
            emit_piece(p, order[i], order[i]->parent < 0 ? NULL : &p->pieces[order[i]->parent]);
    }
    for (int h = 0; status == XM_OK && h < xm_network_hosts(p->emitter->network); ++h) {
        status = pass_on(p, h);
    }
    free(order);
    free(shortest);
    free(first_piece);
    return status;
}

xm_status_t xm_schedule_parts(xm_scheduling_t *s, const xm_bundles_t *bundles,
                              xm_transfer_emitter_t *emitter)
{
    size_t hosts = (size_t)xm_network_hosts(emitter->network);
    size_t rails = (size_t)xm_network_rails(emitter->network);
    parts_t p = {.s = s,
                 .bundles = bundles,
                 .emitter = emitter,
                 .local_count = emitter->builder->transfer_count};
    xm_status_t status = XM_OK;

    p.grain = xm_arena_take(&p.arena, ((size_t)bundles->count + 1) * sizeof(*p.grain));
    p.arrived = xm_arena_get(&p.arena, hosts, sizeof(*p.arrived));
    p.waiting =
        xm_arena_get(&p.arena, (size_t)xm_network_ranks(emitter->network), sizeof(*p.waiting));
    p.passed = xm_arena_get(&p.arena, rails, sizeof(*p.passed));
    p.left = xm_arena_get(&p.arena, rails, sizeof(*p.left));
    if (p.arena.failed) {
        status = no_memory(&p);
    }
    if (status == XM_OK) {
        choose_grains(&p);
        status = emit_hops(&p);
    }
    for (size_t h = 0; p.arrived != NULL && h < hosts; ++h) {
        free(p.arrived[h].at);
    }
    free(p.pieces);
    free(p.sent);
    xm_arena_clear(&p.arena);
    return status;
}
