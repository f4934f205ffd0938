/* The UCX transport: posting operations, their pieces, and their ends. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/transport_ucx_mail.h"

static const uint64_t max_tag = (UINT64_C(1) << XM_UCX_TAG_BITS) - 1;

/* Pieces made at a time. */
enum { BLOCK = 256 };

/* What xm_op_t's priv.flags says of a receive: whether it, and what came for it, is a split
 * message. The lower bits are the lanes on which something came. */
#define EXPECTS_SPLIT (1u << 30)
#define CAME_SPLIT    (1u << 29)
#define CAME_WHOLE    (1u << 28)

/* The operation leaves its peer's list. */
static void leave_list(xm_op_t *op)
{
    xm_ucx_transport_t *self = op->priv.owner;
    xm_ucx_peer_t *peer = &self->peers[op->priv.peer];

    xm_list_remove(&op->priv.link);
    if (op->priv.tag < XM_TRANSPORT_TAG_OWN) {
        --peer->users;
        ++peer->moved;
    }
}

/* UCX is done with the operation. `done` is called later, outside of UCX and of posting calls. */
static void throw_rest_away(const xm_op_t *op);

void xm_ucx_end_op(xm_op_t *op, xm_status_t status)
{
    xm_ucx_transport_t *self = op->priv.owner;

    leave_list(op);
    if (op->priv.status == XM_IN_PROGRESS) {
        op->priv.status = status;
    }
    op->priv.handle = NULL;
    xm_list_append(&self->ended, &op->priv.link);
    if (op->priv.status < 0) {
        throw_rest_away(op);
    }
}

xm_status_t xm_ucx_add_pieces(xm_ucx_transport_t *self)
{
    xm_ucx_piece_t *block = calloc(BLOCK, sizeof(*block));

    if (block == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "rank %d: no memory for %d pieces of messages",
                            self->base.rank, BLOCK);
    }
    block[0].next = self->blocks; /* the first one of a block only links the blocks */
    self->blocks = &block[0];
    for (int i = 1; i < BLOCK; ++i) {
        block[i].next = self->free_pieces;
        self->free_pieces = &block[i];
    }
    return XM_OK;
}

void xm_ucx_free_pieces(xm_ucx_transport_t *self)
{
    while (self->blocks != NULL) {
        xm_ucx_piece_t *block = self->blocks;

        self->blocks = block->next;
        free(block);
    }
    self->free_pieces = NULL;
}

/* Puts a piece on the list of its operation, or of its peer's strays. NULL: no memory. */
static xm_ucx_piece_t *take_piece(xm_ucx_peer_t *peer, xm_op_t *op, int lane, size_t length)
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
static xm_ucx_piece_t *without(xm_ucx_piece_t *list, const xm_ucx_piece_t *piece)
{
    xm_ucx_piece_t **link = &list;

    while (*link != piece) {
        link = &(*link)->next;
    }
    *link = piece->next;
    return list;
}

/* The opposite of take_piece(). */
static void give_piece(xm_ucx_piece_t *piece)
{
    xm_ucx_transport_t *self = piece->peer->owner;

    if (piece->op != NULL) {
        piece->op->priv.handle = without(piece->op->priv.handle, piece);
        --piece->op->priv.pending;
    } else {
        piece->peer->strays = without(piece->peer->strays, piece);
    }
    piece->next = self->free_pieces;
    self->free_pieces = piece;
}

static void cancel_piece(xm_ucx_piece_t *piece)
{
    if (piece->request != NULL) {
        ucp_request_cancel(xm_ucx_rail_of(piece->peer, piece->lane)->worker, piece->request);
    }
}

/* Cancelling ends the piece at once, or leaves it to UCX: no other piece leaves the list. */
static void cancel_list(xm_ucx_piece_t *piece)
{
    while (piece != NULL) {
        xm_ucx_piece_t *next = piece->next;

        cancel_piece(piece);
        piece = next;
    }
}

/* A callback of UCX has ended the piece. The first failure of a piece is its operation's. */
static void end_piece(xm_ucx_piece_t *piece, xm_status_t status)
{
    xm_op_t *op = piece->op;

    xm_ucx_count_piece(piece, status);
    if (op != NULL && status < 0 && op->priv.status == XM_IN_PROGRESS) {
        op->priv.status = status;
    }
    if (piece->request == NULL) {
        piece->ended = true; /* the posting call does the rest */
        return;
    }
    give_piece(piece);
    if (op != NULL && op->priv.pending == 0) {
        xm_ucx_end_op(op, XM_OK);
    }
}

/* True when the piece of this request has been given up already. UCX reuses requests, so the mark
 * is taken off. */
static bool was_abandoned(void *request)
{
    xm_ucx_request_t *ours = request;
    bool abandoned = ours->abandoned;

    ours->abandoned = false;
    return abandoned;
}

static void on_sent(void *request, ucs_status_t status, void *user_data)
{
    xm_ucx_piece_t *piece = user_data;
    bool abandoned = was_abandoned(request);

    ucp_request_free(request);
    if (!abandoned) {
        end_piece(piece, xm_ucx_status(status, piece->peer->failed));
    }
}

/* A message, or a piece of one, has come for a receive. Returns whether it is what was expected. */
static bool check_arrival(xm_ucx_piece_t *piece, const ucp_tag_recv_info_t *info)
{
    xm_op_t *op = piece->op;
    bool several = piece->peer->stripe.used > 1;
    bool split = several && (info->sender_tag & XM_UCX_TAG_SPLIT) != 0;
    bool expects_split = (op->priv.flags & EXPECTS_SPLIT) != 0;

    op->priv.flags |= 1u << piece->lane | (split ? CAME_SPLIT : CAME_WHOLE);
    op->priv.received += info->length;
    return split == expects_split && info->length == piece->length;
}

static void on_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                        void *user_data)
{
    xm_ucx_piece_t *piece = user_data;
    xm_op_t *op;

    if (was_abandoned(request)) {
        ucp_request_free(request);
        return;
    }
    op = piece->op;
    if (op != NULL && (status == UCS_OK || status == UCS_ERR_MESSAGE_TRUNCATED) &&
        !check_arrival(piece, info)) {
        status = UCS_ERR_MESSAGE_TRUNCATED;
        if ((op->priv.flags & EXPECTS_SPLIT) != 0 && (op->priv.flags & CAME_WHOLE) != 0) {
            op->priv.status = op->priv.status == XM_IN_PROGRESS ? XM_ERR_CORRUPT : op->priv.status;
            ++op->priv.pending; /* it ends below, not because of these */
            for (xm_ucx_piece_t *other = op->priv.handle, *next; other != NULL; other = next) {
                next = other->next;
                if (other != piece) {
                    cancel_piece(other);
                }
            }
            --op->priv.pending;
        }
    }
    ucp_request_free(request);
    end_piece(piece, xm_ucx_status(status, piece->peer->failed));
}

/* The lanes on which pieces of the split message that came for a receive are still to be taken. */
static unsigned lanes_left(const xm_ucx_peer_t *peer, const xm_op_t *op)
{
    unsigned left = 0;

    for (int lane = 0; lane < peer->stripe.rails && (op->priv.flags & CAME_SPLIT) != 0; ++lane) {
        left |= xm_stripe_uses(&peer->stripe, lane) ? 1u << lane : 0;
    }
    return left & ~op->priv.flags;
}

static xm_status_t length_error(const xm_ucx_transport_t *self, int peer, uint64_t tag,
                                size_t length, size_t received)
{
    char came[64] = "a message of another length came";

    if (received > 0) {
        (void)snprintf(came, sizeof(came), "a message of %zu bytes came", received);
    }
    return xm_error_set(XM_ERR_CORRUPT,
                        "rank %d: receive from rank %d with tag %" PRIu64 " expects %zu bytes, %s",
                        self->base.rank, peer, tag, length, came);
}

/* The sentence that goes with the failure of an operation. */
static void explain(xm_ucx_transport_t *self, const xm_op_t *op)
{
    const char *verb = op->priv.kind == XM_UCX_SEND ? "send to" : "receive from";

    switch (op->priv.status) {
    case XM_ERR_CORRUPT:
        (void)length_error(self, op->priv.peer, op->priv.tag, op->priv.length,
                           lanes_left(&self->peers[op->priv.peer], op) == 0 ? op->priv.received
                                                                            : 0);
        break;
    case XM_ERR_PEER_DIED:
        (void)xm_ucx_peer_error(&self->peers[op->priv.peer]);
        if (self->base.failed_peer < 0) {
            self->base.failed_peer = op->priv.peer;
        }
        break;
    default:
        (void)xm_error_set(op->priv.status, "rank %d: %s rank %d with tag %" PRIu64 ": %s",
                           self->base.rank, verb, op->priv.peer, op->priv.tag,
                           xm_status_string(op->priv.status));
    }
}

/* Posts a receive that throws away what comes on a lane. */
static void post_stray(xm_ucx_peer_t *peer, int lane, uint64_t tag)
{
    static char nothing;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
                                 .cb.recv = on_received};
    xm_ucx_piece_t *piece = take_piece(peer, NULL, lane, 0);
    ucs_status_ptr_t request;

    if (piece == NULL) {
        return;
    }
    param.user_data = piece;
    request = ucp_tag_recv_nbx(xm_ucx_rail_of(peer, lane)->worker, &nothing, 0,
                               (uint64_t)peer->rank << XM_UCX_TAG_BITS | tag | XM_UCX_TAG_SPLIT,
                               UINT64_MAX, &param);
    if (piece->ended || UCS_PTR_IS_ERR(request)) {
        give_piece(piece);
    } else {
        piece->request = request;
    }
}

/* A receive has ended without taking all pieces of a split message (it was cancelled too late, or
 * posted for a shorter one). The rest must end for its sender too, and must not meet a later
 * receive with that tag. Rails keep the order of messages, so it meets what is posted now. */
static void throw_rest_away(const xm_op_t *op)
{
    const xm_ucx_transport_t *self = op->priv.owner;
    xm_ucx_peer_t *peer = &self->peers[op->priv.peer];
    unsigned left = lanes_left(peer, op);

    if (peer->failed || peer->reported || self->closing || self->fenced) {
        return;
    }
    for (int lane = 0; lane < peer->stripe.rails; ++lane) {
        if ((left & 1u << lane) != 0) {
            post_stray(peer, lane, op->priv.tag);
        }
    }
}

int xm_ucx_deliver(xm_ucx_transport_t *self)
{
    int count = 0;

    while (!xm_list_is_empty(&self->ended)) {
        xm_op_t *op = xm_op_of(self->ended.next);

        xm_list_remove(&op->priv.link);
        if (op->priv.status < 0) {
            explain(self, op);
        }
        xm_ucx_end(op);
        ++count;
    }
    return count;
}

/* What every post checks and prepares. */
static xm_status_t prepare(xm_ucx_transport_t *self, int rank, uint64_t tag, const void *buffer,
                           size_t length, const xm_op_t *op)
{
    xm_ucx_peer_t *peer;

    if (rank < 0 || rank >= self->base.size || rank == self->base.rank) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "rank %d: no peer %d among %d ranks",
                            self->base.rank, rank, self->base.size);
    }
    if (tag > max_tag || length == 0 || buffer == NULL) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "rank %d: message of %zu bytes with tag %" PRIu64
                            "; at least 1 byte and a tag below 2^48 are needed",
                            self->base.rank, length, tag);
    }
    if (op->priv.kind != XM_UCX_IDLE) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "rank %d: operation with tag %" PRIu64 " is posted while in flight",
                            self->base.rank, op->priv.tag);
    }
    peer = &self->peers[rank];
    if (self->closing || self->fenced) {
        return xm_error_set(XM_ERR_CANCELED, "rank %d: the transport %s", self->base.rank,
                            self->closing ? "is being destroyed"
                                          : "is closed: the group was aborted or shrunk");
    }
    if (peer->failed || peer->reported) {
        if (self->base.failed_peer < 0) {
            self->base.failed_peer = rank;
        }
        return xm_ucx_peer_error(peer);
    }
    /* A receiver connects as well: only then does UCX watch whether the peer lives. */
    return peer->connected ? XM_OK : xm_ucx_connect(peer);
}

/* Makes the operation in flight. That comes before UCX is called, because UCX may end a piece (a
 * message that is there already) inside the call. */
static void start_op(xm_ucx_transport_t *self, xm_op_t *op, int peer, uint64_t tag, size_t length,
                     int kind)
{
    op->priv.owner = self;
    op->priv.peer = peer;
    op->priv.tag = tag;
    op->priv.length = length;
    op->priv.received = 0;
    op->priv.kind = kind;
    op->priv.handle = NULL;
    op->priv.pending = 0;
    op->priv.flags = 0;
    op->priv.status = XM_IN_PROGRESS;
    self->peers[peer].users += tag < XM_TRANSPORT_TAG_OWN;
    xm_list_append(&self->peers[peer].in_flight, &op->priv.link);
}

/* What a message is, before it is cut into pieces. */
typedef struct {
    xm_ucx_peer_t *peer;
    uint64_t wire_tag;
    uint64_t mask;
    uint8_t *buffer;
    size_t length;
    xm_memory_t *memory;
    bool split;
} message_t;

/* Hands one piece to UCX. UCS_INPROGRESS: its callback will come; *called: it came inside. */
static ucs_status_t post_piece(const message_t *message, xm_op_t *op, int lane, bool *called)
{
    size_t begin = 0, end = message->length;
    ucp_request_param_t param = {.op_attr_mask =
                                     UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA};
    xm_ucx_peer_t *peer = message->peer;
    xm_ucx_piece_t *piece;
    ucs_status_ptr_t request;

    if (message->split) {
        begin = lane > 0 ? xm_stripe_end(&peer->stripe, message->length, lane - 1) : 0;
        end = xm_stripe_end(&peer->stripe, message->length, lane);
    }
    piece = take_piece(peer, op, lane, end - begin);
    if (piece == NULL) {
        return UCS_ERR_NO_MEMORY;
    }
    param.user_data = piece;
    if (message->memory != NULL) {
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
        param.memh = message->memory->handle[peer->rail + lane];
    }
    if (op->priv.kind == XM_UCX_SEND) {
        param.cb.send = on_sent;
        request = ucp_tag_send_nbx(peer->lanes[lane].ep, message->buffer + begin, end - begin,
                                   message->wire_tag, &param);
    } else {
        /* UCX 1.13 tells the length of a message that was there already to the callback only. */
        param.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
        param.cb.recv = on_received;
        request = ucp_tag_recv_nbx(xm_ucx_rail_of(peer, lane)->worker, message->buffer + begin,
                                   end - begin, message->wire_tag, message->mask, &param);
    }
    if (piece->ended) {
        *called = true;
        give_piece(piece);
        return UCS_OK;
    }
    if (request == NULL || UCS_PTR_IS_ERR(request)) {
        xm_ucx_count_piece(piece, request == NULL ? XM_OK : XM_ERR_IO);
        give_piece(piece);
        return request == NULL ? UCS_OK : UCS_PTR_STATUS(request);
    }
    piece->request = request;
    return UCS_INPROGRESS;
}

/* The peer of a send that UCX refused is lost. */
static xm_status_t post_error(xm_ucx_transport_t *self, const xm_op_t *op, ucs_status_t status)
{
    bool send = op->priv.kind == XM_UCX_SEND;

    if (send && status != UCS_ERR_NO_MEMORY) {
        xm_ucx_report(&self->peers[op->priv.peer], status);
        self->base.failed_peer =
            self->base.failed_peer < 0 ? op->priv.peer : self->base.failed_peer;
    }
    return xm_error_set(xm_ucx_status(status, send), "rank %d: %s rank %d with tag %" PRIu64 ": %s",
                        self->base.rank, send ? "send to" : "receive from", op->priv.peer,
                        op->priv.tag, ucs_status_string(status));
}

static xm_status_t post(xm_ucx_transport_t *self, const message_t *message, xm_op_t *op)
{
    const xm_stripe_t *stripe = &message->peer->stripe;
    int first = message->split ? 0 : xm_stripe_rail(stripe, op->priv.tag);
    int last = message->split ? stripe->rails - 1 : first;
    bool called = false;

    ++op->priv.pending; /* pieces that end meanwhile do not end the operation */
    for (int lane = first; lane <= last && op->priv.status == XM_IN_PROGRESS; ++lane) {
        ucs_status_t status =
            xm_stripe_uses(stripe, lane) ? post_piece(message, op, lane, &called) : UCS_OK;

        if (status < 0) {
            op->priv.status = post_error(self, op, status);
            cancel_list(op->priv.handle);
        }
    }
    if (--op->priv.pending > 0) {
        return XM_IN_PROGRESS;
    }
    if (called) {
        xm_ucx_end_op(op, XM_OK);
        return XM_IN_PROGRESS;
    }
    leave_list(op);
    op->priv.kind = XM_UCX_IDLE;
    return op->priv.status == XM_IN_PROGRESS ? XM_OK : op->priv.status;
}

xm_status_t xm_ucx_send(xm_transport_t *transport, int peer, uint64_t tag, const void *buffer,
                        size_t length, xm_memory_t *memory, xm_op_t *op)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    xm_status_t status = prepare(self, peer, tag, buffer, length, op);
    message_t message = {
        .buffer = (uint8_t *)(uintptr_t)buffer, .length = length, .memory = memory};

    if (status < 0) {
        return status;
    }
    message.peer = &self->peers[peer];
    message.split = xm_stripe_splits(&message.peer->stripe, length);
    message.wire_tag =
        (uint64_t)self->base.rank << XM_UCX_TAG_BITS | tag | (message.split ? XM_UCX_TAG_SPLIT : 0);
    if (message.peer->mail != NULL && xm_ucx_outbox_copies(message.peer->mail, length)) {
        return xm_ucx_outbox_send(message.peer->mail, NULL, tag, buffer, length);
    }
    start_op(self, op, peer, tag, length, XM_UCX_SEND);
    if (message.peer->mail != NULL) {
        return xm_ucx_outbox_send(message.peer->mail, op, tag, buffer, length);
    }
    return post(self, &message, op);
}

xm_status_t xm_ucx_receive(xm_transport_t *transport, int peer, uint64_t tag, void *buffer,
                           size_t length, xm_memory_t *memory, xm_op_t *op)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    xm_status_t status = prepare(self, peer, tag, buffer, length, op);
    message_t message = {.buffer = buffer, .length = length, .memory = memory};

    if (status < 0) {
        return status;
    }
    message.peer = &self->peers[peer];
    message.split = xm_stripe_splits(&message.peer->stripe, length);
    message.wire_tag = (uint64_t)peer << XM_UCX_TAG_BITS | tag;
    message.mask = message.peer->stripe.used > 1 ? ~XM_UCX_TAG_SPLIT : UINT64_MAX;
    start_op(self, op, peer, tag, length, XM_UCX_RECEIVE);
    if (message.peer->mail != NULL) {
        op->priv.buffer = buffer;
        xm_ucx_inbox_receive(message.peer->mail, op);
        return XM_IN_PROGRESS;
    }
    op->priv.flags = message.split ? EXPECTS_SPLIT : 0;
    return post(self, &message, op);
}

void xm_ucx_cancel(xm_transport_t *transport, xm_op_t *op)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    if (op->priv.kind == XM_UCX_IDLE) {
        return;
    }
    if (self->peers[op->priv.peer].mail != NULL) {
        xm_ucx_inbox_cancel(self->peers[op->priv.peer].mail, op);
    } else {
        cancel_list(op->priv.handle);
    }
}

void xm_ucx_cancel_receives(xm_ucx_peer_t *peer)
{
    if (peer->mail != NULL) {
        return; /* UCX has none of them */
    }
    for (xm_list_t *at = xm_list_first(&peer->in_flight), *next; at != NULL; at = next) {
        const xm_op_t *op = xm_op_of(at);

        next = xm_list_next(&peer->in_flight, at);
        if (op->priv.kind == XM_UCX_RECEIVE) {
            cancel_list(op->priv.handle);
        }
    }
    cancel_list(peer->strays);
}

static void abandon_list(xm_ucx_piece_t *piece)
{
    while (piece != NULL) {
        xm_ucx_piece_t *next = piece->next;

        ((xm_ucx_request_t *)piece->request)->abandoned = true;
        ++xm_ucx_rail_of(piece->peer, piece->lane)->abandoned;
        give_piece(piece);
        piece = next;
    }
}

void xm_ucx_abandon_ops(xm_ucx_peer_t *peer)
{
    if (peer->mail != NULL) {
        xm_ucx_mail_abandon(peer, peer->failed ? XM_ERR_PEER_DIED : XM_ERR_CANCELED);
        return;
    }
    xm_ucx_cancel_receives(peer); /* most end right here */
    while (!xm_list_is_empty(&peer->in_flight)) {
        xm_op_t *op = xm_op_of(peer->in_flight.next);

        abandon_list(op->priv.handle);
        xm_ucx_end_op(op, peer->failed ? XM_ERR_PEER_DIED : XM_ERR_CANCELED);
    }
    abandon_list(peer->strays);
}
