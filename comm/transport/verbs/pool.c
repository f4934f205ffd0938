/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of work requests that wait and of messages in rendezvous. Posting must not allocate in
 * the usual case, so blocks are kept until the end and the pools grow only while more is in
 * flight than ever before. A rendezvous has a number that goes over the wire: its place in the
 * pool and a generation, so that a number that comes back late or wrong is recognised in
 * constant time. */
#include <stdlib.h>

#include "comm/transport/verbs/transport_verbs_private.h"

/* BLOCK: made at a time. INDEX_BITS: the bits of a message's number that are its place; the
 * rest is its generation. */
enum { BLOCK = 256, INDEX_BITS = 20 };

static const uint32_t index_mask = (UINT32_C(1) << INDEX_BITS) - 1;

xm_verbs_wr_t *xm_verbs_take_wr(xm_verbs_transport_t *self)
{
    xm_verbs_wr_t *wr = xm_blocks_take(&self->blocks, sizeof(*wr) + XM_VERBS_INLINE_MAX);

    if (wr == NULL) {
        (void)xm_error_set(XM_ERR_NO_MEMORY, "rank %d: no memory for messages to send",
                           self->base.rank);
    }
    return wr;
}

void xm_verbs_give_wr(xm_verbs_transport_t *self, xm_verbs_wr_t *wr)
{
    xm_blocks_give(&self->blocks, wr);
}

/* Adds a block of rendezvous. They never move, since operations point to them; only the list of
 * blocks is reallocated. */
static xm_status_t add_rndvs(xm_verbs_transport_t *self)
{
    uint32_t blocks = self->rndv_count / BLOCK;
    xm_verbs_rndv_t *block = calloc(BLOCK, sizeof(*block)), **list;

    /* The place of a number has INDEX_BITS bits, so there cannot be more rendezvous than that. */
    if (block == NULL || self->rndv_count + BLOCK > index_mask) {
        free(block);
        return xm_error_set(XM_ERR_NO_MEMORY, "rank %d: no memory for more than %u long messages",
                            self->base.rank, self->rndv_count);
    }
    list = realloc((void *)self->rndv_blocks, (blocks + 1) * sizeof(*list));
    if (list == NULL) {
        free(block);
        return xm_error_set(XM_ERR_NO_MEMORY, "rank %d: no memory for a list of %u blocks",
                            self->base.rank, blocks + 1);
    }
    list[blocks] = block;
    self->rndv_blocks = list;
    for (uint32_t i = 0; i < BLOCK; ++i) {
        block[i].number = self->rndv_count + i;
        block[i].next_free = self->free_rndvs;
        self->free_rndvs = &block[i];
    }
    self->rndv_count += BLOCK;
    return XM_OK;
}

/* Takes a rendezvous for an operation. Its number has been advanced when it was given back, so
 * it differs from all recent ones. */
xm_verbs_rndv_t *xm_verbs_take_rndv(xm_verbs_transport_t *self, xm_op_t *op)
{
    xm_verbs_rndv_t *rndv;

    if (self->free_rndvs == NULL && add_rndvs(self) < 0) {
        return NULL;
    }
    rndv = self->free_rndvs;
    self->free_rndvs = rndv->next_free;
    *rndv = (xm_verbs_rndv_t){.number = rndv->number, .op = op};
    return rndv;
}

/* Gives the rendezvous back, with the registration if that was made for it. */
void xm_verbs_give_rndv(xm_verbs_transport_t *self, xm_verbs_rndv_t *rndv)
{
    if (rndv->memory != NULL && !rndv->borrowed) {
        xm_verbs_memory_release(self, rndv->memory);
    }
    rndv->memory = NULL;
    rndv->op = NULL;
    /* A new generation: from now on the old number finds nothing. It comes around after 4096
     * uses of the place. */
    rndv->number += UINT32_C(1) << INDEX_BITS;
    rndv->next_free = self->free_rndvs;
    self->free_rndvs = rndv;
}

/* Finds the rendezvous of a number that came over the wire. It must be in use, of that
 * generation, with that peer and in that direction: a peer can neither reach another's message
 * nor confuse the two ends. */
xm_verbs_rndv_t *xm_verbs_find_rndv(const xm_verbs_transport_t *self, uint32_t number,
                                    const xm_verbs_peer_t *peer, int kind)
{
    uint32_t place = number & index_mask;
    xm_verbs_rndv_t *rndv;

    if (place >= self->rndv_count) {
        return NULL;
    }
    rndv = &self->rndv_blocks[place / BLOCK][place % BLOCK];
    return rndv->op != NULL && rndv->number == number && rndv->op->priv.peer == peer->rank &&
                   rndv->op->priv.kind == kind
               ? rndv
               : NULL;
}

void xm_verbs_free_pools(xm_verbs_transport_t *self)
{
    xm_blocks_clear(&self->blocks);
    for (uint32_t i = 0; i < self->rndv_count / BLOCK; ++i) {
        free(self->rndv_blocks[i]);
    }
    free((void *)self->rndv_blocks);
}
