/* SPDX-License-Identifier: Apache-2.0 */
/* How operations are posted and end, for every transport that has rails. There is one way to end
 * only: off the peer's list, on to the list `ended`; `done` is called later, from
 * xm_rails_deliver(). So every operation ends exactly once, and the callback may post again or free
 * the operation. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/base.h"
#include "comm/transport/rails/rails.h"

static const uint64_t tag_limit = UINT64_C(1) << 48;

bool xm_rails_begin(xm_rails_transport_t *self, int rank, int size)
{
    self->base.rank = rank;
    self->base.size = size;
    self->base.failed_peer = -1;
    self->base.real_hosts = true;
    self->timer_fd = -1;
    xm_list_init(&self->ended);
    self->peers = calloc((size_t)size, sizeof(xm_rails_peer_t *));
    return self->peers != NULL;
}

/* It names a peer that failed, so that the worker blames the right rank. */
xm_status_t xm_rails_check(xm_rails_transport_t *self, int rank, uint64_t tag, const void *buffer,
                           size_t length, const xm_op_t *op)
{
    if (rank < 0 || rank >= self->base.size || rank == self->base.rank) {
        return XM_INVALID("rank %d: no peer %d among %d ranks", self->base.rank, rank,
                          self->base.size);
    }
    if (tag >= tag_limit || length == 0 || buffer == NULL) {
        return XM_INVALID("rank %d: message of %zu bytes with tag %" PRIu64
                          "; at least 1 byte and a tag below 2^48 are needed",
                          self->base.rank, length, tag);
    }
    /* The operation's links are in use while it is in flight: a second post would corrupt the
     * list. */
    if (op->priv.kind != XM_RAILS_IDLE) {
        return XM_INVALID("rank %d: operation with tag %" PRIu64 " is posted while in flight",
                          self->base.rank, op->priv.tag);
    }
    if (self->closing || self->fenced) {
        return xm_error_set(XM_ERR_CANCELED, "rank %d: the transport %s", self->base.rank,
                            self->closing ? "is being destroyed"
                                          : "is closed: the group was aborted or shrunk");
    }
    return self->peers[rank]->failed || self->peers[rank]->reported
               ? xm_rails_peer_error(self->peers[rank])
               : XM_OK;
}

/* That comes before anything is sent, because what comes meanwhile may end the operation. The
 * worker's own messages do not count as users: they probe exactly because users wait. */
void xm_rails_start(xm_rails_peer_t *peer, xm_op_t *op, uint64_t tag, const void *buffer,
                    size_t length, int kind)
{
    op->priv.owner = peer->owner;
    op->priv.peer = peer->rank;
    op->priv.tag = tag;
    op->priv.buffer = (void *)(uintptr_t)buffer;
    op->priv.length = length;
    op->priv.received = 0;
    op->priv.kind = kind;
    op->priv.handle = NULL;
    op->priv.pending = 0;
    op->priv.flags = 0;
    op->priv.status = XM_IN_PROGRESS;
    peer->users += tag < XM_TRANSPORT_TAG_OWN;
    xm_list_append(&peer->in_flight, &op->priv.link);
}

void xm_rails_leave(xm_op_t *op)
{
    const xm_rails_transport_t *self = op->priv.owner;
    xm_rails_peer_t *peer = self->peers[op->priv.peer];

    xm_list_remove(&op->priv.link);
    if (op->priv.tag < XM_TRANSPORT_TAG_OWN) {
        --peer->users;
        ++peer->moved;
    }
}

/* A failure that it has already stays, since it is the cause of what came later. */
void xm_rails_end_op(xm_op_t *op, xm_status_t status)
{
    xm_rails_transport_t *self = op->priv.owner;

    xm_rails_leave(op);
    if (op->priv.status == XM_IN_PROGRESS) {
        op->priv.status = status;
    }
    op->priv.handle = NULL;
    xm_list_append(&self->ended, &op->priv.link);
}

/* Makes the sentence that goes with the failure of an operation, just before `done`, since other
 * errors may have come in between. */
static void explain(const xm_rails_transport_t *self, const xm_op_t *op)
{
    const char *verb = op->priv.kind == XM_RAILS_SEND ? "send to" : "receive from";
    char came[64] = "a message of another length came";

    switch (op->priv.status) {
    case XM_ERR_CORRUPT:
        /* The number of bytes that came is what the user compares with. */
        if (op->priv.received > 0) {
            (void)snprintf(came, sizeof(came), "a message of %zu bytes came", op->priv.received);
        }
        (void)xm_error_set(XM_ERR_CORRUPT,
                           "rank %d: receive from rank %d with tag %" PRIu64
                           " expects %zu bytes, %s",
                           self->base.rank, op->priv.peer, op->priv.tag, op->priv.length, came);
        break;
    case XM_ERR_PEER_DIED:
        (void)xm_rails_peer_error(self->peers[op->priv.peer]);
        break;
    case XM_ERR_NO_MEMORY:
        (void)xm_error_set(XM_ERR_NO_MEMORY, "%s (%s rank %d with tag %" PRIu64 ")",
                           self->sentence[0] != '\0' ? self->sentence : "no memory", verb,
                           op->priv.peer, op->priv.tag);
        break;
    default:
        (void)xm_error_set(op->priv.status, "rank %d: %s rank %d with tag %" PRIu64 ": %s",
                           self->base.rank, verb, op->priv.peer, op->priv.tag,
                           xm_status_string(op->priv.status));
    }
}

/* Calls `done` of all that has ended, also of what ends meanwhile. Each operation is taken off the
 * list first and is idle when `done` runs, so that the caller may post it again or free it there.
 */
int xm_rails_deliver(xm_rails_transport_t *self)
{
    int count = 0;

    while (!xm_list_is_empty(&self->ended)) {
        xm_op_t *op = xm_op_of(self->ended.next);
        xm_direction_t direction = op->priv.kind == XM_RAILS_SEND ? XM_SENT : XM_RECEIVED;

        xm_list_remove(&op->priv.link);
        if (op->priv.status < 0) {
            explain(self, op);
        }
        op->priv.kind = XM_RAILS_IDLE;
        xm_transport_end(&self->base, op, direction, op->priv.status);
        ++count;
    }
    return count;
}

/* The first report stays: later ones are consequences. */
void xm_rails_report(xm_rails_peer_t *peer, const char *format, ...)
{
    va_list args;

    if (peer->reported || peer->failed) {
        return;
    }
    peer->reported = true;
    ++peer->owner->reports;
    va_start(args, format);
    (void)vsnprintf(peer->reason, sizeof(peer->reason), format, args);
    va_end(args);
}

/* The sentence depends on who found out: the fault channel knows more than the transport and adds
 * its own. */
xm_status_t xm_rails_peer_error(const xm_rails_peer_t *peer)
{
    if (peer->owner->base.failed_peer < 0) {
        peer->owner->base.failed_peer = peer->rank;
    }
    return peer->reason[0] == '\0'
               ? xm_error_set(XM_ERR_PEER_DIED, "rank %d died", peer->rank)
               : xm_error_set(XM_ERR_PEER_DIED, "rank %d is gone: %s", peer->rank, peer->reason);
}

/* Tells the worker whether a user's operation is open with this peer and how far it has come: a
 * count that stands still makes the worker probe the path. */
bool xm_rails_waits(const xm_transport_t *transport, int peer, uint64_t *moved)
{
    const xm_rails_peer_t *other = ((const xm_rails_transport_t *)transport)->peers[peer];

    *moved = other->moved;
    return other->users > 0;
}

int64_t xm_rails_now(const xm_transport_t *transport)
{
    (void)transport;
    return xm_clock_ns();
}
