/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pipelined chains, which the broadcast and allgather strategies and the parts of
 * openshop are made of. A chain takes one NIC direction per host and chunk, and with many
 * chunks its time tends to that of one hop, which no tree can beat for long messages; a
 * tree would fork at a NIC and halve its rate.
 */
#include "resharding/plan/schedule_private.h"

#include <stdlib.h>

int xm_chain_head(const xm_transfer_emitter_t *emitter, const xm_inner_t *inner,
                  const int64_t *waiting)
{
    int head = -1;

    for (int i = 0; i < inner->count; ++i) {
        int rank = inner->ranks[i], best = head < 0 ? rank : inner->ranks[head];
        int64_t more = waiting != NULL ? waiting[best] - waiting[rank] : 0;

        if (xm_network_host_of(emitter->rails, rank) == inner->rail &&
            (head < 0 || more > 0 || (more == 0 && emitter->taken[rank] > emitter->taken[best]))) {
            head = i;
        }
    }
    return head;
}

void xm_chain_take(xm_transfer_emitter_t *emitter, const xm_inner_t *inner, int head, int64_t bytes)
{
    for (int i = 0; i < inner->count; ++i) {
        emitter->taken[inner->ranks[i]] += i == head ? 0 : bytes;
    }
}

int xm_chain_heads(const xm_transfer_emitter_t *emitter, const xm_inner_t *inner)
{
    int heads = 0;

    for (int i = 0; i < inner->count; ++i) {
        heads += xm_network_host_of(emitter->rails, inner->ranks[i]) == inner->rail;
    }
    return heads;
}

/* Writes the ranks of one host into the emitter's route at `at`: the head, fed by entry `parent`,
 * then the others as a chain. Returns the entry behind the last. */
static int chain_host(xm_transfer_emitter_t *emitter, const xm_inner_t *inner, int64_t bytes,
                      int at, int parent)
{
    int head = xm_chain_head(emitter, inner, NULL);

    xm_chain_take(emitter, inner, head, bytes);
    for (int i = 0; i < inner->count; ++i) {
        emitter->ranks[at + i] = inner->ranks[(head + i) % inner->count];
        emitter->parents[at + i] = i == 0 ? parent : at + i - 1;
    }
    return at + inner->count;
}

xm_inner_t xm_chain_inner(const xm_transfer_emitter_t *emitter, const xm_class_t *class, int rail)
{
    int host = xm_network_host_of_rail(emitter->network, rail), low = 0;

    XM_BISECT(int, i, low, class->remote_host_count, class->remote_hosts[i] < host);
    return (xm_inner_t){.ranks = class->remote + class->remote_first[low],
                        .count = class->remote_first[low + 1] - class->remote_first[low],
                        .rail = rail};
}

/*
 * Orders the receiving rails as a chain, as indices into the list of them: the
 * sender's rack first, then rack by rack, so that every uplink is crossed once; within a
 * rack cyclically after the sender, so that chains from several senders load
 * different relays, and chains over the same rails have the same order (their pipelines
 * then follow each other without gaps).
 */
static void order_rails(xm_transfer_emitter_t *emitter, const xm_chain_t *chain, int start)
{
    const xm_network_t *network = emitter->rails;
    int racks = xm_network_racks(network), rails = xm_network_hosts(network), count = chain->count;
    int rack = xm_network_rack_of(network, chain->sender_rail);

    for (int i = 0; i < count; ++i) {
        int index = (start + i) % count, rail = chain->rails[index];
        int64_t rack_key = (xm_network_rack_of(network, rail) - rack + racks) % racks;
        int64_t rail_key = (rail - chain->sender_rail + rails) % rails;

        /* The index in the lowest digits makes all keys distinct and comes back out of
         * the sorted key. */
        emitter->order[i] = racks == 1 ? index : (rack_key * rails + rail_key) * count + index;
    }
    if (racks > 1) {
        qsort(emitter->order, (size_t)count, sizeof(*emitter->order), xm_order_int64s);
        for (int i = 0; i < count; ++i) {
            emitter->order[i] %= count;
        }
    }
}

/* The place of the first rail behind the sender's, by halves. */
static int first_behind(const xm_chain_t *chain)
{
    int low = 0;

    XM_BISECT(int, i, low, chain->count, chain->rails[i] < chain->sender_rail);
    return low;
}

/* The route: the heads of the hosts in order, each with the chain of its own host behind it. */
static xm_status_t make_route(xm_transfer_emitter_t *emitter, const xm_chain_t *chain,
                              const xm_class_t *class, int64_t bytes, int *route)
{
    int at = 0, previous = -1;

    order_rails(emitter, chain, first_behind(chain));
    for (int i = 0; i < chain->count; ++i) {
        xm_inner_t inner = xm_chain_inner(emitter, class, chain->rails[emitter->order[i]]);
        int host_head = at;

        at = chain_host(emitter, &inner, bytes, at, previous);
        previous = host_head;
    }
    return xm_builder_route(emitter->builder, at, emitter->ranks, emitter->parents, route);
}

/* Finds the route where it depends on nothing but the class, its rails and where the chain begins,
 * which is where each receiver is alone on its host. The layers and experts of a model ask for the
 * same few again and again, and each names thousands of hosts. */
static xm_status_t find_route(xm_transfer_emitter_t *emitter, const xm_chain_t *chain,
                              const xm_class_t *class, int64_t bytes, int *route)
{
    int start = xm_network_racks(emitter->rails) > 1 ? chain->sender_rail : first_behind(chain);
    uint64_t hash =
        ((uintptr_t) class >> 3) + ((uintptr_t)chain->rails >> 2) * 31 + (uint64_t)start;
    xm_known_chain_t *known = &emitter->known[hash * UINT64_C(0x9e3779b97f4a7c15) >> 54];

    if (known->class == class && known->rails == chain->rails && known->start == start) {
        *route = known->route;
        return XM_OK;
    }
    XM_TRY(make_route(emitter, chain, class, bytes, route));
    if (class->widest == 1) {
        *known = (xm_known_chain_t){class, chain->rails, start, *route};
    }
    return XM_OK;
}

/* Sends the chain's elements along its route. */
xm_status_t xm_chain_emit(xm_transfer_emitter_t *emitter, const xm_chain_t *chain)
{
    int64_t task = chain->task;
    const xm_class_t *class = &emitter->classes->classes[emitter->classes->class_of[task]];
    const xm_planned_tensor_t *tensor = &emitter->plan->tensors[emitter->plan->tasks[task].tensor];
    xm_transfer_t transfer = {
        .task = task,
        .parent = -1,
        .first = chain->first,
        .end = chain->end,
        .sender = xm_transfer_emitter_pick_rail(emitter, class, chain->sender_rail)};
    int64_t bytes = (chain->end - chain->first) * tensor->element_size;

    XM_TRY(find_route(emitter, chain, class, bytes, &transfer.route));
    emitter->sent[transfer.sender] += bytes;
    return xm_builder_append(emitter->builder, &transfer, NULL);
}

/*
 * Cuts a lane into as many shards as the largest receiving host has receiving devices on the
 * lane's rail (the elements need not divide). Shard g goes to one device of each host, from host to
 * host, and from there to its neighbours, so every host's NICs carry the box once and no
 * device's port carries more than the others' (no collective is called; the local all-gather of
 * MLSys'23, section 2, made to work for any count and for groups that span hosts).
 */
xm_status_t xm_strategy_allgather_emit(xm_transfer_emitter_t *emitter, const xm_chain_t *lane)
{
    const xm_class_t *class = &emitter->classes->classes[emitter->classes->class_of[lane->task]];
    int64_t elements = lane->end - lane->first, shards = 1;
    xm_status_t status = XM_OK;

    for (int i = 0; i < lane->count; ++i) {
        xm_inner_t inner = xm_chain_inner(emitter, class, lane->rails[i]);
        int devices = xm_chain_heads(emitter, &inner);

        shards = devices > shards ? devices : shards;
    }
    shards = shards < elements ? shards : elements;
    for (int64_t g = 0; status == XM_OK && g < shards; ++g) {
        /* The first elements mod shards shards have one more; a product could overflow. */
        int64_t size = elements / shards, longer = elements % shards;
        xm_chain_t shard = *lane;

        shard.first += g * size + (g < longer ? g : longer);
        shard.end = shard.first + size + (g < longer);
        status = xm_chain_emit(emitter, &shard);
    }
    return status;
}
