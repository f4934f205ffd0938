/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts openshop to work for tasks: bundles go to the scheduler as demands, and the hops
 * that come back are turned into transfers of the tasks in them. openshop knows rails and
 * bytes only, so this file chooses ranks, cuts between elements, and finds for each
 * relayed part the transfer that brings it.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "resharding/plan/schedule_private.h"

/*
 * What has come in a part of the time is passed on inside the hosts: a window where one rail serves
 * several heads, otherwise a turn of the schedule, in which all rails bring equal shares of what is
 * passed on.
 */
enum {
    WINDOWS = 100,
    LAST_WINDOWS = 4,
    FEW_PIECES = 20000,
    PIECES = 200000,
    LEAST_TURNS = 32,
    MOST_TURNS = 64,
    HOPS_IN_TURNS = 20000
};

/* What a rank has to pass on, over the average of its host, that counts as even. */
static const double UNEVEN = 1.25;

/*
 * For the network, lanes with the same holding rails and the same receiving rails are one
 * amount of data, whichever devices are behind it: a *bundle*. openshop cuts bundles;
 * here the cuts are turned into transfers of tasks.
 */

/* Elements of a task in a bundle, for all remote receivers or for one. */
typedef struct {
    int64_t task;
    xm_part_t part;
    int64_t offset; /* of its first byte in the stream */
    int receiver;   /* or −1 */
} entry_t;

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
    int64_t count, capacity;
    int64_t bytes, most; /* of all, of the rank that has most */
} arrived_t;

typedef struct {
    xm_scheduling_t *s;
    const xm_parts_way_t *way;
    xm_transfer_emitter_t *emitter;
    xm_demand_t *demands; /* by bundle */
    int64_t count, capacity;
    int64_t *table; /* open addressing by the rails' lists: bundle + 1 */
    int64_t table_size;
    /* Every bundle has two streams: what neighbours pass on, and what comes to one rank only. */
    entry_t *entries; /* by bundle, stream and task */
    int64_t *first;   /* by stream: its first entry; one more than streams */
    int64_t *bytes;   /* by stream */
    int64_t *bundle;  /* by lane */
    xm_lanes_t lanes;
    int64_t *grain;     /* by bundle: pieces are cut at multiples of so many bytes */
    arrived_t *arrived; /* by host */
    int64_t *waiting;   /* by rank: bytes in the arrived of its host that it has to pass on */
    int64_t *sent;      /* transfers between hosts, in their order */
    int64_t sent_count, sent_capacity;
    double *passed; /* by rail: bytes that come by it and are passed on, in all */
    double *left;   /* of these, bytes still to come */
    double window_ns;
    int turns;
} parts_t;

static xm_status_t no_memory(const parts_t *p)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "no memory to schedule %" PRId64 " unit tasks in parts",
                        p->s->plan->task_count);
}

/* The same rails in both roles give the same hash, whatever the bytes. */
static uint64_t hash_demand(const xm_demand_t *demand)
{
    uint64_t hash = xm_hash_list(0, demand->holders, demand->holder_count);

    return xm_hash_list(hash, demand->receivers, demand->receiver_count);
}

static bool same_hosts(const xm_demand_t *a, const xm_demand_t *b)
{
    return a->holder_count == b->holder_count && a->receiver_count == b->receiver_count &&
           memcmp(a->holders, b->holders, (size_t)a->holder_count * sizeof(int)) == 0 &&
           memcmp(a->receivers, b->receivers, (size_t)a->receiver_count * sizeof(int)) == 0;
}

/* Doubles the bundles and enters them in a table twice as large, so that it is at most
 * half full. */
static xm_status_t grow(parts_t *p)
{
    int64_t capacity = p->capacity > 0 ? p->capacity * 2 : 64, size = capacity * 2;
    xm_demand_t *demands = realloc(p->demands, (size_t)capacity * sizeof(*demands));
    int64_t *table = calloc((size_t)size, sizeof(*table));

    p->demands = demands != NULL ? demands : p->demands;
    if (demands == NULL || table == NULL) {
        free(table);
        return no_memory(p);
    }
    for (int64_t d = 0; d < p->count; ++d) {
        uint64_t at = hash_demand(&demands[d]) & (uint64_t)(size - 1);

        while (table[at] != 0) {
            at = (at + 1) & (uint64_t)(size - 1);
        }
        table[at] = d + 1;
    }
    free(p->table);
    p->table = table;
    p->table_size = size;
    p->capacity = capacity;
    return XM_OK;
}

/* Finds the bundle of these rails, or makes it with no bytes yet. */
static xm_status_t find_bundle(parts_t *p, const xm_demand_t *hosts, int64_t *bundle)
{
    uint64_t at;

    if (p->count == p->capacity) {
        xm_status_t status = grow(p);

        if (status < 0) {
            return status;
        }
    }
    for (at = hash_demand(hosts) & (uint64_t)(p->table_size - 1); p->table[at] != 0;
         at = (at + 1) & (uint64_t)(p->table_size - 1)) {
        *bundle = p->table[at] - 1;
        if (same_hosts(&p->demands[*bundle], hosts)) {
            return XM_OK;
        }
    }
    *bundle = p->count;
    p->demands[p->count++] = *hosts;
    p->table[at] = p->count;
    return XM_OK;
}

/* Finds the bundles of all lanes. Those that differ only in devices share one, so the
 * scheduler sees fewer demands than there are lanes. */
static xm_status_t bundle_lanes(parts_t *p)
{
    xm_status_t status = XM_OK;

    p->bundle = malloc(((size_t)p->lanes.count + 1) * sizeof(*p->bundle));
    if (p->bundle == NULL) {
        return no_memory(p);
    }
    for (int64_t k = 0; k < p->s->classes->count; ++k) {
        const xm_lane_range_t *range = &p->lanes.by_class[k];

        for (int64_t l = range->first; status == XM_OK && l < range->end; ++l) {
            const xm_demand_t rails = {.holders = p->lanes.holders[k].rails,
                                       .holder_count = p->lanes.holders[k].count,
                                       .receivers = p->lanes.lanes[l].rails,
                                       .receiver_count = p->lanes.lanes[l].count};

            status = find_bundle(p, &rails, &p->bundle[l]);
        }
    }
    return status;
}

/* Walks all entries in task order, counting them first and filling them in the second
 * call. Task order within a bundle is what find_parent() and entry_at() search by. */
static void walk_entries(parts_t *p, int64_t *fill)
{
    const xm_plan_t *plan = p->s->plan;

    for (int64_t t = 0; t < plan->task_count; ++t) {
        const xm_lane_range_t *range = &p->lanes.by_class[p->s->classes->class_of[t]];
        int64_t size = plan->tensors[plan->tasks[t].tensor].element_size;

        for (int64_t l = range->first; l < range->end; ++l) {
            const xm_lane_t *lane = &p->lanes.lanes[l];
            int64_t stream = 2 * p->bundle[l] + (lane->receiver >= 0);
            const entry_t entry = {t, xm_lane_part(&p->lanes, plan, lane, t), p->bytes[stream],
                                   lane->receiver};

            if (entry.part.first == entry.part.end) {
                continue;
            }
            if (p->entries != NULL) {
                p->entries[fill[stream]] = entry;
                p->bytes[stream] += (entry.part.end - entry.part.first) * size;
            }
            ++fill[stream];
        }
    }
}

/* Lists what each bundle consists of, with the offset of every task's first byte in it. */
static xm_status_t list_entries(parts_t *p)
{
    size_t streams = 2 * (size_t)p->count;
    int64_t *fill = calloc(streams + 1, sizeof(*fill));
    int64_t next = 0;
    xm_status_t status = XM_OK;

    p->first = malloc((streams + 1) * sizeof(*p->first));
    p->bytes = calloc(streams + 1, sizeof(*p->bytes));
    if (fill == NULL || p->first == NULL || p->bytes == NULL) {
        status = no_memory(p);
        goto free_all;
    }
    walk_entries(p, fill);
    /* Counts become places: each stream's entries follow those of the one before. */
    for (size_t i = 0; i < streams; ++i) {
        p->first[i] = next;
        next += fill[i];
        fill[i] = p->first[i];
    }
    p->first[streams] = next;
    p->entries = malloc(((size_t)next + 1) * sizeof(*p->entries));
    if (p->entries == NULL) {
        status = no_memory(p);
        goto free_all;
    }
    walk_entries(p, fill);
    for (int64_t d = 0; d < p->count; ++d) {
        p->demands[d].bytes = p->bytes[2 * d] + p->bytes[2 * d + 1];
    }

free_all:
    free(fill);
    return status;
}

/*
 * Limits the chunks of relayed tasks: a chunk should not be longer than what a relay
 * waits for, but a short piece left over between two cuts must not turn all the rest into
 * chunks of a few bytes.
 */
static void set_part_chunks(parts_t *p, const xm_hop_t *hops, int64_t count, int64_t *shortest)
{
    for (int64_t d = 0; d < p->count; ++d) {
        shortest[d] = INT64_MAX;
    }
    for (int64_t i = 0; i < count; ++i) {
        int64_t length = hops[i].end - hops[i].first;

        if (hops[i].parent >= 0 && p->way->message == 0 && p->grain[hops[i].demand] == INT64_MAX &&
            length < shortest[hops[i].demand]) {
            shortest[hops[i].demand] = length;
        }
    }
    for (int64_t d = 0; d < p->count; ++d) {
        int64_t bytes = shortest[d] > XM_SMALLEST_CHUNK ? shortest[d] : XM_SMALLEST_CHUNK;

        for (int64_t e = p->first[2 * d]; e < p->first[2 * d + 2]; ++e) {
            xm_scheduling_set_chunk(p->s, p->emitter->builder, p->entries[e].task, bytes);
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
    int64_t low = parent->first_sent, high = parent->end_sent;

    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        const xm_transfer_t *transfer = &transfers[p->sent[middle]];

        if (transfer->task < task || (transfer->task == task && transfer->first <= element)) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return p->sent[low];
}

/* The last entry of a stream that starts at or before a byte. */
static int64_t entry_at(const parts_t *p, int64_t stream, int64_t byte)
{
    int64_t low = p->first[stream], high = p->first[stream + 1];

    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;

        if (p->entries[middle].offset <= byte) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* A transfer to one rank. */
static xm_status_t append_single(parts_t *p, xm_transfer_t *transfer, int receiver)
{
    xm_builder_t *builder = p->emitter->builder;
    xm_status_t status = xm_builder_route(builder, 1, &receiver, &(int){-1}, &transfer->route);

    return status < 0 ? status : xm_builder_append(builder, transfer, NULL);
}

static int compare_arrivals(const void *a, const void *b)
{
    const arrival_t *x = a, *y = b;

    if (x->ranks[x->head] != y->ranks[y->head]) {
        return x->ranks[x->head] < y->ranks[y->head] ? -1 : 1;
    }
    return (x->transfer > y->transfer) - (x->transfer < y->transfer);
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

    if (arrived->count == arrived->capacity) {
        int64_t grown = arrived->capacity > 0 ? 2 * arrived->capacity : 16;
        arrival_t *at = realloc(arrived->at, (size_t)grown * sizeof(*at));

        if (at == NULL) {
            return no_memory(p);
        }
        arrived->at = at;
        arrived->capacity = grown;
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
    /* The last windows are ever shorter, as nothing goes on beside what is passed on after them. */
    double window = heads > 1 ? fmin(share / WINDOWS, left / LAST_WINDOWS) : share / WINDOWS;
    double most = fmax(heads > 1 ? window : share / p->turns, XM_SMALLEST_CHUNK);
    bool even = (double)arrived->bytes >= window * inner->count &&
                (double)arrived->most * inner->count <= UNEVEN * (double)arrived->bytes;

    if ((double)p->waiting[rank] > (heads > 1 ? 0.875 : 0.97) * most || (heads == 1 && even)) {
        xm_status_t status = pass_on(p, host);

        if (status < 0) {
            return status;
        }
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
static xm_status_t choose_receiver(parts_t *p, const entry_t *entry, int rail,
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
            p->way->message == 0) {
            transfer->end = transfer->first + room / size;
        }
        if (status == XM_OK) {
            status = note_arrival(p, &inner, head, (transfer->end - transfer->first) * size);
        }
    }
    xm_chain_take(p->emitter, &inner, head, (transfer->end - transfer->first) * size);
    *receiver = inner.ranks[head];
    return status;
}

/* Appends a transfer between hosts. */
static xm_status_t append_sent(parts_t *p, xm_transfer_t *transfer, int receiver)
{
    if (p->sent_count == p->sent_capacity) {
        int64_t grown = p->sent_capacity > 0 ? 2 * p->sent_capacity : 256;
        int64_t *at = realloc(p->sent, (size_t)grown * sizeof(*at));

        if (at == NULL) {
            return no_memory(p);
        }
        p->sent = at;
        p->sent_capacity = grown;
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
static xm_status_t emit_entry(parts_t *p, const piece_t *piece, const entry_t *entry,
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
        status = choose_receiver(p, entry, piece->hop->receiver, &transfer, &receiver);
        /* The count lets later picks spread the work over the devices of the sending rail. */
        p->emitter->sent[transfer.sender] += (transfer.end - transfer.first) * size;
        if (status == XM_OK) {
            status = append_sent(p, &transfer, receiver);
        }
        part.first = transfer.end;
    }
    return status;
}

/* Where a byte of a bundle lies in one of its streams, which advance together. */
static int64_t stream_byte(const parts_t *p, int64_t stream, int64_t byte)
{
    int64_t all = p->demands[stream / 2].bytes;

    return p->bytes[stream] == all ? byte : (int64_t)((__int128)byte * p->bytes[stream] / all);
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
             status == XM_OK && e < p->first[stream + 1] && p->entries[e].offset < part.end; ++e) {
            status = emit_entry(p, &part, &p->entries[e], parent);
        }
    }
    piece->end_sent = p->sent_count;
    return status;
}

/* True when some receivers of a bundle get it from neighbours. */
static bool is_wide(const parts_t *p, int64_t bundle)
{
    const xm_class_t *classes = p->s->classes->classes;

    for (int64_t e = p->first[2 * bundle]; e < p->first[2 * bundle + 1]; ++e) {
        const xm_class_t *class = &classes[p->s->classes->class_of[p->entries[e].task]];

        if (class->remote_count > class->remote_host_count) {
            return true;
        }
    }
    return false;
}

/*
 * Chooses how finely the hops of each bundle are cut. Where receivers pass on what they get, that
 * goes on beside the network's work: so of what comes by several rails side by side, each rail's
 * part of a window of time is a piece. Where rates differ, the faster end of a hop has time for
 * others while the hop lasts, between its messages: so these are pieces of their own.
 */
static void choose_grains(parts_t *p)
{
    for (int64_t d = 0; d < p->count; ++d) {
        double rate = INFINITY, bytes;

        for (int r = 0; r < p->demands[d].receiver_count; ++r) {
            rate = fmin(rate, xm_network_ingress(p->lanes.network, p->demands[d].receivers[r]));
        }
        bytes = p->way->message == 0 && is_wide(p, d) ? 1e-9 * p->window_ns * rate : INFINITY;
        bytes = fmax(bytes, XM_SMALLEST_CHUNK);
        p->grain[d] = bytes < (double)p->demands[d].bytes ? (int64_t)bytes : INT64_MAX;
        for (int r = 0; is_wide(p, d) && r < p->demands[d].receiver_count; ++r) {
            p->passed[p->demands[d].receivers[r]] += (double)p->bytes[2 * d];
            p->left[p->demands[d].receivers[r]] += (double)p->bytes[2 * d];
        }
    }
}

static int compare_pieces(const void *a, const void *b)
{
    const piece_t *x = *(const piece_t *const *)a, *y = *(const piece_t *const *)b;

    if (x->start_ns != y->start_ns) {
        return x->start_ns < y->start_ns ? -1 : 1;
    }
    return (x > y) - (x < y);
}

/* The number of pieces of a hop, whose cuts are the same in every hop of its bundle. */
static int64_t pieces_of(const parts_t *p, const xm_hop_t *hop)
{
    int64_t grain = p->grain[hop->demand];

    return (hop->end - 1) / grain - hop->first / grain + 1;
}

/* Cuts hops into pieces. A parent contains its child's range, so of its pieces one contains the
 * child's piece. */
static void cut_hops(const parts_t *p, const xm_hop_t *hops, int64_t count, int64_t *first_piece,
                     piece_t *pieces)
{
    int64_t next = 0;

    for (int64_t i = 0; i < count; ++i) {
        const xm_hop_t *hop = &hops[i];
        int64_t grain = p->grain[hop->demand], number = pieces_of(p, hop);
        double pace = xm_network_ingress(p->lanes.network, hop->receiver) * 1e-9;

        pace = fmin(pace, xm_network_egress(p->lanes.network, hop->sender) * 1e-9);
        first_piece[i] = next;
        for (int64_t k = 0; k < number; ++k) {
            int64_t at = hop->first / grain + k;
            piece_t *piece = &pieces[next++];

            *piece = (piece_t){.hop = hop, .first = hop->first, .end = hop->end, .parent = -1};
            if (k > 0) {
                piece->first = at * grain;
            }
            if (k + 1 < number) {
                piece->end = (at + 1) * grain;
            }
            if (hop->parent >= 0) {
                piece->parent = first_piece[hop->parent] + at - hops[hop->parent].first / grain;
            }
            piece->start_ns = hop->start_ns + (int64_t)((double)(piece->first - hop->first) / pace);
        }
    }
}

/* Parents come before children in the list of hops and start earlier. */
static xm_status_t emit_hops(parts_t *p, const xm_hop_t *hops, int64_t count)
{
    int64_t *first_piece = malloc(((size_t)count + 1) * sizeof(*first_piece)), total = 0;
    int64_t *shortest = malloc(((size_t)p->count + 1) * sizeof(*shortest));
    piece_t *pieces, **order;
    xm_status_t status;

    for (int64_t i = 0; i < count; ++i) {
        total += pieces_of(p, &hops[i]);
    }
    pieces = malloc(((size_t)total + 1) * sizeof(*pieces));
    order = malloc(((size_t)total + 1) * sizeof(*order));
    if (first_piece == NULL || shortest == NULL || pieces == NULL || order == NULL) {
        status = no_memory(p);
        goto free_all;
    }
    set_part_chunks(p, hops, count, shortest);
    cut_hops(p, hops, count, first_piece, pieces);
    for (int64_t i = 0; i < total; ++i) {
        order[i] = &pieces[i];
    }
    qsort(order, (size_t)total, sizeof(*order), compare_pieces);
    status = XM_OK;
    for (int64_t i = 0; status == XM_OK && i < total; ++i) {
        status = emit_piece(p, order[i], order[i]->parent < 0 ? NULL : &pieces[order[i]->parent]);
    }
    for (int h = 0; status == XM_OK && h < xm_network_hosts(p->emitter->network); ++h) {
        status = pass_on(p, h);
    }

free_all:
    free(order);
    free(pieces);
    free(shortest);
    free(first_piece);
    return status;
}

/* As many turns as leave few hops, where several rails or two ways into a host must keep in step
 * with each other. */
static int turns_for(const parts_t *p)
{
    const xm_network_t *network = p->emitter->network;
    bool several = p->way->single > 0 || xm_network_rails(network) > xm_network_hosts(network);
    int64_t turns = p->count > 0 ? HOPS_IN_TURNS / p->count : 0;

    turns = turns < MOST_TURNS ? turns : MOST_TURNS;
    turns = turns > LEAST_TURNS ? turns : LEAST_TURNS;
    for (int64_t d = 0; several && d < p->count; ++d) {
        if (is_wide(p, d)) {
            return (int)turns;
        }
    }
    return 0;
}

/* The demands point into the lanes' lists of rails, which outlive the call. */
xm_status_t xm_schedule_parts(xm_scheduling_t *s, const xm_parts_way_t *way,
                              xm_transfer_emitter_t *emitter)
{
    parts_t p = {.s = s, .way = way, .emitter = emitter};
    xm_openshop_params_t params = {.seed = s->params->seed};
    xm_problem_t problem = {0};
    xm_hop_t *hops = NULL;
    int64_t count = 0, makespan;
    xm_status_t status =
        xm_lanes_create(s->plan, s->params->network, s->classes, way->single, &p.lanes);

    if (status == XM_OK) {
        status = bundle_lanes(&p);
    }
    if (status == XM_OK) {
        status = list_entries(&p);
    }
    if (status == XM_OK) {
        params.turns = turns_for(&p);
        params.most_bytes = way->message;
    }
    if (status == XM_OK && p.count > 0) {
        problem.network = p.lanes.network;
        problem.demands = p.demands;
        problem.count = p.count;
        status = xm_schedule_openshop(&problem, &params, &hops, &count, &makespan);
    }
    if (status == XM_OK && p.count > 0) {
        p.grain = malloc((size_t)p.count * sizeof(*p.grain));
        p.arrived = calloc((size_t)xm_network_hosts(emitter->network), sizeof(*p.arrived));
        p.waiting = calloc((size_t)xm_network_ranks(emitter->network), sizeof(*p.waiting));
        p.passed = calloc(2 * (size_t)xm_network_rails(emitter->network), sizeof(*p.passed));
        p.left = p.passed + xm_network_rails(emitter->network);
        p.window_ns = (double)makespan / WINDOWS;
        status = p.grain == NULL || p.arrived == NULL || p.waiting == NULL || p.passed == NULL
                     ? no_memory(&p)
                     : XM_OK;
    }
    if (status == XM_OK && p.count > 0) {
        p.turns = params.turns;
        choose_grains(&p);
        status = emit_hops(&p, hops, count);
    }
    for (int h = 0; p.arrived != NULL && h < xm_network_hosts(emitter->network); ++h) {
        free(p.arrived[h].at);
    }
    free(p.sent);
    free(p.arrived);
    free(p.waiting);
    free(p.passed);
    free(p.grain);
    free(hops);
    free(p.bundle);
    xm_lanes_clear(&p.lanes);
    free(p.bytes);
    free(p.first);
    free(p.entries);
    free(p.table);
    free(p.demands);
    return status;
}
