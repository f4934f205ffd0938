/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The allgather strategy, as chains: no collective is called, since a plan consists of
 * point-to-point hops only and may span hosts that share no communicator.
 */
#include "resharding/plan/strategy_chain.h"

/*
 * Cuts a lane into as many shards as the largest receiving host has receiving devices on the
 * lane's rail (the elements need not divide). Shard g goes to one device of each host, from host to
 * host, and from there to its neighbours, so every host's NICs carry the box once and no
 * device's port carries more than the others' (the local all-gather of MLSys'23, section
 * 2, made to work for any count and for groups that span hosts).
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
