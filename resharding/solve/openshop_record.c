/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records a schedule. The builders of openshop choose an order only; here every part gets
 * the earliest start behind what was recorded before on its two directions and behind the
 * arrival of what it relays. So each schedule that comes out is valid whatever the order,
 * and all builders share one notion of time, rounding and hops. Parts are cut where
 * demands end and where the parent's hops end.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "resharding/solve/openshop.h"

typedef struct {
    xm_hop_t hop;
    int64_t transfer;
    int64_t end;  /* of the hop, in the group's bytes */
    int64_t next; /* hop of the same transfer, or −1 */
    int64_t arrival_ns;
} record_t;

/* A transfer as far as it is recorded. */
typedef struct {
    int64_t head, tail; /* its hops; −1: none */
    int64_t source;     /* hop of its parent that it was last served from */
    int64_t member;     /* where the last part lies in the shop's `member` */
} progress_t;

struct xm_recorder {
    const xm_shop_t *shop;
    const xm_shop_transfers_t *transfers;
    record_t *record;
    int64_t count;
    size_t capacity;
    progress_t *progress;                /* by transfer */
    int64_t *egress_free, *ingress_free; /* by host */
    int64_t *up_free, *down_free;        /* by rack */
    int64_t *egress_last, *ingress_last; /* by host: hop last recorded; −1: none */
    int64_t makespan_ns, latency_ns;
    xm_arena_t arena; /* of all but the records */
};

/* The shop and the transfers must outlive the recorder, which points to both. */
xm_status_t xm_recorder_create(const xm_shop_t *shop, const xm_shop_transfers_t *transfers,
                               xm_recorder_t **recorder)
{
    size_t hosts = (size_t)shop->hosts, count = (size_t)transfers->count + 1;
    size_t racks = (size_t)xm_network_racks(shop->network);
    xm_recorder_t *created = calloc(1, sizeof(*created));

    XM_NEED_MEMORY(created, "a schedule");
    created->shop = shop;
    created->latency_ns = llround(xm_network_nic_latency(shop->network) * 1e9);
    created->transfers = transfers;
    created->progress = xm_arena_take(&created->arena, count * sizeof(*created->progress));
    created->egress_free = xm_arena_get(&created->arena, hosts, sizeof(int64_t));
    created->ingress_free = xm_arena_get(&created->arena, hosts, sizeof(int64_t));
    created->up_free = xm_arena_get(&created->arena, racks, sizeof(int64_t));
    created->down_free = xm_arena_get(&created->arena, racks, sizeof(int64_t));
    created->egress_last = xm_arena_take(&created->arena, hosts * sizeof(int64_t));
    created->ingress_last = xm_arena_take(&created->arena, hosts * sizeof(int64_t));
    if (created->arena.failed) {
        xm_recorder_destroy(created);
        return XM_NO_MEMORY("a schedule of %lld transfers", (long long)transfers->count);
    }
    memset(created->egress_last, -1, hosts * sizeof(int64_t));
    memset(created->ingress_last, -1, hosts * sizeof(int64_t));
    /* Members are searched from the start of the transfer's group; since parts come in
     * rising order, the search never goes back. */
    for (int64_t t = 0; t < transfers->count; ++t) {
        created->progress[t] =
            (progress_t){-1, -1, -1, shop->group[transfers->at[t].group].first_member};
    }
    *recorder = created;
    return XM_OK;
}

void xm_recorder_destroy(xm_recorder_t *recorder)
{
    if (recorder != NULL) {
        xm_arena_clear(&recorder->arena);
        free(recorder->record);
        free(recorder);
    }
}

/* The time of a hop on the uplinks that it uses; 0: it uses none. */
static int64_t uplink_ns(const xm_recorder_t *recorder, const xm_hop_t *hop)
{
    const xm_network_t *network = recorder->shop->network;
    double rate = xm_network_uplink_bandwidth(network);

    return rate > 0 && xm_network_rack_of(network, hop->sender) !=
                           xm_network_rack_of(network, hop->receiver)
               ? (int64_t)ceil((double)(hop->end - hop->first) * 1e9 / rate)
               : 0;
}

/* Sets the times of a hop whose bytes are known. It arrives when both its directions are
 * done with it, and each direction is free again when it is done itself. */
static void place(xm_recorder_t *recorder, record_t *record)
{
    const xm_network_t *network = recorder->shop->network;
    uint64_t bytes = (uint64_t)(record->hop.end - record->hop.first);
    int sender = record->hop.sender, receiver = record->hop.receiver;
    int64_t egress = record->hop.start_ns + xm_network_egress_ns(network, sender, bytes);
    int64_t ingress = record->hop.start_ns + xm_network_ingress_ns(network, receiver, bytes);
    int64_t uplink = uplink_ns(recorder, &record->hop);

    if (uplink > 0) {
        uplink += record->hop.start_ns;
        recorder->up_free[xm_network_rack_of(network, sender)] = uplink;
        recorder->down_free[xm_network_rack_of(network, receiver)] = uplink;
    }
    recorder->egress_free[sender] = egress;
    recorder->ingress_free[receiver] = ingress;
    record->arrival_ns = egress > ingress ? egress : ingress;
    record->arrival_ns = uplink > record->arrival_ns ? uplink : record->arrival_ns;
    if (record->arrival_ns > recorder->makespan_ns) {
        recorder->makespan_ns = record->arrival_ns;
    }
}

/*
 * Lets the last hop go on when nothing else used its two directions since: then it only
 * takes them longer, and one hop of a message's overhead is saved. A hop that others
 * relay stays as it is, because it arrives as a whole and a longer one would arrive
 * later; so does one over uplinks, which others may have used since.
 */
static bool extend(xm_recorder_t *recorder, int64_t transfer, int64_t parent, int64_t demand,
                   int64_t bytes)
{
    const xm_shop_transfer_t *of = &recorder->transfers->at[transfer];
    int64_t last = recorder->egress_last[of->sender];
    record_t *record = last >= 0 ? &recorder->record[last] : NULL;

    if (of->feeds || last < 0 ||
        record->hop.end - record->hop.first + bytes > recorder->shop->most_bytes ||
        last != recorder->ingress_last[of->receiver] || record->transfer != transfer ||
        record->hop.parent != parent || record->hop.demand != demand ||
        uplink_ns(recorder, &record->hop) > 0) {
        return false;
    }
    record->hop.end += bytes;
    record->end += bytes;
    place(recorder, record);
    return true;
}

/* Appends a hop to the record and to the list of its transfer, which relays walk to find
 * their source. */
static xm_status_t append(xm_recorder_t *recorder, int64_t transfer, record_t *record)
{
    progress_t *progress = &recorder->progress[transfer];
    int sender = record->hop.sender, receiver = record->hop.receiver;

    XM_NEED_MEMORY(XM_ARRAY_ROOM(recorder->record, recorder->capacity, recorder->count),
                   "%lld hops", (long long)recorder->count + 1);
    place(recorder, record);
    /* The hop is the last one on both of its directions, which extend() looks for. */
    recorder->record[recorder->count] = *record;
    if (progress->tail >= 0) {
        recorder->record[progress->tail].next = recorder->count;
    } else {
        progress->head = recorder->count;
    }
    progress->tail = recorder->count;
    recorder->egress_last[sender] = recorder->count;
    recorder->ingress_last[receiver] = recorder->count;
    ++recorder->count;
    return XM_OK;
}

/* The parent's hop that brought the byte at `position`; −1 when it is not recorded yet.
 * Each child keeps its place, because its own parts come in rising order too. */
static int64_t find_source(xm_recorder_t *recorder, int64_t transfer, int64_t position)
{
    progress_t *progress = &recorder->progress[transfer];
    int64_t source = progress->source >= 0
                         ? progress->source
                         : recorder->progress[recorder->transfers->at[transfer].parent].head;

    while (source >= 0 && recorder->record[source].end <= position) {
        source = recorder->record[source].next;
    }
    if (source >= 0) {
        progress->source = source;
    }
    return source;
}

/* Cuts a part into hops and gives each its start. Every pass moves `position` to the next
 * end of a demand, of a parent's hop, or of the part. */
xm_status_t xm_recorder_add(xm_recorder_t *recorder, int64_t transfer, int64_t first, int64_t bytes)
{
    const xm_shop_t *shop = recorder->shop;
    const xm_shop_transfer_t *of = &recorder->transfers->at[transfer];
    progress_t *progress = &recorder->progress[transfer];
    int64_t position = of->first + first, end = position + bytes;
    xm_status_t status = XM_OK;

    while (status == XM_OK && position < end) {
        int64_t demand, part_end, offset, parent = -1, ready = 0;

        /* The demand at this position; positions rise, so the member only moves forward. */
        for (;; ++progress->member) {
            demand = shop->member[progress->member];
            offset = shop->offset[progress->member];
            /* It also ends with the parent's hop, for the next bytes arrive at another
             * time. */
            part_end = offset + shop->problem->demands[demand].bytes;
            if (position < part_end) {
                break;
            }
        }
        /* A hop ends with its demand at the latest, as a hop belongs to one demand. */
        part_end = part_end < end ? part_end : end;
        if (part_end - position > shop->most_bytes) {
            part_end = position + shop->most_bytes;
        }
        if (of->parent >= 0) {
            parent = find_source(recorder, transfer, position);
            if (parent < 0) {
                return xm_error_set(XM_ERR_INTERNAL, "host %d relays what it has not received",
                                    of->sender);
            }
            ready = recorder->record[parent].arrival_ns + recorder->latency_ns;
            part_end =
                recorder->record[parent].end < part_end ? recorder->record[parent].end : part_end;
        }
        /* A relayed hop may extend the one before only when both came by the same hop of
         * the parent. */
        if (!extend(recorder, transfer, parent, demand, part_end - position)) {
            record_t record = {.transfer = transfer, .end = part_end, .next = -1};
            /* Otherwise a hop of its own starts when both directions are free and its
             * bytes are there. */
            int64_t start = xm_recorder_free_for(recorder, of->sender, of->receiver);

            start = ready > start ? ready : start;
            record.hop = (xm_hop_t){demand, position - offset, part_end - offset,
                                    parent, of->sender,        of->receiver,
                                    start};
            status = append(recorder, transfer, &record);
        }
        position = part_end;
    }
    return status;
}

int64_t xm_recorder_egress_free(const xm_recorder_t *recorder, int host)
{
    return recorder->egress_free[host];
}

int64_t xm_recorder_ingress_free(const xm_recorder_t *recorder, int host)
{
    return recorder->ingress_free[host];
}

int64_t xm_recorder_free_for(const xm_recorder_t *recorder, int sender, int receiver)
{
    const xm_network_t *network = recorder->shop->network;
    int from = xm_network_rack_of(network, sender), to = xm_network_rack_of(network, receiver);
    int64_t egress = recorder->egress_free[sender], ingress = recorder->ingress_free[receiver];
    int64_t start = egress > ingress ? egress : ingress;

    if (from != to) {
        start = recorder->up_free[from] > start ? recorder->up_free[from] : start;
        start = recorder->down_free[to] > start ? recorder->down_free[to] : start;
    }
    return start;
}

/* Tells a builder how much of a relayed transfer can follow, without recording anything. */
void xm_recorder_source(xm_recorder_t *recorder, int64_t transfer, int64_t first, int64_t *ready_ns,
                        int64_t *bytes)
{
    int64_t position = recorder->transfers->at[transfer].first + first;
    int64_t source = find_source(recorder, transfer, position);

    *bytes = source >= 0 ? recorder->record[source].end - position : 0;
    *ready_ns =
        source >= 0 ? recorder->record[source].arrival_ns + recorder->latency_ns : INT64_MAX;
}

int64_t xm_recorder_makespan(const xm_recorder_t *recorder)
{
    return recorder->makespan_ns;
}

typedef struct {
    int64_t start_ns, index;
} order_t;

/* The recording order as second key keeps parents before children that start at the same
 * time. */
static int compare_orders(const void *a, const void *b)
{
    const order_t *left = a, *right = b;

    XM_ORDER_BY(left->start_ns, right->start_ns);
    return xm_order(left->index, right->index);
}

/* Hands the hops over sorted by start, with parents renumbered. A parent starts before
 * its child, so it also comes earlier in the sorted list. */
xm_status_t xm_recorder_take(xm_recorder_t *recorder, xm_hop_t **hops, int64_t *count)
{
    size_t size = (size_t)recorder->count + 1;
    order_t *order = malloc(size * sizeof(*order));
    int64_t *place_of = malloc(size * sizeof(*place_of));
    xm_hop_t *taken = malloc(size * sizeof(*taken));

    if (order == NULL || place_of == NULL || taken == NULL) {
        free(taken);
        free(place_of);
        free(order);
        return XM_NO_MEMORY("%lld hops", (long long)recorder->count);
    }
    for (int64_t i = 0; i < recorder->count; ++i) {
        order[i] = (order_t){recorder->record[i].hop.start_ns, i};
    }
    qsort(order, (size_t)recorder->count, sizeof(*order), compare_orders);
    for (int64_t i = 0; i < recorder->count; ++i) {
        place_of[order[i].index] = i;
    }
    for (int64_t i = 0; i < recorder->count; ++i) {
        /* Parents are named by their place in the sorted list from here on. */
        taken[i] = recorder->record[order[i].index].hop;
        taken[i].parent = taken[i].parent >= 0 ? place_of[taken[i].parent] : -1;
    }
    *hops = taken;
    *count = recorder->count;
    free(place_of);
    free(order);
    return XM_OK;
}
