/* SPDX-License-Identifier: Apache-2.0 */
/* What comes from a peer meets the receives that were posted for it. Receives and stored
 * messages are two lists in order, of which at most one has entries of a given tag, so the
 * first with the tag is always the right one. Short messages are copied; for longer ones the
 * receiver grants its buffer and the sender writes into it. The peer's numbers are checked
 * before use, and a peer that speaks nonsense is failed: a reliable connection does not
 * corrupt, so it is another version or a bug. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "comm/transport/verbs/transport_verbs_private.h"

static xm_op_t *find_receive(const xm_verbs_peer_t *peer, uint64_t tag)
{
    xm_list_t *at = xm_list_first(&peer->receives);

    while (at != NULL && xm_op_of(at)->priv.tag != tag) {
        at = xm_list_next(&peer->receives, at);
    }
    return at != NULL ? xm_op_of(at) : NULL;
}

/* Tells the peer that its request is done with: its send ends as if somebody had received it,
 * because the mistake (a receive of another length) was made here. */
static void discard(xm_verbs_lane_t *lane, uint32_t number)
{
    xm_verbs_wr_t wr = {.kind = XM_VERBS_DISCARD, .number = number};

    if (xm_verbs_lane_send(lane, &wr) == XM_ERR_NO_MEMORY) {
        xm_verbs_fail(lane->peer, "it cannot be answered (%s)", xm_last_error());
    }
}

/* Lets the peer write into the receive's buffer. From here on the receive cannot be cancelled.
 * If the buffer cannot be registered the receive fails alone: the request is discarded, so the
 * peer's send ends and the connection lives on. */
static void grant(xm_verbs_lane_t *lane, xm_op_t *op, uint32_t number)
{
    xm_verbs_peer_t *peer = lane->peer;
    xm_verbs_transport_t *self = peer->owner;
    xm_verbs_rndv_t *rndv = op->priv.handle;
    xm_verbs_wr_t wr = {.kind = XM_VERBS_GRANT, .rndv = rndv};
    xm_status_t status = XM_OK;

    /* The receive was short enough not to get a number when it was posted. */
    if (rndv == NULL) {
        rndv = wr.rndv = op->priv.handle = xm_verbs_take_rndv(self, op);
    }
    if (rndv == NULL) {
        status = XM_ERR_NO_MEMORY;
    } else if (rndv->memory == NULL) {
        /* A short message that was announced because the peer stores too many already: its
         * receive was posted without registering the buffer. */
        status = xm_verbs_memory_hold(self, op->priv.buffer, op->priv.length, true, &rndv->memory);
    }
    if (status < 0) {
        (void)snprintf(self->sentence, sizeof(self->sentence), "%s", xm_last_error());
        discard(lane, number);
        xm_verbs_end_op(op, status);
        return;
    }
    xm_list_remove(&op->priv.link);
    xm_list_append(&peer->busy, &op->priv.link);
    /* Both ends know into how many fragments the message falls; each announces its end by an
     * immediate. */
    rndv->other = number;
    rndv->pieces = xm_stripe_splits(&peer->stripe, op->priv.length) ? peer->stripe.used : 1;
    rndv->grant.address = (uintptr_t)op->priv.buffer;
    rndv->grant.rails = peer->stripe.rails;
    for (int rail = 0; rail < peer->stripe.rails; ++rail) {
        rndv->grant.keys[rail] = rndv->memory->mr[rail]->rkey;
    }
    if (xm_verbs_lane_send(lane, &wr) == XM_ERR_NO_MEMORY) {
        xm_verbs_fail(peer, "it cannot be answered (%s)", xm_last_error());
    }
}

/* A receive has met its message. Lengths must be equal: a mismatch fails the receive, and ends
 * the send of the peer well. */
static void match(xm_verbs_lane_t *lane, xm_op_t *op, const xm_verbs_stored_t *message,
                  const uint8_t *bytes)
{
    op->priv.received = message->length;
    /* The sender of a short message has ended long ago; only a request has to be answered. */
    if (message->length != op->priv.length) {
        if (!message->eager) {
            discard(lane, message->number);
        }
        xm_verbs_end_op(op, XM_ERR_CORRUPT);
    } else if (message->eager) {
        memcpy(op->priv.buffer, bytes, message->length);
        xm_verbs_end_op(op, XM_OK);
    } else {
        grant(lane, op, message->number);
    }
}

/* Keeps a message for which there is no receive. Only the peer's slots could hold it otherwise,
 * and they have to be posted again. How many can come is bounded by the sender. */
static void store(xm_verbs_lane_t *lane, const xm_verbs_stored_t *message, const uint8_t *bytes)
{
    xm_verbs_peer_t *peer = lane->peer;
    size_t size = message->eager ? message->length : 0;
    xm_verbs_stored_t *stored = xm_blocks_take(&peer->owner->blocks, sizeof(*stored) + size);

    if (stored == NULL) {
        xm_verbs_fail(peer, "there is no memory for a message of %zu bytes from it", size);
        return;
    }
    *stored = *message;
    if (size > 0) {
        memcpy(stored->bytes, bytes, size);
    }
    *peer->stored_last = stored;
    peer->stored_last = &stored->next;
}

/* A message or request has arrived. `taken` tells the sender how many of its eager messages are
 * not stored any more, which is what allows it to send more of them. */
static void arrived(xm_verbs_lane_t *lane, const xm_verbs_header_t *header, const uint8_t *bytes)
{
    xm_verbs_stored_t message = {.tag = header->tag,
                                 .length = header->length,
                                 .number = header->sender,
                                 .rail = lane->rail,
                                 .eager = header->kind == XM_VERBS_EAGER};
    xm_op_t *op = find_receive(lane->peer, header->tag);

    /* Requests carry no bytes; theirs are counted as they are written. */
    if (message.eager) {
        xm_count_fragment(xm_verbs_port_of(lane)->counters, XM_RECEIVED, header->length, XM_OK);
    }
    if (op == NULL) {
        store(lane, &message, bytes);
        return;
    }
    lane->peer->taken += message.eager;
    match(lane, op, &message, bytes);
}

/* A receive was posted: gives it the oldest stored message with its tag. */
void xm_verbs_match_stored(xm_verbs_peer_t *peer, xm_op_t *op)
{
    xm_verbs_stored_t **link = &peer->stored, *message;

    while (*link != NULL && (*link)->tag != op->priv.tag) {
        link = &(*link)->next;
    }
    message = *link;
    if (message == NULL) {
        return;
    }
    *link = message->next;
    /* The tail pointer must not stay in a message that is freed. */
    peer->stored_last = *link == NULL ? link : peer->stored_last;
    peer->taken += message->eager;
    match(&peer->lanes[message->rail], op, message, message->bytes);
    xm_blocks_give(&peer->owner->blocks, message);
}

void xm_verbs_forget_stored(xm_verbs_peer_t *peer)
{
    while (peer->stored != NULL) {
        xm_verbs_stored_t *next = peer->stored->next;

        xm_blocks_give(&peer->owner->blocks, peer->stored);
        peer->stored = next;
    }
    peer->stored_last = &peer->stored;
}

/* Finds the message that the peer speaks of. A number carries a generation, so that one of the
 * past is recognised; the peer is failed for it. */
static xm_verbs_rndv_t *rndv_of(xm_verbs_lane_t *lane, uint32_t number, int kind)
{
    xm_verbs_rndv_t *rndv = xm_verbs_find_rndv(lane->peer->owner, number, lane->peer, kind);

    if (rndv == NULL) {
        xm_verbs_fail(lane->peer, "it speaks of a message that there is not (number %" PRIu32 ")",
                      number);
    }
    return rndv;
}

/* The peer has a receive for one of our requests: all fragments are queued, on their rails. The
 * grant is checked against what was requested, since it tells where to write; a second grant
 * for the same message would write twice. */
static void granted(xm_verbs_lane_t *lane, const xm_verbs_header_t *header,
                    const xm_verbs_grant_t *given)
{
    xm_verbs_peer_t *peer = lane->peer;
    const xm_stripe_t *stripe = &peer->stripe;
    xm_verbs_rndv_t *rndv = rndv_of(lane, header->sender, XM_VERBS_SEND);
    xm_verbs_wr_t wr = {.kind = XM_VERBS_PIECE, .rndv = rndv};
    size_t length = header->length;
    bool split = xm_stripe_splits(stripe, length);

    if (rndv == NULL) {
        return;
    }
    if (rndv->pieces > 0 || length != rndv->op->priv.length || given->rails != stripe->rails) {
        xm_verbs_fail(peer, "it granted %zu bytes on %d rails for a message of %zu bytes on %d",
                      length, given->rails, rndv->op->priv.length, stripe->rails);
        return;
    }
    rndv->grant = *given;
    rndv->other = header->receiver;
    rndv->pieces = split ? stripe->used : 1;
    /* A whole message goes by the lane of the grant, which is the one that its tag chose. */
    for (int rail = 0; rail < stripe->rails; ++rail) {
        xm_verbs_lane_t *way = split ? &peer->lanes[rail] : lane;

        if (split && !xm_stripe_uses(stripe, rail)) {
            continue;
        }
        wr.start = wr.begin = split && rail > 0 ? xm_stripe_end(stripe, length, rail - 1) : 0;
        wr.end = split ? xm_stripe_end(stripe, length, rail) : length;
        /* The sender's fragments are owed to the peer now; if one cannot be queued the message
         * can never end, so the peer is given up. */
        if (xm_verbs_lane_send(way, &wr) == XM_ERR_NO_MEMORY) {
            xm_verbs_fail(peer, "it cannot be answered (%s)", xm_last_error());
        }
        if (!split || peer->failed) {
            break;
        }
    }
}

/* The peer has thrown the message away, which ends its send: it was delivered as far as this
 * rank is concerned. */
static void discarded(xm_verbs_lane_t *lane, uint32_t number)
{
    xm_verbs_rndv_t *rndv = rndv_of(lane, number, XM_VERBS_SEND);

    if (rndv != NULL) {
        xm_verbs_end_op(rndv->op, XM_OK);
    }
}

/* The bytes of a message of that length that a lane carries; they are counted here, since the write
 * itself tells no length. */
static size_t piece_length(const xm_verbs_lane_t *lane, size_t length)
{
    const xm_stripe_t *stripe = &lane->peer->stripe;
    size_t begin = lane->rail > 0 ? xm_stripe_end(stripe, length, lane->rail - 1) : 0;

    return xm_stripe_splits(stripe, length) ? xm_stripe_end(stripe, length, lane->rail) - begin
                                            : length;
}

/* The last write of a fragment is there, and with it all of the fragment, since a connection
 * keeps their order. Between rails there is no order, so fragments are counted. */
void xm_verbs_written(xm_verbs_lane_t *lane, uint32_t number)
{
    xm_verbs_rndv_t *rndv = rndv_of(lane, number, XM_VERBS_RECEIVE);

    if (rndv == NULL) {
        return;
    }
    xm_count_fragment(xm_verbs_port_of(lane)->counters, XM_RECEIVED,
                      piece_length(lane, rndv->op->priv.length), XM_OK);
    if (--rndv->pieces == 0) {
        xm_verbs_end_op(rndv->op, XM_OK);
    }
}

/* A header has come. Credits first, whatever the message is; more of them than the peer has
 * slots cannot be. */
void xm_verbs_message(xm_verbs_lane_t *lane, const uint8_t *bytes, size_t size)
{
    xm_verbs_peer_t *peer = lane->peer;
    xm_verbs_header_t header;
    xm_verbs_grant_t given;

    /* A header that does not decode cannot be skipped, since nobody knows what it wanted. */
    if (!xm_verbs_header_decode(bytes, size, &header, &given) ||
        lane->credits + header.credits > (int)peer->slots) {
        xm_verbs_fail(peer, "it sent %zu bytes that are no message", size);
        return;
    }
    lane->credits += header.credits;
    /* The difference is taken modulo 2^32, so the counter may wrap; it comes by several rails,
     * so an old value may follow a newer one. */
    if ((int32_t)(header.taken - peer->eager_taken) > 0) {
        peer->eager_taken = header.taken;
    }
    if (lane->first != NULL) {
        xm_verbs_lane_list(lane);
    }
    switch (header.kind) {
    case XM_VERBS_EAGER:
    case XM_VERBS_REQUEST:
        arrived(lane, &header, bytes + XM_VERBS_HEADER_SIZE);
        break;
    case XM_VERBS_GRANT:
        granted(lane, &header, &given);
        break;
    case XM_VERBS_DISCARD:
        discarded(lane, header.sender);
        break;
    case XM_VERBS_LOST:
        xm_verbs_failover_told(peer, header.sender, header.receiver);
        break;
    case XM_VERBS_BACK:
    case XM_VERBS_HERE:
        xm_verbs_comeback_told(peer, &header);
        break;
    case XM_VERBS_CREDIT:
        break;
    }
}
