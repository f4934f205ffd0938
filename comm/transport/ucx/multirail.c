/* SPDX-License-Identifier: Apache-2.0 */
/* Packets of the multi-rail channel: what UCX is given, when, and on which rail. UCX holds a
 * reference to the packet, never to the user's memory: pack() reads the bytes when UCX has
 * room, and reads zeros if the message has ended meanwhile. So a rail that is stuck cannot keep
 * a buffer alive or send it late. Each rail gets at most XM_UCX_MULTIRAIL_ROOM bytes at a time,
 * which bounds what has to be sent again when it is lost, and lets a faster rail take more. */
#include "comm/transport/ucx/multirail.h"

#include <string.h>

/* A link that is in no ring has NULL pointers, which is how membership is asked. */

/* The datatype of a packet's bytes. UCX asks for them when it has room, which for a rail that
 * is gone may be never, or long after their owner has freed them. The last byte tells the
 * receiver whether all others were what they should be: it is 1 if the bytes were still there
 * at the end. */

static void *start_pack(void *context, const void *packet, size_t count)
{
    (void)context;
    (void)count;
    return (void *)(uintptr_t)packet;
}

static void *start_unpack(void *context, void *buffer, size_t count)
{
    (void)context;
    (void)count;
    return buffer; /* never: receivers get the bytes as they are */
}

static size_t packed_size(void *state)
{
    return ((const xm_ucx_packet_t *)state)->length + 1;
}

/* Copies what UCX has room for. It may be called several times for one packet; if the message
 * ends between two calls, the last byte stays 0 and the receiver drops everything. */
static size_t pack(void *state, size_t offset, void *bytes, size_t room)
{
    const xm_ucx_packet_t *packet = state;
    size_t left = packet->length + 1 - offset;
    size_t size = room < left ? room : left, copied = size - (size == left);

    /* Nobody wants these bytes any more, and their buffer may be gone; UCX still expects the
     * length that it was promised. */
    if (packet->bytes == NULL) {
        memset(bytes, 0, size);
        return size;
    }
    memcpy(bytes, packet->bytes + offset, copied);
    if (size == left) {
        ((uint8_t *)bytes)[copied] = 1;
    }
    return size;
}

static ucs_status_t unpack(void *state, size_t offset, const void *bytes, size_t length)
{
    (void)state;
    (void)offset;
    (void)bytes;
    (void)length;
    return UCS_OK;
}

static void finish(void *state)
{
    (void)state;
}

static const ucp_generic_dt_ops_t packet_ops = {.start_pack = start_pack,
                                                .start_unpack = start_unpack,
                                                .packed_size = packed_size,
                                                .pack = pack,
                                                .unpack = unpack,
                                                .finish = finish};

ucs_status_t xm_ucx_multirail_make_type(xm_ucx_transport_t *self)
{
    ucs_status_t status = UCS_OK;

    if (!self->has_packet_type) {
        status = ucp_dt_create_generic(&packet_ops, NULL, &self->packet_type);
        self->has_packet_type = status == UCS_OK;
    }
    return status;
}

/* Puts the channel on the list that the next progress empties. Callbacks use this since they may
 * not post from inside UCX's progress. */
void xm_ucx_multirail_set_due(xm_ucx_multirail_t *multirail)
{
    xm_ucx_transport_t *self = multirail->peer->owner;

    if (!multirail->due) {
        multirail->due = true;
        multirail->next_due = self->due_multirail;
        self->due_multirail = multirail;
    }
}

/* Takes a packet. Without memory the peer fails: an answer that
 * is lost for want of memory would make the peer wait for ever. */
static xm_ucx_packet_t *take_packet(xm_ucx_multirail_t *multirail, const xm_ucx_frame_t *frame)
{
    xm_ucx_transport_t *self = multirail->peer->owner;
    xm_ucx_packet_t *packet = xm_blocks_take(&self->blocks, sizeof(*packet));

    if (packet == NULL) {
        xm_ucx_report(multirail->peer, UCS_ERR_NO_MEMORY);
        return NULL;
    }
    *packet = (xm_ucx_packet_t){.multirail = multirail, .frame = *frame};
    return packet;
}

/* The part of the rail's room that a packet takes. The packet itself is counted, too, so that many
 * empty frames are limited like a few large ones. */
static size_t cost_of(const xm_ucx_packet_t *packet)
{
    return packet->length + sizeof(*packet);
}

/* UCX has let go of the packet, or has refused it: the rail's room is given back. */
static void forget_packet(xm_ucx_packet_t *packet)
{
    xm_ucx_multirail_t *multirail = packet->multirail;

    xm_list_remove(&packet->link);
    multirail->lanes[packet->lane].given -= packet->stale ? 0 : cost_of(packet);
    if (packet->message != NULL) {
        --packet->message->packets;
    }
    xm_blocks_give(&multirail->peer->owner->blocks, packet);
}

/* Counts bytes of messages; answers are not counted, since nobody sent them. */
static void count_packet(const xm_ucx_packet_t *packet, xm_status_t status)
{
    if (packet->frame.kind == XM_UCX_FRAME_EAGER || packet->frame.kind == XM_UCX_FRAME_CHUNK) {
        xm_count_fragment(xm_ucx_rail_of(packet->multirail->peer, packet->lane)->counters, XM_SENT,
                          packet->length, status);
    }
}

/* Counts a fragment that this rail carries because the one that carried it before is lost. */
static void count_retry(const xm_ucx_multirail_t *multirail, int lane, int before)
{
    if (before != XM_UCX_MULTIRAIL_NO_LANE && !xm_ucx_multirail_uses(multirail, before)) {
        xm_count_retry(xm_ucx_rail_of(multirail->peer, lane)->counters);
    }
}

/* UCX has sent the packet, or failed to. That it was sent is no acknowledgement, but it shows
 * that the rail moves bytes, so its silence begins anew. */
static void on_packet_sent(void *request, ucs_status_t status, void *user_data)
{
    xm_ucx_packet_t *packet = user_data;
    xm_ucx_multirail_t *multirail = packet->multirail;
    xm_ucx_health_t *lane = &multirail->lanes[packet->lane];

    ucp_request_free(request);
    count_packet(packet, xm_ucx_status(status, false));
    /* An error of one packet is an error of its rail. The packet itself is forgotten: its
     * message knows by which rail each fragment went, and sends it again. */
    if (status != UCS_OK && !packet->stale) {
        xm_ucx_failover_broken(multirail->peer, packet->lane, status);
    } else if (packet->length > 0 && !packet->stale) {
        lane->moved_at = multirail->peer->owner->clock;
        lane->asked_at = lane->alone_at = 0;
    }
    forget_packet(packet);
    xm_ucx_multirail_set_due(multirail);
}

/* Hands a packet to UCX; it may be freed when this returns. The frame is encoded only now, so
 * that it carries the newest lives of the rails. */
static void post_packet(xm_ucx_packet_t *packet, int index)
{
    xm_ucx_multirail_t *multirail = packet->multirail;
    xm_ucx_transport_t *self = multirail->peer->owner;
    /* Frames are always sent eagerly: a rendezvous of UCX would let the receiver read from this
     * rank's memory later, which is what frames exist to avoid. */
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_AM_SEND_FLAG_EAGER,
                                 .cb.send = on_packet_sent,
                                 .user_data = packet};
    ucs_status_ptr_t request;

    packet->lane = index;
    packet->frame.sender = self->base.rank;
    memcpy(packet->frame.life, multirail->life, sizeof(multirail->life));
    xm_ucx_frame_encode(&packet->frame, packet->head);
    if (packet->length > 0) {
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
        param.datatype = self->packet_type;
    }
    /* The lists are updated before UCX is called, because its callback may come inside the call. */
    xm_list_append(&multirail->lanes[index].posted, &packet->link);
    multirail->lanes[index].given += cost_of(packet);
    if (packet->message != NULL) {
        ++packet->message->packets;
    }
    request = ucp_am_send_nbx(multirail->peer->lanes[index].ep, XM_UCX_MULTIRAIL_FRAMES,
                              packet->head, XM_UCX_FRAME_SIZE, packet->length > 0 ? packet : NULL,
                              packet->length > 0 ? packet->length + 1 : 0, &param);
    /* UCX completes small frames inside the call and returns no request; on_packet_sent() is
     * then never called. */
    if (UCS_PTR_IS_ERR(request)) {
        xm_ucx_failover_broken(multirail->peer, index, UCS_PTR_STATUS(request));
    }
    if (request == NULL || UCS_PTR_IS_ERR(request)) {
        count_packet(packet, request == NULL ? XM_OK : XM_ERR_IO);
        forget_packet(packet);
    }
}

/* Queues an answer. Acknowledgements of consecutive messages are merged into one frame as long
 * as the first still waits, so a burst of short messages costs few answers. */
void xm_ucx_multirail_answer(xm_ucx_multirail_t *multirail, int lane, const xm_ucx_frame_t *frame)
{
    xm_list_t *end = xm_list_last(&multirail->answers);
    xm_ucx_packet_t *last = end != NULL ? xm_list_entry(end, xm_ucx_packet_t, link) : NULL;
    xm_ucx_packet_t *packet;

    /* Messages often end in the order of their numbers. */
    if (last != NULL && frame->kind == XM_UCX_FRAME_GRANT && frame->offset == XM_UCX_FRAME_ALL &&
        last->frame.kind == XM_UCX_FRAME_GRANT && last->frame.offset == XM_UCX_FRAME_ALL &&
        frame->message == last->frame.message + last->frame.length) {
        last->frame.length += frame->length;
        return;
    }
    packet = take_packet(multirail, frame);
    if (packet != NULL) {
        packet->lane = lane;
        packet->stays = !xm_ucx_multirail_uses(multirail, lane);
        xm_list_append(&multirail->answers, &packet->link);
        xm_ucx_multirail_set_due(multirail);
    }
}

/* Chooses the rail for bytes: of those with room the one that was given least for its weight,
 * but not `avoid` where there is another one; -1: none. Loads are in units of bytes divided by
 * the share, so rails fill in proportion to their rates without a schedule. */
static int choose_lane(xm_ucx_multirail_t *multirail, size_t length, int avoid)
{
    const xm_stripe_t *stripe = &multirail->peer->stripe;
    int best = -1, others = 0;

    /* Lanes that can be used other than the one to avoid; if there are none, the avoided one is
     * better than nothing. */
    for (int i = 0; i < stripe->rails; ++i) {
        others += i != avoid && xm_ucx_multirail_uses(multirail, i);
    }
    for (int i = 0; i < stripe->rails; ++i) {
        if (xm_ucx_multirail_uses(multirail, i) && (i != avoid || others == 0) &&
            multirail->lanes[i].given < XM_UCX_MULTIRAIL_ROOM &&
            (best < 0 || multirail->lanes[i].load < multirail->lanes[best].load)) {
            best = i;
        }
    }
    if (best >= 0) {
        uint32_t share = stripe->end[best] - (best > 0 ? stripe->end[best - 1] : 0);

        multirail->lanes[best].load += ((uint64_t)length << 16) / share;
    }
    return best;
}

/* Answers go out first and without a limit: peers wait for them to free memory and to end
 * sends. One whose rail is lost takes any other, unless it is there to try that one. */
static void progress_answers(xm_ucx_multirail_t *multirail)
{
    while (!xm_list_is_empty(&multirail->answers)) {
        xm_ucx_packet_t *packet = xm_list_entry(multirail->answers.next, xm_ucx_packet_t, link);
        int lane = packet->lane;

        for (int i = 0; i < multirail->peer->stripe.rails && !packet->stays &&
                        !xm_ucx_multirail_uses(multirail, lane);
             ++i) {
            lane = i;
        }
        xm_list_remove(&packet->link);
        if (packet->stays && xm_ucx_connect_lane(multirail->peer, lane) != UCS_OK) {
            xm_blocks_give(&multirail->peer->owner->blocks, packet);
        } else {
            post_packet(packet, lane);
        }
    }
}

/* Posts one announcement: EAGER with its bytes, or START without. Returns false when no rail
 * has room. */
static bool progress_start(xm_ucx_multirail_t *multirail)
{
    xm_ucx_outgoing_t *message = xm_list_entry(multirail->starts.next, xm_ucx_outgoing_t, start);
    bool eager = message->chunk == 0;
    xm_ucx_frame_t frame = {.kind = eager ? XM_UCX_FRAME_EAGER : XM_UCX_FRAME_START,
                            .message = message->number,
                            .tag = message->tag,
                            .length = message->length,
                            .chunk = message->chunk};
    /* A message that is repeated before leaving avoids the rail that carried it before, since
     * that one may have lost it. */
    int lane = choose_lane(multirail, eager ? message->length : 0,
                           message->elsewhere ? message->start_by : XM_UCX_MULTIRAIL_NO_LANE);
    xm_ucx_packet_t *packet = lane >= 0 ? take_packet(multirail, &frame) : NULL;

    if (packet == NULL) {
        return false;
    }
    xm_list_remove(&message->start);
    count_retry(multirail, lane, message->start_by);
    message->start_by = (uint8_t)lane;
    packet->message = message;
    if (eager) {
        packet->bytes = message->bytes;
        packet->length = message->length;
    }
    post_packet(packet, lane);
    return true;
}

/* Posts one chunk of the first message that has some left. Messages share the rails in the
 * order of their grants, which keeps the first of several large ones from being slowed down by
 * the rest. */
static bool progress_chunk(xm_ucx_multirail_t *multirail)
{
    xm_ucx_outgoing_t *message = xm_list_entry(multirail->ready.next, xm_ucx_outgoing_t, ready);
    int index = __builtin_ctzll(message->todo);
    size_t offset = message->from + (size_t)index * message->chunk;
    size_t left = message->length - offset;
    size_t length = left < message->chunk ? left : message->chunk;
    xm_ucx_frame_t frame = {
        .kind = XM_UCX_FRAME_CHUNK, .message = message->number, .offset = offset};
    int lane = choose_lane(multirail, length, XM_UCX_MULTIRAIL_NO_LANE);
    xm_ucx_packet_t *packet = lane >= 0 ? take_packet(multirail, &frame) : NULL;

    if (packet == NULL) {
        return false;
    }
    /* The lowest bit is the chunk that goes now. Which rail carried it is noted for the day
     * that rail is lost. */
    message->todo &= message->todo - 1;
    if (message->todo == 0) {
        xm_list_remove(&message->ready);
    }
    count_retry(multirail, lane, message->by[index]);
    message->by[index] = (uint8_t)lane;
    packet->message = message;
    packet->bytes = message->bytes + offset;
    packet->length = length;
    post_packet(packet, lane);
    return true;
}

/* Posts what the rails have room for: answers, then announcements, then chunks. While an error
 * waits to be judged nothing is posted, because a peer that is dying should not get more to
 * lose. */
static void progress(xm_ucx_multirail_t *multirail)
{
    xm_ucx_peer_t *peer = multirail->peer;

    if (peer->failed || peer->reported || peer->owner->fenced || multirail->broken_at != 0 ||
        xm_ucx_multirail_is_closed(peer)) {
        return;
    }
    /* Connecting is put off until something is to be sent, and may fail for some rails only. */
    if (!peer->connected && xm_ucx_connect(peer) < 0) {
        xm_ucx_report(peer, UCS_ERR_UNREACHABLE);
        return;
    }
    if (multirail->broken_at != 0) {
        return; /* a lane did not connect: first that is acted upon */
    }
    progress_answers(multirail);
    while (!xm_list_is_empty(&multirail->starts) && progress_start(multirail)) {
        continue;
    }
    while (!xm_list_is_empty(&multirail->ready) && progress_chunk(multirail)) {
        continue;
    }
}

/* Serves all channels on the list. What finds no room now is tried again when UCX has sent a
 * packet: on_packet_sent() puts the channel back on the list. */
void xm_ucx_multirail_progress(xm_ucx_transport_t *self)
{
    while (self->due_multirail != NULL) {
        xm_ucx_multirail_t *multirail = self->due_multirail;

        self->due_multirail = multirail->next_due;
        multirail->due = false;
        progress(multirail);
    }
}

/* Detaches a message that is about to be freed from all packets UCX still has. Their bytes
 * become zeros with an invalid mark, so the user's buffer is free from now on. */
void xm_ucx_multirail_void(xm_ucx_multirail_t *multirail, const xm_ucx_outgoing_t *message)
{
    for (int lane = 0; lane < multirail->peer->stripe.rails && message->packets > 0; ++lane) {
        const xm_list_t *posted = &multirail->lanes[lane].posted;

        for (xm_list_t *at = xm_list_first(posted); at != NULL; at = xm_list_next(posted, at)) {
            xm_ucx_packet_t *packet = xm_list_entry(at, xm_ucx_packet_t, link);

            if (packet->message == message) {
                packet->message = NULL;
                packet->bytes = NULL;
            }
        }
    }
}

/* Says whether destroy still has to wait for this channel. */
bool xm_ucx_multirail_has_packets(const xm_ucx_multirail_t *multirail)
{
    bool any = !xm_list_is_empty(&multirail->answers) || !xm_list_is_empty(&multirail->starts) ||
               !xm_list_is_empty(&multirail->ready);

    for (int lane = 0; lane < multirail->peer->stripe.rails; ++lane) {
        /* Destroy makes no progress on a rail with abandoned requests, so waiting for its
         * packets would be in vain. */
        any = any || (xm_ucx_multirail_uses(multirail, lane) &&
                      !xm_list_is_empty(&multirail->lanes[lane].posted) &&
                      xm_ucx_rail_of(multirail->peer, lane)->abandoned == 0);
    }
    return any;
}

/* A channel exists for the life of the transport. */
xm_status_t xm_ucx_multirail_open(xm_ucx_peer_t *peer)
{
    xm_ucx_multirail_t *multirail = xm_blocks_take(&peer->owner->blocks, sizeof(*multirail));

    if (multirail == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for messages to rank %d", peer->rank);
    }
    *multirail = (xm_ucx_multirail_t){.peer = peer};
    xm_list_init(&multirail->unfinished);
    xm_list_init(&multirail->starts);
    xm_list_init(&multirail->ready);
    xm_list_init(&multirail->answers);
    xm_list_init(&multirail->unclaimed);
    xm_list_init(&multirail->aside);
    for (int lane = 0; lane < XM_NICS_MAX; ++lane) {
        xm_list_init(&multirail->lanes[lane].posted);
    }
    peer->multirail = multirail;
    return XM_OK;
}
