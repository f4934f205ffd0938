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
#include "resharding/plan/strategy_chain.h"

/* Of the whole time, which a piece takes at most. */
enum { PIECES = 100 };

/*
 * For the network, lanes with the same holding rails and the same receiving rails are one
 * amount of data, whichever devices are behind it: a *bundle*. openshop cuts bundles;
 * here the cuts are turned into transfers of tasks.
 */

/* Elements of a task in a bundle, for all remote receivers or for one. */
typedef struct {
    int64_t task;
    xm_part_t part;
    int64_t offset; /* of its first byte in the bundle */
    int receiver;   /* or −1 */
} entry_t;

/* Bytes [first, end) of a bundle on a hop, and the place of their transfers, for the hops that
 * pass them on. */
typedef struct {
    const xm_hop_t *hop;
    int64_t first, end;
    int64_t parent; /* piece that contains it, or −1 */
    int64_t start_ns;
    int64_t first_transfer, end_transfer;
} piece_t;

typedef struct {
    xm_scheduling_t *s;
    xm_transfer_emitter_t *emitter;
    xm_demand_t *demands; /* by bundle */
    int64_t count, capacity;
    int64_t *table; /* open addressing by the rails' lists: bundle + 1 */
    int64_t table_size;
    entry_t *entries; /* by bundle, then by task */
    int64_t *first;   /* by bundle: its first entry; one more than bundles */
    int64_t *bundle;  /* by class and remote receiver (each) or lane: its bundle */
    int64_t *grain;   /* by bundle: pieces are cut at multiples of so many bytes */
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

/* With send_recv every receiver is served by itself, so each is an entry of its own. */
static bool is_each(const parts_t *p)
{
    return p->s->asked == XM_STRATEGY_SEND_RECV;
}

/* The number of bundles that a class belongs to: one for each of its lanes, or of its remote
 * receivers. */
static int64_t bundles_of(const parts_t *p, int64_t class)
{
    const xm_lane_range_t *lanes = &p->s->lanes.by_class[class];

    return is_each(p) ? p->s->classes->classes[class].remote_count : lanes->end - lanes->first;
}

/* Finds the bundles of all classes. Classes that differ only in devices share one, so the
 * scheduler sees fewer demands than there are classes. */
static xm_status_t bundle_classes(parts_t *p)
{
    const xm_classes_t *classes = p->s->classes;
    const xm_lanes_t *lanes = &p->s->lanes;
    int64_t room = 1, next = 0;
    xm_status_t status = XM_OK;

    for (int64_t k = 0; k < classes->count; ++k) {
        room += bundles_of(p, k);
    }
    p->bundle = malloc((size_t)room * sizeof(*p->bundle));
    if (p->bundle == NULL) {
        return no_memory(p);
    }
    for (int64_t k = 0; status == XM_OK && k < classes->count; ++k) {
        const xm_class_t *class = &classes->classes[k];
        xm_demand_t rails = {.holders = lanes->holders[k].rails,
                             .holder_count = lanes->holders[k].count,
                             .receiver_count = is_each(p) ? 1 : class->remote_host_count};

        for (int64_t i = 0; status == XM_OK && i < bundles_of(p, k); ++i) {
            rails.receivers = is_each(p) ? &lanes->rail_of[class->remote[i]]
                                         : lanes->lanes[lanes->by_class[k].first + i].rails;
            status = find_bundle(p, &rails, &p->bundle[next++]);
        }
    }
    return status;
}

/* Walks all entries in task order, counting them first and filling them in the second
 * call. Task order within a bundle is what find_parent() and entry_at() search by. */
static void walk_entries(parts_t *p, const int64_t *class_bundle, int64_t *fill)
{
    const xm_plan_t *plan = p->s->plan;
    const xm_lanes_t *lanes = &p->s->lanes;

    for (int64_t t = 0; t < plan->task_count; ++t) {
        int64_t class = p->s->classes->class_of[t];
        const int64_t *bundle = p->bundle + class_bundle[class];
        int64_t size = plan->tensors[plan->tasks[t].tensor].element_size;

        for (int64_t i = 0; i < bundles_of(p, class); ++i) {
            const xm_lane_t *lane = &lanes->lanes[lanes->by_class[class].first + i];
            entry_t entry = {t, {0, plan->tasks[t].elements}, p->demands[bundle[i]].bytes, -1};

            if (is_each(p)) {
                entry.receiver = p->s->classes->classes[class].remote[i];
            } else {
                entry.part = xm_lane_part(lanes, plan, lane, t);
            }
            if (entry.part.first == entry.part.end) {
                continue;
            }
            if (p->entries != NULL) {
                p->entries[fill[bundle[i]]] = entry;
                p->demands[bundle[i]].bytes += (entry.part.end - entry.part.first) * size;
            }
            ++fill[bundle[i]];
        }
    }
}

/* Lists what each bundle consists of, with the offset of every task's first byte in it. */
static xm_status_t list_entries(parts_t *p)
{
    const xm_classes_t *classes = p->s->classes;
    int64_t *class_bundle = malloc(((size_t)classes->count + 1) * sizeof(*class_bundle));
    int64_t *fill = calloc((size_t)p->count + 1, sizeof(*fill));
    int64_t next = 0;
    xm_status_t status = XM_OK;

    p->first = malloc(((size_t)p->count + 1) * sizeof(*p->first));
    if (class_bundle == NULL || fill == NULL || p->first == NULL) {
        status = no_memory(p);
        goto free_all;
    }
    for (int64_t k = 0; k < classes->count; ++k) {
        class_bundle[k] = next;
        next += bundles_of(p, k);
    }
    walk_entries(p, class_bundle, fill);
    /* Counts become places: each bundle's entries follow those of the one before. */
    next = 0;
    for (int64_t d = 0; d < p->count; ++d) {
        p->first[d] = next;
        next += fill[d];
        fill[d] = p->first[d];
    }
    p->first[p->count] = next;
    p->entries = malloc(((size_t)next + 1) * sizeof(*p->entries));
    if (p->entries == NULL) {
        status = no_memory(p);
        goto free_all;
    }
    walk_entries(p, class_bundle, fill);

free_all:
    free(fill);
    free(class_bundle);
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

        if (hops[i].parent >= 0 && p->grain[hops[i].demand] == INT64_MAX &&
            length < shortest[hops[i].demand]) {
            shortest[hops[i].demand] = length;
        }
    }
    for (int64_t d = 0; d < p->count; ++d) {
        int64_t bytes = shortest[d] > XM_SMALLEST_CHUNK ? shortest[d] : XM_SMALLEST_CHUNK;

        for (int64_t e = p->first[d]; e < p->first[d + 1]; ++e) {
            xm_scheduling_set_chunk(p->s, p->emitter->builder, p->entries[e].task, bytes);
        }
    }
}

/*
 * The transfer among those of a parent's hop that is of this task; they are in task
 * order, so the search is by halves. The parent contains the child's range, so there is
 * one.
 */
static int64_t find_parent(const xm_builder_t *builder, const piece_t *parent, int64_t task)
{
    int64_t low = parent->first_transfer, high = parent->end_transfer;

    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;

        if (builder->transfers[middle].task <= task) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Makes the route inside the receiving host: the device that gets the data, then its
 * neighbours. */
static xm_status_t part_route(xm_transfer_emitter_t *emitter, const xm_class_t *class,
                              const entry_t *entry, int rail, int64_t bytes, int *route)
{
    int at = 1;

    /* With send_recv the route is the single receiver. */
    emitter->ranks[0] = entry->receiver;
    emitter->parents[0] = -1;
    if (entry->receiver < 0) {
        xm_inner_t inner = xm_chain_inner(emitter, class, rail);

        inner.bytes = bytes;
        inner.star = true;
        at = xm_chain_host(emitter, &inner, 0, -1);
    }
    return xm_builder_route(emitter->builder, at, emitter->ranks, emitter->parents, route);
}

/* The last entry of a bundle that starts at or before a byte. */
static int64_t entry_at(const parts_t *p, int64_t bundle, int64_t byte)
{
    int64_t low = p->first[bundle], high = p->first[bundle + 1];

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

/*
 * Makes the transfer of one entry's part of a piece. Cuts between elements are rounded
 * down, on both sides of a cut alike, so that parts stay contiguous and a relay's part
 * stays inside what it was brought.
 */
static xm_status_t emit_entry(parts_t *p, const piece_t *piece, const entry_t *entry,
                              const piece_t *parent)
{
    const xm_plan_t *plan = p->s->plan;
    const xm_class_t *class = &p->s->classes->classes[p->s->classes->class_of[entry->task]];
    xm_builder_t *builder = p->emitter->builder;
    int64_t size = plan->tensors[plan->tasks[entry->task].tensor].element_size;
    xm_transfer_t transfer = {
        .task = entry->task, .parent = -1, .first = entry->part.first, .end = entry->part.end};
    xm_status_t status;

    /* The entry's part of the piece, in elements: all of it where the piece covers it. */
    if (piece->first > entry->offset) {
        transfer.first += (piece->first - entry->offset) / size;
    }
    if (piece->end < entry->offset + (entry->part.end - entry->part.first) * size) {
        transfer.end = entry->part.first + (piece->end - entry->offset) / size;
    }
    /* A cut inside one element leaves nothing for this part; the other side of the cut
     * has the element. */
    if (transfer.first >= transfer.end) {
        return XM_OK;
    }
    status = part_route(p->emitter, class, entry, piece->hop->receiver,
                        (transfer.end - transfer.first) * size, &transfer.route);
    if (status < 0) {
        return status;
    }
    /* A relay sends from the device that the parent's route begins with, for that one has
     * the data first. */
    if (parent != NULL) {
        transfer.parent = find_parent(builder, parent, entry->task);
        transfer.sender =
            xm_builder_route_of(builder, &builder->transfers[transfer.parent])->ranks[0];
    } else {
        transfer.sender = xm_transfer_emitter_pick_rail(p->emitter, class, piece->hop->sender);
    }
    /* The count lets later picks spread the work over the devices of the sending rail. */
    p->emitter->sent[transfer.sender] += (transfer.end - transfer.first) * size;
    return xm_builder_append(builder, &transfer, NULL);
}

/* Makes the transfers of a piece and notes where they are, for the pieces that relay it. */
static xm_status_t emit_piece(parts_t *p, piece_t *piece, const piece_t *parent)
{
    int64_t bundle = piece->hop->demand;
    xm_status_t status = XM_OK;

    piece->first_transfer = p->emitter->builder->transfer_count;
    for (int64_t e = entry_at(p, bundle, piece->first);
         status == XM_OK && e < p->first[bundle + 1] && p->entries[e].offset < piece->end; ++e) {
        status = emit_entry(p, piece, &p->entries[e], parent);
    }
    piece->end_transfer = p->emitter->builder->transfer_count;
    return status;
}

/*
 * Chooses how finely the hops of each bundle are cut. Where its receivers pass it on inside their
 * hosts, one device at a time does so for a piece; so that all take their turns and what comes in
 * by several rails is passed on side by side, a piece takes a small part of the whole time.
 */
static void choose_grains(parts_t *p, int64_t makespan)
{
    const xm_network_t *network = p->s->lanes.network;
    double port = xm_network_host_bandwidth(network);

    for (int64_t d = 0; d < p->count; ++d) {
        double rate = INFINITY, bytes;
        int most = 1;

        for (int64_t e = p->first[d]; e < p->first[d + 1] && p->entries[e].receiver < 0; ++e) {
            const xm_class_t *class =
                &p->s->classes->classes[p->s->classes->class_of[p->entries[e].task]];

            for (int h = 0; h < class->remote_host_count; ++h) {
                int devices = class->remote_first[h + 1] - class->remote_first[h];

                most = devices > most ? devices : most;
            }
        }
        for (int r = 0; r < p->demands[d].receiver_count; ++r) {
            rate = fmin(rate, xm_network_ingress(network, p->demands[d].receivers[r]));
        }
        bytes = 1e-9 * (double)makespan / PIECES / ((most - 1) / port + 1 / rate);
        bytes = fmax(fmin(bytes, (double)p->s->largest_chunk), XM_SMALLEST_CHUNK);
        p->grain[d] = most > 1 && bytes < (double)p->demands[d].bytes ? (int64_t)bytes : INT64_MAX;
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
        double pace = xm_network_ingress(p->s->lanes.network, hop->receiver) * 1e-9;

        pace = fmin(pace, xm_network_egress(p->s->lanes.network, hop->sender) * 1e-9);
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

free_all:
    free(order);
    free(pieces);
    free(shortest);
    free(first_piece);
    return status;
}

/* The demands point into the lanes' lists of rails, which outlive the call. */
xm_status_t xm_schedule_parts(xm_scheduling_t *s, xm_transfer_emitter_t *emitter)
{
    parts_t p = {.s = s, .emitter = emitter};
    xm_openshop_params_t params = {.seed = s->params->seed};
    xm_problem_t problem = {.network = s->lanes.network};
    xm_hop_t *hops = NULL;
    int64_t count = 0, makespan;
    xm_status_t status = bundle_classes(&p);

    if (status == XM_OK) {
        status = list_entries(&p);
    }
    if (status == XM_OK && p.count > 0) {
        problem.demands = p.demands;
        problem.count = p.count;
        status = xm_schedule_openshop(&problem, &params, &hops, &count, &makespan);
    }
    if (status == XM_OK && p.count > 0) {
        p.grain = malloc((size_t)p.count * sizeof(*p.grain));
        status = p.grain == NULL ? no_memory(&p) : XM_OK;
    }
    if (status == XM_OK && p.count > 0) {
        choose_grains(&p, makespan);
        status = emit_hops(&p, hops, count);
    }
    free(p.grain);
    free(hops);
    free(p.bundle);
    free(p.first);
    free(p.entries);
    free(p.table);
    free(p.demands);
    return status;
}
