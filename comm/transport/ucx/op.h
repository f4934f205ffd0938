/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/transport/ucx/op.h
 * The fragments of operations, for those who post them (comm/transport/ucx/post.c) and those who
 * end them (comm/transport/ucx/op.c). What every message passes is here, so that it costs no calls.
 * Internal.
 */
#pragma once

#include "comm/transport/ucx/transport_ucx_private.h"

/* What xm_op_t's priv.flags says of a receive: whether it, and what came for it, is a split
 * message. The lower bits are the lanes on which something came. */
#define XM_UCX_EXPECTS_SPLIT (1u << 30)
#define XM_UCX_CAME_SPLIT    (1u << 29)
#define XM_UCX_CAME_WHOLE    (1u << 28)

/* Callbacks of UCX: a fragment has left, or come. */
void xm_ucx_on_sent(void *request, ucs_status_t status, void *user_data);
void xm_ucx_on_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                        void *user_data);

/** UCX is done with an operation, or has been made to forget it. */
void xm_ucx_end_op(xm_op_t *op, xm_status_t status);

/** Cancels a list of fragments. */
void xm_ucx_cancel_fragments(xm_ucx_fragment_t *fragment);

/* Puts a fragment on the list of its operation, or of its peer's orphans. NULL: no memory. */
static inline xm_ucx_fragment_t *xm_ucx_take_fragment(xm_ucx_peer_t *peer, xm_op_t *op, int lane,
                                                      size_t length)
{
    xm_rails_transport_t *self = peer->base.owner;
    xm_ucx_fragment_t *fragment = xm_blocks_take(&self->blocks, sizeof(*fragment));

    if (fragment == NULL) {
        return NULL;
    }
    *fragment = (xm_ucx_fragment_t){.op = op, .peer = peer, .lane = lane, .length = length};
    if (op != NULL) {
        fragment->next = op->priv.handle;
        op->priv.handle = fragment;
        ++op->priv.pending;
    } else {
        fragment->next = peer->orphans;
        peer->orphans = fragment;
    }
    return fragment;
}

/* Takes a fragment off the front of a list or, found by walking, from inside it. */
static inline xm_ucx_fragment_t *xm_ucx_without(xm_ucx_fragment_t *list,
                                                const xm_ucx_fragment_t *fragment)
{
    xm_ucx_fragment_t **link = &list;

    while (*link != fragment) {
        link = &(*link)->next;
    }
    *link = fragment->next;
    return list;
}

/* The opposite of xm_ucx_take_fragment(). */
static inline void xm_ucx_give_fragment(xm_ucx_fragment_t *fragment)
{
    xm_rails_transport_t *self = fragment->peer->base.owner;

    if (fragment->op != NULL) {
        fragment->op->priv.handle = xm_ucx_without(fragment->op->priv.handle, fragment);
        --fragment->op->priv.pending;
    } else {
        fragment->peer->orphans = xm_ucx_without(fragment->peer->orphans, fragment);
    }
    xm_blocks_give(&self->blocks, fragment);
}
