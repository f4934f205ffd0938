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
int xm_chain_host(xm_transfer_emitter_t *emitter, const int *ranks, int count, int64_t bytes,
                  int at, int parent)
{
    int head = 0;

    for (int i = 1; i < count; ++i) {
        head = emitter->taken[ranks[i]] > emitter->taken[ranks[head]] ? i : head;
    }
    emitter->ranks[at] = ranks[head];
    emitter->parents[at] = parent;
    for (int i = 1; i < count; ++i) {
        emitter->ranks[at + i] = ranks[(head + i) % count];
        emitter->parents[at + i] = at + i - 1;
        emitter->taken[emitter->ranks[at + i]] += bytes;
    }
    return at + count;
}

static int compare_keys(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/*
 * Orders the class's receiving hosts as a chain, as indices into remote_hosts: the
 * sender's rack first, then rack by rack, so that every uplink is crossed once; within a
 * rack cyclically after the sender's host, so that chains from several hosts load
 * different relays, and chains over the same hosts have the same order (their pipelines
 * then follow each other without gaps).
 */
static void order_hosts(xm_transfer_emitter_t *emitter, const xm_class_t *class, int sender_host)
{
    const xm_network_t *network = emitter->network;
    int racks = xm_network_racks(network), hosts = xm_network_hosts(network),
        count = class->remote_host_count;
    int rack = xm_network_rack_of(network, sender_host), start = 0;

    while (start < count && class->remote_hosts[start] < sender_host) {
        ++start;
    }
    for (int i = 0; i < count; ++i) {
        int index = (start + i) % count, host = class->remote_hosts[index];
        int64_t rack_key = (xm_network_rack_of(network, host) - rack + racks) % racks;
        int64_t host_key = (host - sender_host + hosts) % hosts;

        /* The index in the lowest digits makes all keys distinct and comes back out of
         * the sorted key. */
        emitter->order[i] = racks == 1 ? index : (rack_key * hosts + host_key) * count + index;
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
xm_status_t xm_chain_emit(xm_transfer_emitter_t *emitter, int64_t task, int sender_host,
                          int64_t first, int64_t end)
{
    const xm_class_t *class = &emitter->classes->classes[emitter->classes->class_of[task]];
    const xm_planned_tensor_t *tensor = &emitter->plan->tensors[emitter->plan->tasks[task].tensor];
    xm_transfer_t transfer = {.task = task,
                              .parent = -1,
                              .first = first,
                              .end = end,
                              .sender = xm_transfer_emitter_pick(emitter, class->holders,
                                                                 class->holder_count, sender_host)};
    int64_t bytes = (end - first) * tensor->element_size;
    int at = 0, previous = -1;
    xm_status_t status;

    order_hosts(emitter, class, sender_host);
    for (int i = 0; i < class->remote_host_count; ++i) {
        int64_t h = emitter->order[i];
        int host_head = at;

        at =
            xm_chain_host(emitter, class->remote + class->remote_first[h],
                          class->remote_first[h + 1] - class->remote_first[h], bytes, at, previous);
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
