/* The verbs transport: items and flows are taken from pools, which grow when they are empty. */
#include <stdlib.h>

#include "comm/transport/verbs/transport_verbs_private.h"

/* BLOCK: made at a time. INDEX_BITS: of a flow's number that are its place; the rest is its
 * generation. */
enum { BLOCK = 256, INDEX_BITS = 20 };

static const uint32_t index_mask = (UINT32_C(1) << INDEX_BITS) - 1;

xm_verbs_item_t *xm_verbs_take_item(xm_verbs_transport_t *self)
{
    xm_verbs_item_t *item = self->free_items;

    if (item == NULL) {
        xm_verbs_item_t *block = calloc(BLOCK, sizeof(*block));

        if (block == NULL) {
            (void)xm_error_set(XM_ERR_NO_MEMORY, "rank %d: no memory for %d items to send",
                               self->base.rank, BLOCK);
            return NULL;
        }
        block[0].next = self->item_blocks; /* the first one of a block only links the blocks */
        self->item_blocks = &block[0];
        for (int i = 1; i < BLOCK; ++i) {
            block[i].next = self->free_items;
            self->free_items = &block[i];
        }
        item = self->free_items;
    }
    self->free_items = item->next;
    return item;
}

void xm_verbs_give_item(xm_verbs_transport_t *self, xm_verbs_item_t *item)
{
    item->next = self->free_items;
    self->free_items = item;
}

static xm_status_t add_flows(xm_verbs_transport_t *self)
{
    uint32_t blocks = self->flow_count / BLOCK;
    xm_verbs_flow_t *block = calloc(BLOCK, sizeof(*block)), **list;

    if (block == NULL || self->flow_count + BLOCK > index_mask) {
        free(block);
        return xm_error_set(XM_ERR_NO_MEMORY, "rank %d: no memory for more than %u long messages",
                            self->base.rank, self->flow_count);
    }
    list = realloc((void *)self->flow_blocks, (blocks + 1) * sizeof(*list));
    if (list == NULL) {
        free(block);
        return xm_error_set(XM_ERR_NO_MEMORY, "rank %d: no memory for a list of %u blocks",
                            self->base.rank, blocks + 1);
    }
    list[blocks] = block;
    self->flow_blocks = list;
    for (uint32_t i = 0; i < BLOCK; ++i) {
        block[i].number = self->flow_count + i;
        block[i].next_free = self->free_flows;
        self->free_flows = &block[i];
    }
    self->flow_count += BLOCK;
    return XM_OK;
}

xm_verbs_flow_t *xm_verbs_take_flow(xm_verbs_transport_t *self, xm_op_t *op)
{
    xm_verbs_flow_t *flow;

    if (self->free_flows == NULL && add_flows(self) < 0) {
        return NULL;
    }
    flow = self->free_flows;
    self->free_flows = flow->next_free;
    *flow = (xm_verbs_flow_t){.number = flow->number, .op = op};
    return flow;
}

void xm_verbs_give_flow(xm_verbs_transport_t *self, xm_verbs_flow_t *flow)
{
    if (flow->memory != NULL && !flow->borrowed) {
        xm_verbs_memory_release(self, flow->memory);
    }
    flow->memory = NULL;
    flow->op = NULL;
    flow->number += UINT32_C(1) << INDEX_BITS;
    flow->next_free = self->free_flows;
    self->free_flows = flow;
}

xm_verbs_flow_t *xm_verbs_find_flow(const xm_verbs_transport_t *self, uint32_t number,
                                    const xm_verbs_peer_t *peer, int kind)
{
    uint32_t place = number & index_mask;
    xm_verbs_flow_t *flow;

    if (place >= self->flow_count) {
        return NULL;
    }
    flow = &self->flow_blocks[place / BLOCK][place % BLOCK];
    return flow->op != NULL && flow->number == number && flow->op->priv.peer == peer->rank &&
                   flow->op->priv.kind == kind
               ? flow
               : NULL;
}

void xm_verbs_free_pools(xm_verbs_transport_t *self)
{
    while (self->item_blocks != NULL) {
        xm_verbs_item_t *block = self->item_blocks;

        self->item_blocks = block->next;
        free(block);
    }
    for (uint32_t i = 0; i < self->flow_count / BLOCK; ++i) {
        free(self->flow_blocks[i]);
    }
    free((void *)self->flow_blocks);
}
