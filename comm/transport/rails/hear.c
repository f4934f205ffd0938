/* SPDX-License-Identifier: Apache-2.0 */
/* Frames that come, posts, and the end of rails. Frames come from inside of what lanes call back,
 * so packets are queued and operations end, but nothing is closed and no user is called. */
#include <poll.h>
#include <unistd.h>

#include "comm/transport/rails/rails.h"

/* How long the end waits for answers before what nobody answered is sent by another way; and the
 * part of the time that a rail which is dead without anybody knowing may use up. */
enum { ANSWER_MS = 20, PART = 2 };

void xm_rails_hear(xm_rails_peer_t *peer, int lane, const xm_rails_frame_t *frame,
                   const uint8_t *bytes, size_t length)
{
    xm_rails_t *rails = peer->rails;
    xm_rails_frame_t answer = {.kind = XM_RAILS_FRAME_PONG};

    if (peer->owner->fenced || peer->failed || peer->reported || lane >= peer->stripe.rails ||
        xm_rails_is_closed(peer)) {
        return;
    }
    /* A rail that this rank has given up may still deliver. Its payload is dropped, or a byte
     * could land late; what it says of the rails is news all the same. */
    if (!xm_rails_uses(rails, lane)) {
        xm_rails_comeback_heard(rails, lane, frame);
    }
    if (!xm_rails_uses(rails, lane)) {
        return;
    }
    xm_rails_failover_heard(rails, lane, frame->life);
    switch (frame->kind) {
    /* An answer to a message of this rank: it asks for a segment, or it acknowledges. */
    case XM_RAILS_FRAME_GRANT:
        xm_rails_tx_on_grant(rails, frame, bytes, length);
        break;
    /* The PONG goes back by the rail of the PING, for it is that rail whose life is in question. */
    case XM_RAILS_FRAME_PING:
        (void)xm_rails_answer(rails, lane, &answer);
        break;
    case XM_RAILS_FRAME_PONG:
    case XM_RAILS_FRAME_CREDIT:
        break;
    /* After FIN the peer answers nothing more, so destroy need not wait for it. */
    case XM_RAILS_FRAME_FIN:
        rails->left = true;
        break;
    case XM_RAILS_FRAME_BACK:
    case XM_RAILS_FRAME_HERE:
        if (xm_rails_puts(rails)) {
            peer->owner->lanes->told(peer, frame);
        }
        break;
    default:
        xm_rails_rx_on_frame(rails, lane, frame, bytes, length);
    }
}

xm_status_t xm_rails_send(xm_rails_peer_t *peer, uint64_t tag, const void *buffer, size_t length,
                          xm_memory_t *memory, xm_op_t *op)
{
    return xm_rails_tx_send(peer->rails, op, tag, buffer, length, memory);
}

xm_status_t xm_rails_receive(xm_rails_peer_t *peer, uint64_t tag, void *buffer, size_t length,
                             xm_memory_t *memory, xm_op_t *op)
{
    xm_rails_start(peer, op, tag, buffer, length, XM_RAILS_RECEIVE);
    op->priv.handle = memory;
    /* Over lanes that put a receiver looks after them, too: nobody else does. */
    if (xm_rails_puts(peer->rails)) {
        xm_rails_failover_arm(peer->owner);
    }
    xm_rails_rx_receive(peer->rails, op);
    return XM_IN_PROGRESS;
}

/* Messages that are arriving lose their receive first, so a chunk that is still handled afterwards
 * finds no buffer to write into. */
void xm_rails_abandon(xm_rails_peer_t *peer, xm_status_t status)
{
    while (!xm_list_is_empty(&peer->in_flight)) {
        xm_op_t *op = xm_op_of(peer->in_flight.next);

        xm_rails_rx_forsake(peer->rails, op);
        xm_rails_end_op(op, status);
    }
    xm_rails_tx_clear(peer->rails);
}

/* Asked before sleeping. Reading the timer clears it, and the caller makes progress if it had
 * fired. Answers that nobody waited for go out now, since nothing else will take them along. */
bool xm_rails_rings(xm_rails_transport_t *self)
{
    uint64_t times;
    bool rings = self->timer_fd >= 0 && read(self->timer_fd, &times, sizeof(times)) > 0;

    for (int rank = 0; rank < self->base.size && self->late > 0; ++rank) {
        if (self->peers[rank]->rails != NULL) {
            xm_rails_rx_catch_up(self->peers[rank]->rails);
        }
    }
    return rings || self->broken || self->first_due != NULL;
}

/* Receives end, and the peer is told what has arrived here, followed by FIN. The peer can then
 * forget its copies at once instead of waiting for answers that nobody will send. */
static void stop_receiving(xm_rails_peer_t *peer)
{
    for (xm_list_t *at = xm_list_first(&peer->in_flight), *next; at != NULL; at = next) {
        next = xm_list_next(&peer->in_flight, at);
        xm_rails_rx_cancel(peer->rails, xm_op_of(at));
    }
    xm_rails_rx_fin(peer->rails);
}

/* True when this peer's packets can be expected to go out, and to be answered. */
static bool is_well(const xm_rails_peer_t *peer)
{
    return peer->rails != NULL && peer->connected && !peer->failed && !peer->reported &&
           !peer->owner->fenced && xm_list_is_empty(&peer->in_flight);
}

/* Some message has no acknowledgement, and the peer has not said FIN, after which none can come.
 * Where lanes put, the devices have acknowledged what is out. */
static bool lacks_answers(const xm_rails_t *rails)
{
    return !xm_rails_puts(rails) && !xm_list_is_empty(&rails->unfinished) && !rails->left;
}

/* Makes progress while `waits` is true of any rails that are well. It serves all peers side by
 * side: one that takes nothing more must not use up the time of the others. */
static void wait_for(xm_rails_transport_t *self, bool (*waits)(const xm_rails_t *rails),
                     int64_t deadline)
{
    bool any = true;

    while (any && xm_transport_now(&self->base) < deadline) {
        int moved = xm_transport_progress(&self->base);

        any = false;
        for (int rank = 0; rank < self->base.size && !any; ++rank) {
            any = is_well(self->peers[rank]) && waits(self->peers[rank]->rails);
        }
        if (any && moved == 0) {
            (void)poll(NULL, 0, 1);
        }
    }
}

/* Sends what there is, and once more, by another rail, what was not answered soon. The repetition
 * costs a few short messages and covers a rail that died silently just before the end: nobody would
 * be left to notice that. */
void xm_rails_part(xm_rails_transport_t *self, int64_t deadline)
{
    int64_t now = xm_transport_now(&self->base);

    if (self->railed == 0 || self->fenced) {
        return;
    }
    for (int rank = 0; rank < self->base.size; ++rank) {
        if (self->peers[rank]->rails != NULL && !self->peers[rank]->failed) {
            stop_receiving(self->peers[rank]);
        }
    }
    wait_for(self, xm_rails_has_packets, now + (deadline - now) / PART);
    wait_for(self, lacks_answers, xm_transport_now(&self->base) + ANSWER_MS * 1000000);
    for (int rank = 0; rank < self->base.size; ++rank) {
        const xm_rails_peer_t *peer = self->peers[rank];

        if (is_well(peer) && lacks_answers(peer->rails)) {
            xm_rails_tx_repeat(peer->rails);
        }
    }
    wait_for(self, xm_rails_has_packets, deadline);
}
