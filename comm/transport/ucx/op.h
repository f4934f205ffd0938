/**
 * @file comm/transport/ucx/op.h
 * The pieces of operations, for those who post them (comm/transport/ucx/post.c) and those who end
 * them (comm/transport/ucx/op.c). What every message passes is here, so that it costs no calls.
 * Internal.
 */
#ifndef XM_COMM_TRANSPORT_UCX_OP_H
#define XM_COMM_TRANSPORT_UCX_OP_H

#include "comm/transport/ucx/transport_ucx_private.h"

/* What xm_op_t's priv.flags says of a receive: whether it, and what came for it, is a split
 * message. The lower bits are the lanes on which something came. */
#define XM_UCX_EXPECTS_SPLIT (1u << 30)
#define XM_UCX_CAME_SPLIT    (1u << 29)
#define XM_UCX_CAME_WHOLE    (1u << 28)

/* Callbacks of UCX: a piece has left, or come. */
void xm_ucx_on_sent(void *request, ucs_status_t status, void *user_data);
void xm_ucx_on_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                        void *user_data);

/** Cancels a list of pieces. */
void xm_ucx_cancel_pieces(xm_ucx_piece_t *piece);

/* The operation leaves its peer's ring. */
static inline void xm_ucx_leave_ring(xm_op_t *op)
{
    xm_ucx_transport_t *self = op->priv.owner;
    xm_ucx_peer_t *peer = &self->peers[op->priv.peer];

    xm_list_remove(&op->priv.link);
    if (op->priv.tag < XM_TRANSPORT_TAG_OWN) {
        --peer->users;
        ++peer->moved;
    }
}

/* Puts a piece on the list of its operation, or of its peer's strays. NULL: no memory. */
static inline xm_ucx_piece_t *xm_ucx_take_piece(xm_ucx_peer_t *peer, xm_op_t *op, int lane,
                                                size_t length)
{
    xm_ucx_transport_t *self = peer->owner;
    xm_ucx_piece_t *piece;

    if (self->free_pieces == NULL && xm_ucx_add_pieces(self) < 0) {
        return NULL;
    }
    piece = self->free_pieces;
    self->free_pieces = piece->next;
    *piece = (xm_ucx_piece_t){.op = op, .peer = peer, .lane = lane, .length = length};
    if (op != NULL) {
        piece->next = op->priv.handle;
        op->priv.handle = piece;
        ++op->priv.pending;
    } else {
        piece->next = peer->strays;
        peer->strays = piece;
    }
    return piece;
}

/* Takes a piece off the front of a list or, found by walking, from inside it. */
static inline xm_ucx_piece_t *xm_ucx_without(xm_ucx_piece_t *list, const xm_ucx_piece_t *piece)
{
    xm_ucx_piece_t **link = &list;

    while (*link != piece) {
        link = &(*link)->next;
    }
    *link = piece->next;
    return list;
}

/* The opposite of xm_ucx_take_piece(). */
static inline void xm_ucx_give_piece(xm_ucx_piece_t *piece)
{
    xm_ucx_transport_t *self = piece->peer->owner;

    if (piece->op != NULL) {
        piece->op->priv.handle = xm_ucx_without(piece->op->priv.handle, piece);
        --piece->op->priv.pending;
    } else {
        piece->peer->strays = xm_ucx_without(piece->peer->strays, piece);
    }
    piece->next = self->free_pieces;
    self->free_pieces = piece;
}

#endif
