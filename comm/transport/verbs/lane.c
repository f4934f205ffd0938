/* SPDX-License-Identifier: Apache-2.0 */
/* One connection: what it sends, and its credits. A sender spends a credit for each header and
 * for the last write of each fragment, both of which use up a receive slot of the peer; slots
 * come back with every header the other way, or by a header of their own. One credit and two
 * places of the send queue are kept for that header and for heartbeats, so two ranks that have
 * filled each other's slots can always tell each other when slots are free again: this is why
 * no pair can stand still. What cannot be sent now is queued and keeps its order, and what was sent
 * is remembered until the peer's device has it, for the case that another connection has to send it
 * again. */
#include <arpa/inet.h>
#include <inttypes.h>
#include <string.h>

#include "comm/transport/verbs/transport_verbs_private.h"

/* Other requests leave these free: a credit and room for a header that only gives credits back, and
 * room for a heartbeat. So the peer can always send again, whatever waits here. */
enum { SPARE_CREDITS = 1, SPARE_ROOM = 2 };

/* Room for a message that needs no send slot; a grant must fit, so that answers never wait for
 * slots of devices with enough inline space. */
_Static_assert(XM_VERBS_INLINE_MAX >= XM_VERBS_HEADER_SIZE + XM_VERBS_GRANT_SIZE,
               "a grant does not fit");

/* The number of a work request, which comes back with its completion and says all there is to
 * know. */
static uint64_t work_number(const xm_verbs_lane_t *lane, int work, uint32_t value)
{
    uint64_t index = (uint64_t)lane->peer->rank * XM_VERBS_LANES + (uint64_t)lane->rail;

    return index << XM_VERBS_LANE_SHIFT | (uint64_t)work << XM_VERBS_WORK_SHIFT | value;
}

/* Puts the lane on the list that the next flush empties. Lists instead of scans: a rank may
 * have thousands of lanes, and few of them wait. */
void xm_verbs_lane_list(xm_verbs_lane_t *lane)
{
    xm_verbs_transport_t *self = lane->peer->owner;

    if (!lane->listed) {
        lane->listed = true;
        lane->next_listed = self->listed;
        self->listed = lane;
    }
}

/* Counts a request, or loses the lane: a queue pair that refuses a request is broken, since
 * room was checked before. */
static bool posted(xm_verbs_lane_t *lane, int error)
{
    if (error != 0) {
        xm_verbs_lose(lane, "its connection over %s refuses requests (%s)",
                      xm_verbs_port_of(lane)->offer.name, strerror(error));
        return false;
    }
    ++lane->posted;
    return true;
}

/* Posts one receive slot. The number of the slot comes back with the completion. */
bool xm_verbs_lane_post_receive(xm_verbs_lane_t *lane, uint32_t slot)
{
    uint32_t slot_size = lane->peer->owner->offer.slot_size;
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
    for (uint32_t slot = 0; slot < lane->peer->owner->offer.slots; ++slot) {
        if (!xm_verbs_lane_post_receive(lane, slot)) {
            return xm_error_set(XM_ERR_UNREACHABLE, "rank %d: %s", lane->peer->owner->base.rank,
                                lane->reason);
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

/* True when a header with so many bytes can be sent now: it fits into the request, or there is
 * a free send slot. */
static bool has_slot(const xm_verbs_lane_t *lane, size_t size)
{
    return size <= lane->max_inline || xm_verbs_port_of(lane)->free_send_count > 0;
}

static bool may_send(const xm_verbs_lane_t *lane)
{
    return xm_verbs_lane_works(lane) && lane->credits > SPARE_CREDITS && lane->room > SPARE_ROOM;
}

/* The bytes of a message that is sent now, or was. */
static uint8_t *bytes_of(xm_verbs_transport_t *self, xm_verbs_wr_t *wr)
{
    const xm_verbs_port_t *port;

    if (wr->slot < 0) {
        return wr->bytes; /* of no rail */
    }
    port = &self->ports[wr->rail];
    return port->sends + (size_t)wr->slot * port->send_size;
}

static void give_slot(xm_verbs_transport_t *self, const xm_verbs_wr_t *wr)
{
    if (wr->slot >= 0) {
        xm_verbs_port_t *port = &self->ports[wr->rail];

        port->free_sends[port->free_send_count++] = wr->slot;
    }
}

/* Puts a message, of which so many bytes are there, into a send slot of this lane's port, unless
 * the device's driver can copy it or it is in such a slot. */
static void take_slot(xm_verbs_lane_t *lane, xm_verbs_wr_t *wr, size_t filled)
{
    xm_verbs_transport_t *self = lane->peer->owner;
    xm_verbs_port_t *port = xm_verbs_port_of(lane);

    if (wr->slot < 0 ? wr->size > lane->max_inline : wr->rail != lane->rail) {
        int slot = port->free_sends[--port->free_send_count];

        memcpy(port->sends + (size_t)slot * port->send_size, bytes_of(self, wr), filled);
        give_slot(self, wr);
        wr->slot = slot;
    }
    wr->rail = lane->rail;
}

/* Remembers what has used up a slot of the peer. */
static void remember(xm_verbs_lane_t *lane, xm_verbs_wr_t *wr)
{
    wr->next = NULL;
    *lane->last_sent = wr;
    lane->last_sent = &wr->next;
    ++lane->sent;
    --lane->credits;
}

xm_verbs_wr_t *xm_verbs_lane_take_sent(xm_verbs_lane_t *lane)
{
    xm_verbs_wr_t *wr = lane->first_sent;

    if (wr != NULL) {
        lane->first_sent = wr->next;
        lane->last_sent = lane->first_sent == NULL ? &lane->first_sent : lane->last_sent;
    }
    return wr;
}

void xm_verbs_lane_forget(xm_verbs_lane_t *lane, xm_verbs_wr_t *wr)
{
    if (wr != NULL) {
        give_slot(lane->peer->owner, wr);
        xm_verbs_give_wr(lane->peer->owner, wr);
    }
}

/* Sends a message whose bytes the work request has, and remembers it. Small ones are copied into
 * the request by the device's driver, larger ones stay in a registered send slot. Each header
 * carries the credits that are owed, so traffic both ways needs no extra messages. */
static bool post_bytes(xm_verbs_lane_t *lane, xm_verbs_wr_t *wr, int work)
{
    uint8_t *bytes = bytes_of(lane->peer->owner, wr);
    struct ibv_sge part = {.addr = (uintptr_t)bytes,
                           .length = (uint32_t)wr->size,
                           .lkey = wr->slot >= 0 ? xm_verbs_port_of(lane)->sends_mr->lkey : 0};
    struct ibv_send_wr request = {.wr_id = work_number(lane, work, 0),
                                  .sg_list = &part,
                                  .num_sge = 1,
                                  .opcode = IBV_WR_SEND,
                                  .send_flags = wr->slot < 0 ? (unsigned)IBV_SEND_INLINE : 0};

    xm_verbs_header_update(bytes, (uint16_t)lane->owed, lane->peer->taken);
    if (!post(lane, &request)) {
        return false;
    }
    lane->unsent += work != XM_VERBS_WORK_CREDIT;
    /* These credits are on their way with this header; a failure of the post would have
     * returned before. */
    lane->owed = 0;
    remember(lane, wr);
    return true;
}

/* Sends a header with what follows it; the caller has checked credits, room and slots. */
static bool post_message(xm_verbs_lane_t *lane, const xm_verbs_header_t *header,
                         const xm_verbs_grant_t *grant, const void *body, size_t body_size)
{
    xm_verbs_transport_t *self = lane->peer->owner;
    int work = header->kind == XM_VERBS_CREDIT ? XM_VERBS_WORK_CREDIT : XM_VERBS_WORK_MESSAGE;
    xm_verbs_wr_t *wr = xm_verbs_take_wr(self);
    size_t head_size;

    if (wr == NULL) {
        return false;
    }
    wr->kind = header->kind == XM_VERBS_CREDIT ? XM_VERBS_CREDIT : XM_VERBS_AGAIN;
    wr->slot = -1;
    head_size = xm_verbs_header_encode(header, grant, wr->bytes);
    wr->size = head_size + body_size;
    take_slot(lane, wr, head_size);
    if (body_size > 0) {
        memcpy(bytes_of(self, wr) + head_size, body, body_size);
    }
    /* The request was refused: nothing has been sent, and the slot is free again. */
    if (!post_bytes(lane, wr, work)) {
        give_slot(self, wr);
        xm_verbs_give_wr(self, wr);
        return false;
    }
    if (header->kind == XM_VERBS_EAGER) {
        xm_count_fragment(xm_verbs_port_of(lane)->counters, XM_SENT, body_size, XM_OK);
    }
    return true;
}

/* Sends what another lane has sent before. */
static bool post_again(xm_verbs_lane_t *lane, xm_verbs_wr_t *wr)
{
    xm_verbs_wr_t *copy = xm_verbs_take_wr(lane->peer->owner);

    if (copy == NULL) {
        return false;
    }
    take_slot(lane, wr, wr->size);
    *copy = *wr;
    memcpy(copy->bytes, wr->bytes, XM_VERBS_INLINE_MAX);
    if (!post_bytes(lane, copy, XM_VERBS_WORK_MESSAGE)) {
        xm_verbs_give_wr(lane->peer->owner, copy);
        return false;
    }
    --lane->unsent; /* it was counted since it waited here */
    return true;
}

static bool post_credit(xm_verbs_lane_t *lane)
{
    xm_verbs_header_t header = {.kind = XM_VERBS_CREDIT};

    return post_message(lane, &header, NULL, NULL, 0);
}

/* Writes as much of a fragment as fits; true when all of it is on its way. Only the last write
 * has an immediate and takes a credit: the connection keeps the order of its writes, so when
 * that one is there, all are. The loop stops when the send queue is full, and goes on from
 * `begin` later. */
static bool post_piece(xm_verbs_lane_t *lane, xm_verbs_wr_t *wr)
{
    xm_verbs_rndv_t *rndv = wr->rndv;
    size_t longest = lane->peer->owner->longest_write;

    longest = longest < xm_verbs_port_of(lane)->max_message ? longest
                                                            : xm_verbs_port_of(lane)->max_message;
    while (wr->begin < wr->end && may_send(lane)) {
        size_t length = wr->end - wr->begin;
        /* A fragment that is longer than the device's limit becomes several writes. */
        bool last = length <= longest;
        struct ibv_sge part = {.addr = (uintptr_t)rndv->op->priv.buffer + wr->begin,
                               .length = (uint32_t)(last ? length : longest),
                               .lkey = rndv->memory->mr[lane->rail]->lkey};
        xm_verbs_wr_t *sent = last ? xm_verbs_take_wr(lane->peer->owner) : NULL;
        struct ibv_send_wr request = {
            .wr_id = work_number(lane, last ? XM_VERBS_WORK_LAST_WRITE : XM_VERBS_WORK_WRITE,
                                 rndv->number),
            .sg_list = &part,
            .num_sge = 1,
            .opcode = last ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
            .wr.rdma.remote_addr = rndv->grant.address + wr->begin,
            .wr.rdma.rkey = rndv->grant.keys[lane->rail]};

        request.imm_data = htonl(rndv->other);
        if (last && sent == NULL) {
            return false;
        }
        if (last) {
            *sent = (xm_verbs_wr_t){.kind = XM_VERBS_PIECE,
                                    .rndv = rndv,
                                    .number = rndv->number,
                                    .start = wr->start,
                                    .end = wr->end,
                                    .slot = -1};
        }
        if (!post(lane, &request)) {
            xm_verbs_lane_forget(lane, sent);
            return false;
        }
        if (last) {
            remember(lane, sent);
        }
        wr->begin += part.length;
        /* Bytes are counted when they are handed to the device, and a failure counts as an
         * error of the NIC. */
        xm_count_fragment(xm_verbs_port_of(lane)->counters, XM_SENT, part.length, XM_OK);
        ++lane->unsent;
    }
    return wr->begin == wr->end;
}

/* Sends the work request as far as that is possible; true when nothing of it is left. A failure
 * also returns false; the caller then finds the peer failed. */
static bool post_wr(xm_verbs_lane_t *lane, xm_verbs_wr_t *wr)
{
    xm_verbs_header_t header = {.kind = (xm_verbs_kind_t)wr->kind};
    const xm_verbs_grant_t *grant = NULL;
    const void *body = NULL;
    size_t body_size = 0, extra = 0;

    /* Credits and room are tested once here for all kinds. */
    if (!may_send(lane)) {
        return false;
    }
    switch (wr->kind) {
    case XM_VERBS_PIECE:
        return post_piece(lane, wr);
    case XM_VERBS_AGAIN:
        return has_slot(lane, wr->size) && post_again(lane, wr);
    case XM_VERBS_LOST:
    case XM_VERBS_BACK:
    case XM_VERBS_HERE:
        header.receiver = wr->came;
        header.sender = wr->number;
        break;
    case XM_VERBS_EAGER:
        header.tag = wr->op->priv.tag;
        header.length = body_size = wr->op->priv.length;
        body = wr->op->priv.buffer;
        break;
    case XM_VERBS_REQUEST:
        header.tag = wr->rndv->op->priv.tag;
        header.length = wr->rndv->op->priv.length;
        header.sender = wr->rndv->number;
        break;
    case XM_VERBS_GRANT:
        header.length = wr->rndv->op->priv.length;
        header.sender = wr->rndv->other;
        header.receiver = wr->rndv->number;
        grant = &wr->rndv->grant;
        extra = XM_VERBS_GRANT_SIZE;
        break;
    default:
        header.sender = wr->number;
        break;
    }
    return has_slot(lane, XM_VERBS_HEADER_SIZE + extra + body_size) &&
           post_message(lane, &header, grant, body, body_size);
}

/* Sends now or queues. Something is sent at once only if nothing waits: a later message must
 * not overtake an earlier one with the same tag. What has no order may take a lane that is back. */
xm_status_t xm_verbs_lane_send(xm_verbs_lane_t *lane, const xm_verbs_wr_t *what)
{
    bool ordered = what->kind == XM_VERBS_EAGER || what->kind == XM_VERBS_REQUEST;
    xm_verbs_wr_t wr = *what, *queued;

    lane = ordered || !xm_verbs_lane_works(lane) ? xm_verbs_lane_now(lane) : lane;
    /* The lane's queue is empty, so nothing is overtaken. */
    if (lane->first == NULL && post_wr(lane, &wr)) {
        return XM_OK;
    }
    if (lane->peer->failed) {
        return xm_verbs_peer_error(lane->peer);
    }
    queued = xm_verbs_take_wr(lane->peer->owner);
    if (queued == NULL) {
        return XM_ERR_NO_MEMORY;
    }
    *queued = wr;
    xm_verbs_lane_append(lane, queued);
    return XM_IN_PROGRESS;
}

void xm_verbs_lane_append(xm_verbs_lane_t *lane, xm_verbs_wr_t *wr)
{
    wr->next = NULL;
    *lane->last = wr;
    lane->last = &wr->next;
    xm_verbs_lane_list(lane);
}

/* Takes the header of an operation off the queue. Fragments are not looked for: once a grant is
 * there, the peer waits for the bytes. */
bool xm_verbs_lane_unqueue(xm_verbs_lane_t *lane, const xm_op_t *op)
{
    for (xm_verbs_wr_t **link = &lane->first; *link != NULL; link = &(*link)->next) {
        xm_verbs_wr_t *wr = *link;
        bool of_op = (wr->kind == XM_VERBS_EAGER && wr->op == op) ||
                     (wr->kind == XM_VERBS_REQUEST && wr->rndv->op == op);

        if (of_op) {
            *link = wr->next;
            /* The tail pointer must not stay in the link that was removed. */
            lane->last = *link == NULL ? link : lane->last;
            xm_verbs_give_wr(lane->peer->owner, wr);
            return true;
        }
    }
    return false;
}

static void drop_first(xm_verbs_lane_t *lane)
{
    xm_verbs_wr_t *wr = lane->first;

    lane->first = wr->next;
    lane->last = lane->first == NULL ? &lane->first : lane->last;
    xm_verbs_give_wr(lane->peer->owner, wr);
}

void xm_verbs_lane_drop_wrs(xm_verbs_lane_t *lane)
{
    while (lane->first_sent != NULL) {
        xm_verbs_lane_forget(lane, xm_verbs_lane_take_sent(lane));
    }
    while (lane->first != NULL) {
        if (lane->first->kind == XM_VERBS_AGAIN) {
            give_slot(lane->peer->owner, lane->first);
        }
        drop_first(lane);
    }
}

/* Sends what the lane holds, then credits if half of the slots are owed; true when the lane
 * must be looked at again. Half is often enough for the peer never to run dry, and seldom
 * enough to cost little. */
static bool flush(xm_verbs_lane_t *lane)
{
    bool owes;

    /* An eager message ends when it leaves the queue: its bytes are in a send slot or in the
     * request by then. */
    while (lane->first != NULL && post_wr(lane, lane->first)) {
        xm_op_t *op = lane->first->kind == XM_VERBS_EAGER ? lane->first->op : NULL;

        drop_first(lane);
        if (op != NULL) {
            xm_verbs_end_op(op, XM_OK);
        }
    }
    owes = lane->owed >= (int)lane->peer->owner->offer.slots / 2;
    /* A credit header may use the last credit and the last room, which other requests leave
     * free for it. */
    if (xm_verbs_lane_works(lane) && owes && lane->credits > 0 && lane->room > 0 &&
        has_slot(lane, XM_VERBS_HEADER_SIZE)) {
        owes = !post_credit(lane);
    }
    return xm_verbs_lane_works(lane) && (owes || lane->first != NULL);
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

/* Sends an empty RDMA write, which needs no receive and no credit at the peer, and whose
 * completion shows that the peer's device lives. One at a time is enough. */
void xm_verbs_lane_probe(xm_verbs_lane_t *lane)
{
    struct ibv_send_wr request = {.wr_id = work_number(lane, XM_VERBS_WORK_BEAT, 0),
                                  .opcode = IBV_WR_RDMA_WRITE};

    lane->beating = post(lane, &request);
}

void xm_verbs_lane_beat(xm_verbs_lane_t *lane)
{
    if (xm_verbs_lane_works(lane) && !lane->beating && lane->room > 0) {
        xm_verbs_lane_probe(lane);
    }
}
