/* SPDX-License-Identifier: Apache-2.0 */
/* One connection: what it sends, and its credits. A sender spends a credit for each frame, which
 * uses up a receive slot of the peer; slots come back with every frame the other way, or by one of
 * their own. One credit and two places of the send queue are kept for that frame and for
 * heartbeats, so two ranks that have filled each other's slots can always tell each other when
 * slots are free again: this is why no pair can stand still. What cannot be sent now is queued and
 * keeps its order. */
#include <string.h>

#include "comm/transport/verbs/transport_verbs_private.h"

/* Other requests leave these free: a credit and room for a frame that only gives credits back, and
 * room for a heartbeat. So the peer can always send again, whatever waits here. A question leaves
 * more: a peer that does not look gives nothing back. */
enum { SPARE_CREDITS = 1, SPARE_ROOM = 2, ASKING_CREDITS = 4 };

/* The number of a work request, which comes back with its completion and says all there is to
 * know. */
static uint64_t work_number(const xm_verbs_lane_t *lane, int work, uint32_t value)
{
    uint64_t index = (uint64_t)lane->peer->base.rank * XM_VERBS_LANES + (uint64_t)lane->rail;

    return index << XM_VERBS_LANE_SHIFT | (uint64_t)work << XM_VERBS_WORK_SHIFT | value;
}

/* Puts the lane on the list that the next flush empties. Lists instead of scans: a rank may
 * have thousands of lanes, and few of them wait. */
void xm_verbs_lane_list(xm_verbs_lane_t *lane)
{
    xm_verbs_transport_t *self = xm_verbs_owner(lane->peer);

    if (!lane->listed) {
        lane->listed = true;
        lane->next_listed = self->listed;
        self->listed = lane;
    }
}

/* Counts a request, or breaks the lane: a queue pair that refuses a request is broken, since
 * room was checked before. */
static bool posted(xm_verbs_lane_t *lane, int error)
{
    if (error != 0) {
        xm_rails_broken(&lane->peer->base, lane->rail, "%s refuses requests: %s",
                        xm_verbs_port_of(lane)->offer.name, strerror(error));
        return false;
    }
    ++lane->posted;
    return true;
}

/* Posts one receive slot. The number of the slot comes back with the completion. */
bool xm_verbs_lane_post_receive(xm_verbs_lane_t *lane, uint32_t slot)
{
    uint32_t slot_size = xm_verbs_owner(lane->peer)->offer.slot_size;
    /* Each slot has a fixed place in the port's ring of memory, registered once. */
    struct ibv_sge part = {.addr = (uintptr_t)(lane->slots + (size_t)slot * slot_size),
                           .length = slot_size,
                           .lkey = xm_verbs_port_of(lane)->ring_mr->lkey};
    struct ibv_recv_wr request = {
        .wr_id = work_number(lane, XM_VERBS_WORK_RECEIVE, slot), .sg_list = &part, .num_sge = 1};
    struct ibv_recv_wr *bad;

    return posted(lane, ibv_post_recv(lane->qp, &request, &bad));
}

xm_status_t xm_verbs_lane_fill(xm_verbs_lane_t *lane)
{
    const xm_verbs_transport_t *self = xm_verbs_owner(lane->peer);

    for (uint32_t slot = 0; slot < self->offer.slots; ++slot) {
        if (!xm_verbs_lane_post_receive(lane, slot)) {
            return xm_error_set(XM_ERR_UNREACHABLE, "rank %d: %s takes no receives",
                                self->base.base.rank, xm_verbs_port_of(lane)->offer.name);
        }
    }
    return XM_OK;
}

/* Posts a send request. All are signalled: the room in the send queue is known exactly that way. */
static bool post(xm_verbs_lane_t *lane, struct ibv_send_wr *request)
{
    struct ibv_send_wr *bad;

    request->send_flags |= IBV_SEND_SIGNALED;
    if (!posted(lane, ibv_post_send(lane->qp, request, &bad))) {
        return false;
    }
    --lane->room;
    return true;
}

/* True when a frame with so many bytes can be sent now: it fits into the request, or there is
 * a free send slot. */
static bool has_slot(const xm_verbs_lane_t *lane, size_t size)
{
    return size <= lane->max_inline || xm_verbs_port_of(lane)->free_send_count > 0;
}

/* A frame says which lanes are given up, so none goes before those are closed. */
static bool works(const xm_verbs_lane_t *lane)
{
    return lane->qp != NULL && !lane->closing && !lane->peer->base.failed &&
           lane->peer->base.rails->retired == 0;
}

static bool may_send(const xm_verbs_lane_t *lane)
{
    return works(lane) && lane->credits > SPARE_CREDITS && lane->room > SPARE_ROOM;
}

void xm_verbs_lane_give_slot(const xm_verbs_lane_t *lane, int slot)
{
    xm_verbs_port_t *port = xm_verbs_port_of(lane);

    if (slot >= 0) {
        port->free_sends[port->free_send_count++] = slot;
    }
}

/* Sends a frame with so many bytes after it; the caller has checked credits, room and slots. Small
 * ones are copied into the request by the device's driver, larger ones stay in a registered send
 * slot. Each frame carries the credits that are owed, so traffic both ways needs no extra
 * messages. */
static bool post_frame(xm_verbs_lane_t *lane, int work, xm_rails_frame_t *frame, const void *body,
                       size_t body_size, int *slot)
{
    const xm_rails_peer_t *peer = &lane->peer->base;
    xm_verbs_port_t *port = xm_verbs_port_of(lane);
    uint8_t carried[XM_VERBS_INLINE_MAX], *bytes = carried;
    size_t size = XM_RAILS_FRAME_SIZE + body_size;
    struct ibv_sge part = {.length = (uint32_t)size};
    struct ibv_send_wr request = {.sg_list = &part,
                                  .num_sge = 1,
                                  .opcode = IBV_WR_SEND,
                                  .send_flags = (unsigned)IBV_SEND_INLINE};

    *slot = -1;
    if (size > lane->max_inline) {
        *slot = port->free_sends[--port->free_send_count];
        bytes = port->sends + (size_t)*slot * port->send_size;
        part.lkey = port->sends_mr->lkey;
        request.send_flags = 0;
    }
    frame->sender = peer->owner->base.rank;
    frame->credits = (uint16_t)lane->owed;
    memcpy(frame->life, peer->rails->life, sizeof(frame->life));
    xm_rails_frame_encode(frame, bytes);
    if (body_size > 0) {
        memcpy(bytes + XM_RAILS_FRAME_SIZE, body, body_size);
    }
    part.addr = (uintptr_t)bytes;
    request.wr_id =
        work_number(lane, work, work == XM_VERBS_WORK_CREDIT ? (uint32_t)(*slot + 1) : 0);
    /* The request was refused: nothing has been sent, and the slot is free again. */
    if (!post(lane, &request)) {
        xm_verbs_lane_give_slot(lane, *slot);
        *slot = -1;
        return false;
    }
    /* These credits are on their way with this frame. */
    lane->owed = 0;
    --lane->credits;
    return true;
}

/* Writes as much of a chunk as fits; true when all of it is on its way. The loop stops when the
 * send queue is full, and goes on from there later. The connection keeps the order of its requests,
 * so when the frame behind them is there, all are. */
static bool post_writes(xm_verbs_lane_t *lane, xm_rails_packet_t *packet)
{
    const xm_rails_outgoing_t *message = packet->message;
    const xm_verbs_transport_t *self = xm_verbs_owner(lane->peer);
    size_t longest = xm_verbs_port_of(lane)->max_message;

    longest = longest < self->longest_write ? longest : self->longest_write;
    while (packet->put < packet->length && may_send(lane)) {
        size_t left = packet->length - packet->put;
        /* A chunk that is longer than the device's limit becomes several writes. */
        struct ibv_sge part = {.addr = (uintptr_t)packet->bytes + packet->put,
                               .length = (uint32_t)(left < longest ? left : longest),
                               .lkey = message->memory.handle->mr[lane->rail]->lkey};
        struct ibv_send_wr request = {.wr_id = work_number(lane, XM_VERBS_WORK_WRITE, 0),
                                      .sg_list = &part,
                                      .num_sge = 1,
                                      .opcode = IBV_WR_RDMA_WRITE,
                                      .wr.rdma.remote_addr =
                                          message->address + packet->frame.offset + packet->put,
                                      .wr.rdma.rkey = message->keys[lane->rail]};

        if (!post(lane, &request)) {
            return false;
        }
        packet->put += part.length;
    }
    return packet->put == packet->length;
}

/* Sends the oldest packet as far as that is possible; true when nothing of it is left here. Bytes
 * that nobody wants any more are not sent. */
static bool post_first(xm_verbs_lane_t *lane)
{
    xm_rails_packet_t *packet = lane->first;
    bool chunk = packet->frame.kind == XM_RAILS_FRAME_CHUNK;
    bool wanted = packet->bytes != NULL || packet->length == 0;
    size_t body = chunk ? 0 : packet->length;

    if (wanted && (!may_send(lane) || (chunk && !post_writes(lane, packet)) || !may_send(lane) ||
                   !has_slot(lane, XM_RAILS_FRAME_SIZE + body) ||
                   !post_frame(lane, XM_VERBS_WORK_FRAME, &packet->frame, packet->bytes, body,
                               &packet->slot))) {
        return false;
    }
    lane->first = packet->next;
    lane->last = lane->first == NULL ? &lane->first : lane->last;
    packet->next = NULL;
    if (!wanted) {
        xm_rails_sent(packet, true);
        return true;
    }
    *lane->last_sent = packet;
    lane->last_sent = &packet->next;
    return true;
}

/* Sends what the lane holds, then credits if half of the slots are owed; true when the lane
 * must be looked at again. Half is often enough for the peer never to run dry, and seldom
 * enough to cost little. A credit frame may use the last credit and the last room, which other
 * requests leave free for it. */
static bool flush(xm_verbs_lane_t *lane)
{
    xm_rails_frame_t frame = {.kind = XM_RAILS_FRAME_CREDIT};
    bool owes;
    int slot;

    while (lane->first != NULL && post_first(lane)) {
        continue;
    }
    owes = lane->owed >= (int)xm_verbs_owner(lane->peer)->offer.slots / 2;
    if (works(lane) && owes && lane->credits > 0 && lane->room > 0 &&
        has_slot(lane, XM_RAILS_FRAME_SIZE)) {
        owes = !post_frame(lane, XM_VERBS_WORK_CREDIT, &frame, NULL, 0, &slot);
    }
    return lane->qp != NULL && !lane->closing && (owes || lane->first != NULL);
}

/* Sends an empty RDMA write, which needs no receive and no credit at the peer, and whose
 * completion shows that the peer's device lives. One at a time is enough. */
static void beat(xm_verbs_lane_t *lane)
{
    struct ibv_send_wr request = {.wr_id = work_number(lane, XM_VERBS_WORK_BEAT, 0),
                                  .opcode = IBV_WR_RDMA_WRITE};

    if (lane->qp != NULL && !lane->closing && !lane->beating && lane->room > 0) {
        lane->beating = post(lane, &request);
    }
}

/* A question that finds no room asks the peer's device instead: that is not the peer's process, so
 * it finds dead devices and hosts, and leaves busy processes alone. */
void xm_verbs_lane_post(xm_rails_peer_t *peer, int rail, xm_rails_packet_t *packet)
{
    xm_verbs_lane_t *lane = &((xm_verbs_peer_t *)peer)->lanes[rail];

    if (packet->frame.kind == XM_RAILS_FRAME_PING &&
        (lane->first != NULL || lane->credits <= ASKING_CREDITS)) {
        beat(lane);
        xm_rails_sent(packet, true);
        return;
    }
    packet->next = NULL;
    packet->slot = -1;
    *lane->last = packet;
    lane->last = &packet->next;
    if (flush(lane)) {
        xm_verbs_lane_list(lane);
    }
}

/* Frames complete in their order, so it is the oldest. */
void xm_verbs_lane_arrived(xm_verbs_lane_t *lane)
{
    xm_rails_packet_t *packet = lane->first_sent;

    lane->first_sent = packet->next;
    lane->last_sent = lane->first_sent == NULL ? &lane->first_sent : lane->last_sent;
    xm_verbs_lane_give_slot(lane, packet->slot);
    xm_rails_sent(packet, true);
}

void xm_verbs_lane_drop(xm_verbs_lane_t *lane)
{
    *lane->last_sent = lane->first;
    while (lane->first_sent != NULL) {
        xm_rails_packet_t *packet = lane->first_sent;

        lane->first_sent = packet->next;
        xm_verbs_lane_give_slot(lane, packet->slot);
        xm_rails_sent(packet, false);
    }
    lane->first = NULL;
    lane->last = &lane->first;
    lane->last_sent = &lane->first_sent;
}

/* Empties the list of lanes. The list is detached first, since flushing may put lanes on it. */
void xm_verbs_flush_lanes(xm_verbs_transport_t *self)
{
    xm_verbs_lane_t *lane = self->listed;

    self->listed = NULL;
    while (lane != NULL) {
        xm_verbs_lane_t *next = lane->next_listed;

        lane->listed = false;
        if (flush(lane)) {
            xm_verbs_lane_list(lane);
        }
        lane = next;
    }
}
