/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts openshop to work for tasks: bundles go to the scheduler as demands, and the hops
 * that come back are turned into transfers of the tasks in them. openshop knows hosts and
 * bytes only, so this file chooses ranks, cuts between elements, and finds for each
 * relayed part the transfer that brings it.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "resharding/plan/schedule_private.h"
#include "resharding/plan/strategy_chain.h"

/*
 * For the network, tasks with the same holding hosts and the same receiving hosts are one
 * amount of data, whichever devices are behind it: a *bundle*. openshop cuts bundles;
 * here the cuts are turned into transfers of tasks.
 */

/* A task in a bundle, for all remote receivers or for one. */
typedef struct {
    int64_t task;
    int64_t offset; /* of its first byte in the bundle */
    int receiver;   /* or −1 */
} entry_t;

/* The place of a hop's transfers, for the hops that pass its data on. */
typedef struct {
    int64_t first_transfer, end_transfer;
} emitted_t;

typedef struct {
    xm_scheduling_t *s;
    xm_transfer_emitter_t *emitter;
    xm_demand_t *demands; /* by bundle */
    int64_t count, capacity;
    int64_t *table; /* open addressing by the hosts' lists: bundle + 1 */
    int64_t table_size;
    entry_t *entries; /* by bundle, then by task */
    int64_t *first;   /* by bundle: its first entry; one more than bundles */
    int64_t *bundle;  /* by class and receiving host (each) or class: its bundle */
} parts_t;

static xm_status_t no_memory(const parts_t *p)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "no memory to schedule %" PRId64 " unit tasks in parts",
                        p->s->plan->task_count);
}

/* The same hosts in both roles give the same hash, whatever the bytes. */
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

/* Finds the bundle of these hosts, or makes it with no bytes yet. */
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

/* The number of bundles that a class belongs to: one for the class, or one for each of
 * its receiving hosts. */
static int64_t bundles_of(const parts_t *p, const xm_class_t *class)
{
    return is_each(p) ? class->remote_host_count : class->remote_host_count > 0;
}

/* Finds the bundles of all classes. Classes that differ only in devices share one, so the
 * scheduler sees fewer demands than there are classes. */
static xm_status_t bundle_classes(parts_t *p)
{
    const xm_classes_t *classes = p->s->classes;
    int64_t room = 1, next = 0;
    xm_status_t status = XM_OK;

    for (int64_t k = 0; k < classes->count; ++k) {
        room += bundles_of(p, &classes->classes[k]);
    }
    p->bundle = malloc((size_t)room * sizeof(*p->bundle));
    if (p->bundle == NULL) {
        return no_memory(p);
    }
    for (int64_t k = 0; status == XM_OK && k < classes->count; ++k) {
        const xm_class_t *class = &classes->classes[k];
        xm_demand_t hosts = {.holders = class->holder_hosts,
                             .holder_count = class->holder_host_count,
                             .receivers = class->remote_hosts,
                             .receiver_count = class->remote_host_count};

        for (int h = 0; status == XM_OK && h < bundles_of(p, class); ++h) {
            if (is_each(p)) {
                hosts.receivers = class->remote_hosts + h;
                hosts.receiver_count = 1;
            }
            status = find_bundle(p, &hosts, &p->bundle[next++]);
        }
    }
    return status;
}

/* Walks all entries in task order, counting them first and filling them in the second
 * call. Task order within a bundle is what find_parent() and entry_at() search by. */
static void walk_entries(parts_t *p, const int64_t *class_bundle, int64_t *fill)
{
    const xm_classes_t *classes = p->s->classes;

    for (int64_t t = 0; t < p->s->plan->task_count; ++t) {
        const xm_class_t *class = &classes->classes[classes->class_of[t]];
        const int64_t *bundle = p->bundle + class_bundle[classes->class_of[t]];
        int64_t bytes = xm_task_bytes(p->s->plan, t);

        for (int h = 0; h < bundles_of(p, class); ++h) {
            int first = is_each(p) ? class->remote_first[h] : 0;
            int end = is_each(p) ? class->remote_first[h + 1] : 1;

            for (int r = first; r < end; ++r) {
                if (p->entries != NULL) {
                    p->entries[fill[bundle[h]]] = (entry_t){t, p->demands[bundle[h]].bytes,
                                                            is_each(p) ? class->remote[r] : -1};
                    p->demands[bundle[h]].bytes += bytes;
                }
                ++fill[bundle[h]];
            }
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
        next += bundles_of(p, &classes->classes[k]);
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

        if (hops[i].parent >= 0 && length < shortest[hops[i].demand]) {
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
static int64_t find_parent(const xm_builder_t *builder, const emitted_t *parent, int64_t task)
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
                              const entry_t *entry, int host, int64_t bytes, int *route)
{
    int at = 1, low = 0, high = class->remote_host_count, count;

    /* With send_recv the route is the single receiver. */
    if (entry->receiver >= 0) {
        emitter->ranks[0] = entry->receiver;
        emitter->parents[0] = -1;
        return xm_builder_route(emitter->builder, at, emitter->ranks, emitter->parents, route);
    }
    while (low < high) {
        int middle = low + (high - low) / 2;

        if (class->remote_hosts[middle] < host) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    count = class->remote_first[low + 1] - class->remote_first[low];
    at = xm_chain_host(emitter, class->remote + class->remote_first[low], count, bytes, 0, -1);
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
 * Makes the transfer of one entry's part of a hop. Cuts between elements are rounded
 * down, on both sides of a cut alike, so that parts stay contiguous and a relay's part
 * stays inside what it was brought.
 */
static xm_status_t emit_entry(parts_t *p, const xm_hop_t *hop, const entry_t *entry,
                              const emitted_t *parent)
{
    const xm_plan_t *plan = p->s->plan;
    const xm_class_t *class = &p->s->classes->classes[p->s->classes->class_of[entry->task]];
    xm_builder_t *builder = p->emitter->builder;
    int64_t size = plan->tensors[plan->tasks[entry->task].tensor].element_size;
    int64_t elements = plan->tasks[entry->task].elements;
    xm_transfer_t transfer = {.task = entry->task, .parent = -1, .end = elements};
    xm_status_t status;

    /* The entry's part of the hop, in elements: all of the task where the hop covers it. */
    if (hop->first > entry->offset) {
        transfer.first = (hop->first - entry->offset) / size;
    }
    if (hop->end < entry->offset + elements * size) {
        transfer.end = (hop->end - entry->offset) / size;
    }
    /* A cut inside one element leaves nothing for this part; the other side of the cut
     * has the element. */
    if (transfer.first >= transfer.end) {
        return XM_OK;
    }
    status = part_route(p->emitter, class, entry, hop->receiver,
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
        transfer.sender =
            xm_transfer_emitter_pick(p->emitter, class->holders, class->holder_count, hop->sender);
    }
    /* The count lets later picks spread the work over the devices of the sending host. */
    p->emitter->sent[transfer.sender] += (transfer.end - transfer.first) * size;
    return xm_builder_append(builder, &transfer, NULL);
}

/* Makes the transfers of a hop and notes where they are, for the hops that relay it. */
static xm_status_t emit_hop(parts_t *p, const xm_hop_t *hop, emitted_t *own,
                            const emitted_t *parent)
{
    xm_status_t status = XM_OK;

    own->first_transfer = p->emitter->builder->transfer_count;
    for (int64_t e = entry_at(p, hop->demand, hop->first);
         status == XM_OK && e < p->first[hop->demand + 1] && p->entries[e].offset < hop->end; ++e) {
        status = emit_entry(p, hop, &p->entries[e], parent);
    }
    own->end_transfer = p->emitter->builder->transfer_count;
    return status;
}

/* Parents come before children in the list of hops, as a child starts later. */
static xm_status_t emit_hops(parts_t *p, const xm_hop_t *hops, int64_t count)
{
    emitted_t *emitted = malloc(((size_t)count + 1) * sizeof(*emitted));
    int64_t *shortest = malloc(((size_t)p->count + 1) * sizeof(*shortest));
    xm_status_t status = emitted == NULL || shortest == NULL ? no_memory(p) : XM_OK;

    if (status == XM_OK) {
        set_part_chunks(p, hops, count, shortest);
    }
    for (int64_t i = 0; status == XM_OK && i < count; ++i) {
        status = emit_hop(p, &hops[i], &emitted[i],
                          hops[i].parent < 0 ? NULL : &emitted[hops[i].parent]);
    }
    free(shortest);
    free(emitted);
    return status;
}

/* The demands point into the classes' host lists, which outlive the call. */
xm_status_t xm_schedule_parts(xm_scheduling_t *s, xm_transfer_emitter_t *emitter)
{
    parts_t p = {.s = s, .emitter = emitter};
    xm_openshop_params_t params = {.seed = s->params->seed};
    xm_problem_t problem = {.network = s->params->network};
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
    if (status == XM_OK) {
        status = emit_hops(&p, hops, count);
    }
    free(hops);
    free(p.bundle);
    free(p.first);
    free(p.entries);
    free(p.table);
    free(p.demands);
    return status;
}
