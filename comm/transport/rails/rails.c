/* SPDX-License-Identifier: Apache-2.0 */
/* Packets of rails: what lanes are given, when, and which of them. A lane that copies holds a
 * reference to the packet, never to the user's memory: it reads the bytes when it has room, and
 * finds none if the message has ended meanwhile. So a rail that is stuck cannot keep a buffer alive
 * or send it late. Each lane gets at most XM_RAILS_ROOM bytes at a time, which bounds what has to
 * be sent again when it is lost, and lets a faster rail take more. */
#include "comm/transport/rails/rails.h"

#include <string.h>

#include "comm/base.h"

/* A link that is in no ring has NULL pointers, which is how membership is asked. */

/* Puts rails on the list that the next progress empties. Callbacks use this since they may
 * not post from inside of what lanes call back. */
void xm_rails_set_due(xm_rails_t *rails)
{
    xm_rails_transport_t *self = rails->peer->owner;

    if (!rails->due) {
        rails->due = true;
        rails->next_due = self->first_due;
        self->first_due = rails;
    }
}

/* Takes a packet. Without memory the peer fails: an answer that
 * is lost for want of memory would make the peer wait for ever. */
static xm_rails_packet_t *take_packet(xm_rails_t *rails, const xm_rails_frame_t *frame)
{
    xm_rails_transport_t *self = rails->peer->owner;
    xm_rails_packet_t *packet = xm_blocks_take(&self->blocks, sizeof(*packet));

    if (packet == NULL) {
        xm_rails_report(rails->peer, "there is no memory for what it is to be told");
        return NULL;
    }
    *packet = (xm_rails_packet_t){.rails = rails, .frame = *frame};
    return packet;
}

/* The part of the rail's room that a packet takes. The packet itself is counted, too, so that many
 * empty frames are limited like a few large ones. */
static size_t cost_of(const xm_rails_packet_t *packet)
{
    return packet->length + sizeof(*packet);
}

/* The lane has let go of the packet: its room is given back. */
static void forget_packet(xm_rails_packet_t *packet)
{
    xm_rails_t *rails = packet->rails;

    xm_list_remove(&packet->link);
    rails->lanes[packet->lane].given -= packet->stale ? 0 : cost_of(packet);
    if (packet->message != NULL) {
        --packet->message->packets;
    }
    xm_blocks_give(&rails->peer->owner->blocks, packet);
}

/* Counts bytes of messages; answers are not counted, since nobody sent them. */
static void count_packet(const xm_rails_packet_t *packet, xm_status_t status)
{
    if (packet->frame.kind == XM_RAILS_FRAME_EAGER || packet->frame.kind == XM_RAILS_FRAME_CHUNK) {
        xm_count_fragment(xm_rails_nic(packet->rails, packet->lane)->counters, XM_SENT,
                          packet->length, status);
    }
}

/* Counts a fragment that this rail carries because the one that carried it before is lost. */
static void count_retry(const xm_rails_t *rails, int lane, int before)
{
    if (before != XM_RAILS_NO_LANE && !xm_rails_uses(rails, before)) {
        xm_count_retry(xm_rails_nic(rails, lane)->counters);
    }
}

/* That bytes have passed is no acknowledgement, but it shows that the rail moves them, so its
 * silence begins anew. */
void xm_rails_moved(xm_rails_t *rails, int lane)
{
    rails->lanes[lane].moved_at = rails->peer->owner->clock;
    rails->lanes[lane].asked_at = rails->lanes[lane].alone_at = 0;
}

/* A packet that was not sent is forgotten: its message knows by which rail each fragment went, and
 * sends it again. */
void xm_rails_sent(xm_rails_packet_t *packet, bool sent)
{
    xm_rails_t *rails = packet->rails;
    xm_rails_outgoing_t *message = packet->message;

    count_packet(packet, sent ? XM_OK : XM_ERR_IO);
    forget_packet(packet);
    if (message != NULL && message->over && message->packets == 0) {
        xm_rails_tx_end(rails, message);
    }
}

/* Hands a packet to a lane; it may be gone when this returns. The lists are updated before, because
 * the lane may let go of it at once. */
static void post_packet(xm_rails_packet_t *packet, int lane)
{
    xm_rails_t *rails = packet->rails;

    packet->lane = lane;
    xm_list_append(&rails->lanes[lane].posted, &packet->link);
    rails->lanes[lane].given += cost_of(packet);
    if (packet->message != NULL) {
        ++packet->message->packets;
    }
    rails->peer->owner->lanes->post(rails->peer, lane, packet);
}

/* Queues an answer. Acknowledgements of consecutive messages are merged into one frame as long
 * as the first still waits, so a burst of short messages costs few answers. */
xm_rails_packet_t *xm_rails_answer(xm_rails_t *rails, int lane, const xm_rails_frame_t *frame)
{
    xm_list_t *end = xm_list_last(&rails->answers);
    xm_rails_packet_t *last = end != NULL ? xm_list_entry(end, xm_rails_packet_t, link) : NULL;
    xm_rails_packet_t *packet;

    /* Messages often end in the order of their numbers. */
    if (last != NULL && frame->kind == XM_RAILS_FRAME_GRANT &&
        frame->offset == XM_RAILS_FRAME_ALL && last->frame.kind == XM_RAILS_FRAME_GRANT &&
        last->frame.offset == XM_RAILS_FRAME_ALL &&
        frame->message == last->frame.message + last->frame.length) {
        last->frame.length += frame->length;
        return last;
    }
    packet = take_packet(rails, frame);
    if (packet != NULL) {
        packet->lane = lane;
        packet->stays = !xm_rails_uses(rails, lane);
        xm_list_append(&rails->answers, &packet->link);
        xm_rails_set_due(rails);
    }
    return packet;
}

/* True when a lane takes bytes. One that would keep them while it is not joined gets none: they are
 * their owner's, and such a lane does not let go of them. */
static bool takes(const xm_rails_t *rails, int lane, bool chunk)
{
    return xm_rails_uses(rails, lane) && rails->lanes[lane].given < XM_RAILS_ROOM &&
           (!chunk || rails->way != XM_RAILS_FETCH || rails->lanes[lane].joined);
}

/* Chooses the rail for bytes: of those with room the one that was given least for its weight,
 * but not `avoid` where there is another one; -1: none. Loads are in units of bytes divided by
 * the share, so rails fill in proportion to their rates without a schedule. */
static int choose_lane(xm_rails_t *rails, size_t length, bool chunk, int avoid)
{
    const xm_stripe_t *stripe = &rails->peer->stripe;
    int best = -1, others = 0;

    /* Lanes that can be used other than the one to avoid; if there are none, the avoided one is
     * better than nothing. */
    for (int i = 0; i < stripe->rails; ++i) {
        others += i != avoid && xm_rails_uses(rails, i);
    }
    for (int i = 0; i < stripe->rails; ++i) {
        if (takes(rails, i, chunk) && (i != avoid || others == 0) &&
            (best < 0 || rails->lanes[i].load < rails->lanes[best].load)) {
            best = i;
        }
    }
    if (best >= 0) {
        uint32_t share = stripe->end[best] - (best > 0 ? stripe->end[best - 1] : 0);

        rails->lanes[best].load += ((uint64_t)length << 16) / share;
    }
    return best;
}

/* Answers go out first and without a limit: peers wait for them to free memory and to end
 * sends. One whose rail is lost takes any other, unless it is there to try that one. */
static void progress_answers(xm_rails_t *rails)
{
    while (!xm_list_is_empty(&rails->answers)) {
        xm_rails_packet_t *packet = xm_list_entry(rails->answers.next, xm_rails_packet_t, link);
        int lane = packet->lane;

        for (int i = 0;
             i < rails->peer->stripe.rails && !packet->stays && !xm_rails_uses(rails, lane); ++i) {
            lane = i;
        }
        xm_list_remove(&packet->link);
        if (packet->stays && !rails->peer->owner->lanes->ready(rails->peer, lane)) {
            xm_blocks_give(&rails->peer->owner->blocks, packet);
        } else {
            post_packet(packet, lane);
        }
    }
}

/* Posts one announcement: EAGER with its bytes, or START without. Returns false when no rail
 * has room. */
static bool progress_start(xm_rails_t *rails)
{
    xm_rails_outgoing_t *message = xm_list_entry(rails->starts.next, xm_rails_outgoing_t, start);
    bool eager = message->chunk == 0;
    xm_rails_frame_t frame = {.kind = eager ? XM_RAILS_FRAME_EAGER : XM_RAILS_FRAME_START,
                              .message = message->number,
                              .tag = message->tag,
                              .length = message->length,
                              .chunk = eager ? message->op != NULL : message->chunk};
    /* A message that is repeated before leaving avoids the rail that carried it before, since
     * that one may have lost it. */
    int lane = choose_lane(rails, eager ? message->length : 0, false,
                           message->elsewhere ? message->start_by : XM_RAILS_NO_LANE);
    xm_rails_packet_t *packet = lane >= 0 ? take_packet(rails, &frame) : NULL;

    if (packet == NULL) {
        return false;
    }
    xm_list_remove(&message->start);
    count_retry(rails, lane, message->start_by);
    message->start_by = (uint8_t)lane;
    if (eager) {
        packet->message = message;
        packet->bytes = message->bytes;
        packet->length = message->length;
    }
    post_packet(packet, lane);
    return true;
}

/* Posts one chunk of the first message that has some left. Messages share the rails in the
 * order of their grants, which keeps the first of several large ones from being slowed down by
 * the rest. */
static bool progress_chunk(xm_rails_t *rails)
{
    xm_rails_outgoing_t *message = xm_list_entry(rails->ready.next, xm_rails_outgoing_t, ready);
    int index = __builtin_ctzll(message->todo);
    size_t offset = message->from + (size_t)index * message->chunk;
    size_t left = message->length - offset;
    size_t length = left < message->chunk ? left : message->chunk;
    xm_rails_frame_t frame = {
        .kind = XM_RAILS_FRAME_CHUNK, .message = message->number, .offset = offset};
    int lane = choose_lane(rails, length, true, XM_RAILS_NO_LANE);
    xm_rails_packet_t *packet = lane >= 0 ? take_packet(rails, &frame) : NULL;

    if (packet == NULL) {
        return false;
    }
    /* The lowest bit is the chunk that goes now. Which rail carried it is noted for the day
     * that rail is lost. */
    message->todo &= message->todo - 1;
    if (message->todo == 0) {
        xm_list_remove(&message->ready);
    }
    count_retry(rails, lane, message->by[index]);
    message->by[index] = (uint8_t)lane;
    packet->message = message;
    packet->bytes = message->bytes + offset;
    packet->length = length;
    post_packet(packet, lane);
    return true;
}

/* Posts what the rails have room for: answers, then announcements, then chunks. While an error
 * waits to be judged nothing is posted, because a peer that is dying should not get more to
 * lose; and where lanes put, nothing before those that were given up are closed: the peer may send
 * again as soon as it has heard of that. */
static void progress(xm_rails_t *rails)
{
    xm_rails_peer_t *peer = rails->peer;

    if (peer->failed || peer->reported || peer->owner->fenced || rails->broken_at != 0 ||
        (xm_rails_puts(rails) && rails->retired != 0) || xm_rails_is_closed(peer)) {
        return;
    }
    /* Connecting is put off until something is to be sent, and may fail for some lanes only. */
    if (!peer->connected && !peer->owner->lanes->connect(peer)) {
        return;
    }
    if (rails->broken_at != 0) {
        return; /* a lane did not connect: first that is acted upon */
    }
    progress_answers(rails);
    while (!xm_list_is_empty(&rails->starts) && progress_start(rails)) {
        continue;
    }
    while (!xm_list_is_empty(&rails->ready) && progress_chunk(rails)) {
        continue;
    }
}

/* Serves all that are on the list. What finds no room now is tried again when a lane has sent a
 * packet: the transport then puts the rails back on the list. */
void xm_rails_progress(xm_rails_transport_t *self)
{
    while (self->first_due != NULL) {
        xm_rails_t *rails = self->first_due;

        self->first_due = rails->next_due;
        rails->due = false;
        progress(rails);
    }
}

/* Detaches a message that is about to be freed from all packets that lanes still have. Their bytes
 * are not read any more, so the user's buffer is free from now on. */
void xm_rails_void(xm_rails_t *rails, const xm_rails_outgoing_t *message)
{
    for (int lane = 0; lane < rails->peer->stripe.rails && message->packets > 0; ++lane) {
        const xm_list_t *posted = &rails->lanes[lane].posted;

        for (xm_list_t *at = xm_list_first(posted); at != NULL; at = xm_list_next(posted, at)) {
            xm_rails_packet_t *packet = xm_list_entry(at, xm_rails_packet_t, link);

            if (packet->message == message) {
                packet->message = NULL;
                packet->bytes = NULL;
            }
        }
    }
}

/* Says whether destroy still has to wait for these rails. */
bool xm_rails_has_packets(const xm_rails_t *rails)
{
    bool any = !xm_list_is_empty(&rails->answers) || !xm_list_is_empty(&rails->starts) ||
               !xm_list_is_empty(&rails->ready);

    for (int lane = 0; lane < rails->peer->stripe.rails; ++lane) {
        /* Where nothing moves any more, waiting for packets would be in vain. */
        any = any || (xm_rails_uses(rails, lane) && !xm_list_is_empty(&rails->lanes[lane].posted) &&
                      !xm_rails_nic(rails, lane)->halted);
    }
    return any;
}

/* Rails exist for the life of the transport. */
xm_status_t xm_rails_open(xm_rails_peer_t *peer, xm_rails_way_t way, size_t eager)
{
    xm_rails_t *rails = xm_blocks_take(&peer->owner->blocks, sizeof(*rails));

    XM_NEED_MEMORY(rails, "messages to rank %d", peer->rank);
    *rails = (xm_rails_t){.peer = peer, .eager = eager, .way = way};
    xm_list_init(&rails->unfinished);
    xm_list_init(&rails->starts);
    xm_list_init(&rails->ready);
    xm_list_init(&rails->answers);
    xm_list_init(&rails->over);
    xm_list_init(&rails->unclaimed);
    xm_list_init(&rails->aside);
    for (int lane = 0; lane < XM_NICS_MAX; ++lane) {
        xm_list_init(&rails->lanes[lane].posted);
    }
    peer->rails = rails;
    ++peer->owner->railed;
    return XM_OK;
}
