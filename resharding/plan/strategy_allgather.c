/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The allgather strategy, as chains: no collective is called, since a plan consists of
 * point-to-point hops only and may span hosts that share no communicator.
 */
#include "resharding/plan/strategy_chain.h"

/*
 * Cuts the box into as many shards as the largest receiving host has receiving devices
 * (the elements need not divide). Shard g goes to one device of each host, from host to
 * host, and from there to its neighbours, so every host's NIC carries the box once and no
 * device's port carries more than the others' (the local all-gather of MLSys'23, section
 * 2, made to work for any count and for groups that span hosts).
 */
xm_status_t xm_strategy_allgather_emit(xm_transfer_emitter_t *emitter, int64_t task,
                                       int sender_host)
{
    const xm_class_t *class = &emitter->classes->classes[emitter->classes->class_of[task]];
    int64_t elements = emitter->plan->tasks[task].elements, shards = 1;
    xm_status_t status = XM_OK;

    for (int h = 0; h < class->remote_host_count; ++h) {
        int devices = class->remote_first[h + 1] - class->remote_first[h];

        shards = devices > shards ? devices : shards;
    }
    shards = shards < elements ? shards : elements;
    for (int64_t g = 0; status == XM_OK && g < shards; ++g) {
        /* The first elements mod shards shards have one more; a product could overflow. */
        int64_t size = elements / shards, longer = elements % shards;
        int64_t first = g * size + (g < longer ? g : longer);

        status = xm_chain_emit(emitter, task, sender_host, first, first + size + (g < longer));
    }
    return status;
}
