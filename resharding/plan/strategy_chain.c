/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pipelined chains, which the broadcast and allgather strategies and the parts of
 * openshop are made of. A chain takes one NIC direction per host and chunk, and with many
 * chunks its time tends to that of one hop, which no tree can beat for long messages; a
 * tree would fork at a NIC and halve its rate.
 */
#include "resharding/plan/strategy_chain.h"

#include <stdlib.h>

/* The head is the rank that has taken in the most from neighbours so far: the network
 * serves it, so this time its port rests while the others take in. */
int xm_chain_host(xm_transfer_emitter_t *emitter, const xm_inner_t *inner, int at, int parent)
{
    const int *ranks = inner->ranks;
    int head = -1;

    for (int i = 0; i < inner->count; ++i) {
        if (xm_network_host_of(emitter->rails, ranks[i]) == inner->rail &&
            (head < 0 || emitter->taken[ranks[i]] > emitter->taken[ranks[head]])) {
            head = i;
        }
    }
    emitter->ranks[at] = ranks[head];
    emitter->parents[at] = parent;
    for (int i = 1; i < inner->count; ++i) {
        /* A star goes from the last rank to the first, as heads take turns from the first to the
         * last: so no port has two at a time, and none rests. */
        int last = inner->count - i, next = last - (last <= head);

        next = inner->star ? next : (head + i) % inner->count;

        emitter->ranks[at + i] = ranks[next];
        emitter->parents[at + i] = inner->star ? at : at + i - 1;
        emitter->taken[ranks[next]] += inner->bytes;
    }
    return at + inner->count;
}

xm_inner_t xm_chain_inner(const xm_transfer_emitter_t *emitter, const xm_class_t *class, int rail)
{
    int host = xm_network_host_of_rail(emitter->network, rail), low = 0,
        high = class->remote_host_count;

    while (low < high) {
        int middle = low + (high - low) / 2;

        if (class->remote_hosts[middle] < host) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return (xm_inner_t){.ranks = class->remote + class->remote_first[low],
                        .count = class->remote_first[low + 1] - class->remote_first[low],
                        .rail = rail};
}

static int compare_keys(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/*
 * Orders the receiving rails as a chain, as indices into the list of them: the
 * sender's rack first, then rack by rack, so that every uplink is crossed once; within a
 * rack cyclically after the sender, so that chains from several senders load
 * different relays, and chains over the same rails have the same order (their pipelines
 * then follow each other without gaps).
 */
static void order_rails(xm_transfer_emitter_t *emitter, const xm_chain_t *chain)
{
    const xm_network_t *network = emitter->rails;
    int racks = xm_network_racks(network), rails = xm_network_hosts(network), count = chain->count;
    int rack = xm_network_rack_of(network, chain->sender_rail), start = 0;

    while (start < count && chain->rails[start] < chain->sender_rail) {
        ++start;
    }
    for (int i = 0; i < count; ++i) {
        int index = (start + i) % count, rail = chain->rails[index];
        int64_t rack_key = (xm_network_rack_of(network, rail) - rack + racks) % racks;
        int64_t rail_key = (rail - chain->sender_rail + rails) % rails;

        /* The index in the lowest digits makes all keys distinct and comes back out of
         * the sorted key. */
        emitter->order[i] = racks == 1 ? index : (rack_key * rails + rail_key) * count + index;
    }
    if (racks > 1) {
        qsort(emitter->order, (size_t)count, sizeof(*emitter->order), compare_keys);
        for (int i = 0; i < count; ++i) {
            emitter->order[i] %= count;
        }
    }
}

/* Builds one route: the heads of the hosts in order, each with the chain of its own host
 * behind it. */
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
    int at = 0, previous = -1;
    xm_status_t status;

    order_rails(emitter, chain);
    for (int i = 0; i < chain->count; ++i) {
        xm_inner_t inner = xm_chain_inner(emitter, class, chain->rails[emitter->order[i]]);
        int host_head = at;

        inner.bytes = bytes;
        at = xm_chain_host(emitter, &inner, at, previous);
        previous = host_head;
    }
    status =
        xm_builder_route(emitter->builder, at, emitter->ranks, emitter->parents, &transfer.route);
    if (status < 0) {
        return status;
    }
    emitter->sent[transfer.sender] += bytes;
    return xm_builder_append(emitter->builder, &transfer, NULL);
}
