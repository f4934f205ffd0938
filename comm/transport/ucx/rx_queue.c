/* SPDX-License-Identifier: Apache-2.0 */
/* Receive queue of the multi-rail channel. Frames of one message arrive in any order, by any
 * rail and more than once, and receives must still match in the order in which messages were
 * sent. So messages are numbered: `base` … `started` … in a ring of slots indexed by number,
 * where a slot tells unknown, waiting and done apart. Everything is idempotent: what is known
 * already is answered again and dropped, which is what makes resending safe without any
 * agreement. User memory is written here and only here, chunk by chunk, while a receive is
 * posted. */
#include <string.h>

#include "comm/transport/ucx/multirail.h"

/* SLOTS: of a channel that has received something. SPAN: messages after one that is not finished,
 * until that is put aside. MOST_SLOTS: after one that has not come yet; more than its sender gets
 * to send before it notices that the rail is lost. */
enum { SLOTS = 64, SPAN = 4096, MOST_SLOTS = 1 << 24 };

/* Slots are found by number modulo a power of two, so growing and sliding need no search. */
static xm_ucx_slot_t *slot_of(const xm_ucx_multirail_t *multirail, uint64_t number)
{
    return &multirail->slots[number & (multirail->slot_count - 1)];
}

/* Moves the first message out of the ring into the list `aside`, because a message that nobody
 * receives would otherwise make the ring grow with every later one. Messages are put aside in
 * the order of their numbers, so that list stays sorted. */
static void put_first_aside(xm_ucx_multirail_t *multirail)
{
    xm_ucx_slot_t *slot = slot_of(multirail, multirail->base);

    if (slot->message != NULL) {
        xm_list_append(&multirail->aside, &slot->message->aside);
    }
    *slot = (xm_ucx_slot_t){0};
    ++multirail->base;
}

/* A message that is known and not finished; NULL: there is none of that number. */
static xm_ucx_incoming_t *find_message(const xm_ucx_multirail_t *multirail, uint64_t number)
{
    if (number >= multirail->base) {
        return number - multirail->base < multirail->slot_count
                   ? slot_of(multirail, number)->message
                   : NULL;
    }
    for (xm_list_t *at = xm_list_first(&multirail->aside); at != NULL;
         at = xm_list_next(&multirail->aside, at)) {
        xm_ucx_incoming_t *message = xm_list_entry(at, xm_ucx_incoming_t, aside);

        if (message->number >= number) {
            return message->number == number ? message : NULL;
        }
    }
    return NULL;
}

/* True when the message has been answered completely. Numbers before `base` are done unless
 * they are in the list `aside`: that is all that needs to be remembered of the whole past. */
static bool is_done(const xm_ucx_multirail_t *multirail, uint64_t number)
{
    if (number < multirail->base) {
        return find_message(multirail, number) == NULL;
    }
    return number - multirail->base < multirail->slot_count && slot_of(multirail, number)->done;
}

/* Makes room for the message of this number, or returns false without memory. The limit keeps a
 * peer that sends nonsense from making this rank allocate without end. */
static bool grow(xm_ucx_multirail_t *multirail, uint64_t number)
{
    size_t count = multirail->slot_count > 0 ? multirail->slot_count : SLOTS;
    xm_ucx_slot_t *slots;

    while (multirail->base < multirail->started && number - multirail->base >= SPAN) {
        put_first_aside(multirail);
    }
    /* A stuck rail may hold the message `base` while later ones come by others, so the ring has
     * to reach far, but not without limit. */
    if (number - multirail->base >= MOST_SLOTS) {
        return false;
    }
    while (number - multirail->base >= count) {
        count *= 2;
    }
    if (count == multirail->slot_count) {
        return true;
    }
    slots = xm_blocks_take(&multirail->peer->owner->blocks, count * sizeof(*slots));
    if (slots == NULL) {
        return false;
    }
    memset(slots, 0, count * sizeof(*slots));
    /* Slots move to their new places; a number's place depends on the ring's size. */
    for (uint64_t i = multirail->base; i - multirail->base < multirail->slot_count; ++i) {
        slots[i & (count - 1)] = *slot_of(multirail, i);
    }
    xm_blocks_give(&multirail->peer->owner->blocks, multirail->slots);
    multirail->slots = slots;
    multirail->slot_count = count;
    return true;
}

/* Slides the ring over messages that are answered; a frame of theirs that still comes is
 * recognised by its number. */
static void forget(xm_ucx_multirail_t *multirail)
{
    while (multirail->base < multirail->started && slot_of(multirail, multirail->base)->done) {
        *slot_of(multirail, multirail->base) = (xm_ucx_slot_t){0};
        ++multirail->base;
    }
}

/* Acknowledges by GRANT. The answer takes the rail by which the message came last, since that
 * one works. */
static void answer(xm_ucx_multirail_t *multirail, int lane, uint64_t number, uint64_t offset)
{
    xm_ucx_frame_t frame = {
        .kind = XM_UCX_FRAME_GRANT, .message = number, .offset = offset, .length = 1};

    xm_ucx_multirail_answer(multirail, lane, &frame);
}

/* The memory that a short message takes of this rank until it is received. */
static size_t cost_of(const xm_ucx_incoming_t *message)
{
    return sizeof(*message) + message->length;
}

/* Answers ALL and forgets the message: nothing more of it is wanted. Chunks that still arrive
 * find the slot done, or a number before `base`: they are answered again and dropped. */
static void end_message(xm_ucx_multirail_t *multirail, xm_ucx_incoming_t *message)
{
    answer(multirail, message->lane, message->number, XM_UCX_FRAME_ALL);
    if (xm_list_is_in(&message->aside)) {
        xm_list_remove(&message->aside);
    } else {
        *slot_of(multirail, message->number) = (xm_ucx_slot_t){.done = true};
    }
    xm_blocks_give(&multirail->peer->owner->blocks, message);
    forget(multirail);
}

/* A receive has met its message. A short one is copied and ends at once; a longer one is
 * granted, and its chunks then go directly to the user's buffer. If the lengths differ the
 * message is acknowledged all the same, for the sender has done nothing wrong locally: only the
 * receive fails, with both lengths. */
static void match(xm_ucx_multirail_t *multirail, xm_ucx_incoming_t *message, xm_op_t *op)
{
    bool fits = message->length == op->priv.length;

    op->priv.received = message->length;
    if (message->eager) {
        if (fits) {
            memcpy(op->priv.buffer, message->bytes, message->length);
        }
        multirail->kept -= cost_of(message);
        if (message->owed) {
            end_message(multirail, message);
        } else {
            xm_blocks_give(&multirail->peer->owner->blocks, message);
        }
        xm_ucx_end_op(op, fits ? XM_OK : XM_ERR_CORRUPT);
    } else if (!fits) {
        end_message(multirail, message);
        xm_ucx_end_op(op, XM_ERR_CORRUPT);
    } else {
        message->op = op;
        op->priv.handle = message;
        answer(multirail, message->lane, message->number, 0);
    }
}

/* The oldest receive with the tag that has no message yet: receives match in the order of their
 * posts. */
static xm_op_t *find_receive(const xm_ucx_peer_t *peer, uint64_t tag)
{
    for (xm_list_t *at = xm_list_first(&peer->in_flight); at != NULL;
         at = xm_list_next(&peer->in_flight, at)) {
        xm_op_t *op = xm_op_of(at);

        if (op->priv.kind == XM_UCX_RECEIVE && op->priv.tag == tag && op->priv.handle == NULL) {
            return op;
        }
    }
    return NULL;
}

/* A receive was posted. It takes the oldest message with its tag that waits; otherwise it stays
 * on the peer's ring until take_up() finds it. */
void xm_ucx_rx_queue_receive(xm_ucx_multirail_t *multirail, xm_op_t *op)
{
    for (xm_list_t *at = xm_list_first(&multirail->unclaimed); at != NULL;
         at = xm_list_next(&multirail->unclaimed, at)) {
        xm_ucx_incoming_t *message = xm_list_entry(at, xm_ucx_incoming_t, link);

        if (message->tag == op->priv.tag) {
            xm_list_remove(at);
            match(multirail, message, op);
            xm_ucx_multirail_progress(multirail->peer->owner);
            return;
        }
    }
}

/* Cancels a receive. If chunks are on their way the message is lost for good, and what still
 * comes is dropped: no byte is written after this returns. A send cannot be cancelled, because
 * its bytes may have arrived. */
void xm_ucx_rx_queue_cancel(xm_ucx_multirail_t *multirail, xm_op_t *op)
{
    xm_ucx_incoming_t *message = op->priv.handle;

    if (op->priv.kind != XM_UCX_RECEIVE || op->priv.status != XM_IN_PROGRESS) {
        return; /* a send, or it has ended already and waits for `done` */
    }
    if (message != NULL) {
        end_message(multirail, message);
        xm_ucx_multirail_progress(multirail->peer->owner);
    }
    xm_ucx_end_op(op, XM_ERR_CANCELED);
}

/* Matches the messages whose turn it is. It stops at the first number that has not come, even
 * if later ones with other tags are here: a later message of the same tag must not overtake. */
static void take_up(xm_ucx_multirail_t *multirail)
{
    while (multirail->started - multirail->base < multirail->slot_count) {
        xm_ucx_slot_t *slot = slot_of(multirail, multirail->started);
        xm_ucx_incoming_t *message = slot->message;
        xm_op_t *op;

        if (message == NULL) {
            break;
        }
        ++multirail->started;
        /* Such a message is acknowledged already and needs no slot; from here on it is only in
         * the list of those that wait for a receive. */
        if (message->eager && !message->owed) {
            slot->message = NULL;
        }
        op = find_receive(multirail->peer, message->tag);
        if (op != NULL) {
            match(multirail, message, op);
        } else {
            xm_list_append(&multirail->unclaimed, &message->link);
        }
    }
    forget(multirail);
}

/* EAGER or START: a new message, or one that is announced again. */
static void on_start(xm_ucx_multirail_t *multirail, int lane, const xm_ucx_frame_t *frame,
                     const uint8_t *bytes, size_t length)
{
    bool eager = frame->kind == XM_UCX_FRAME_EAGER;
    size_t kept = eager ? length : 0;
    xm_ucx_incoming_t *message = find_message(multirail, frame->message);
    xm_ucx_slot_t *slot;

    if (message != NULL) { /* announced again: perhaps the answer was lost */
        message->lane = lane;
        if (message->op != NULL) {
            answer(multirail, lane, message->number, message->from);
        }
        return;
    }

    /* Impossible lengths and numbers are a fault of the peer, not a reason to drop the frame
     * silently: the sender would repeat it for ever. */
    if ((eager && frame->length != length) || frame->length > SIZE_MAX / 2 ||
        !grow(multirail, frame->message)) {
        xm_ucx_report(multirail->peer, UCS_ERR_NO_MEMORY);
        return;
    }
    slot = slot_of(multirail, frame->message);
    message = xm_blocks_take(&multirail->peer->owner->blocks, sizeof(*message) + kept);
    if (message == NULL) {
        xm_ucx_report(multirail->peer, UCS_ERR_NO_MEMORY);
        return;
    }
    *message = (xm_ucx_incoming_t){.number = frame->message,
                                   .tag = frame->tag,
                                   .length = (size_t)frame->length,
                                   .chunk = frame->chunk,
                                   .lane = lane,
                                   .eager = eager};
    if (kept > 0) {
        memcpy(message->bytes, bytes, kept);
    }
    slot->message = message;
    if (eager) {
        xm_count_fragment(xm_ucx_rail_of(multirail->peer, lane)->counters, XM_RECEIVED, length,
                          XM_OK);
        multirail->kept += cost_of(message);
        /* Too much waits here: the sender gets no answer, and announces what follows, too. */
        message->owed = multirail->kept > XM_UCX_MULTIRAIL_KEPT;
        slot->done = !message->owed;
    }
    if (slot->done) {
        answer(multirail, lane, message->number, XM_UCX_FRAME_ALL);
    }
    take_up(multirail);
}

/* Copies a chunk into the user's buffer, and returns true if it was wanted: of the segment that
 * was asked for, with the length that its place demands, and not here already. */
static bool put_chunk(xm_ucx_incoming_t *message, const xm_ucx_frame_t *frame, const uint8_t *bytes,
                      size_t length)
{
    size_t offset = (size_t)frame->offset, index, expected;

    if (message->op == NULL || frame->offset < message->from || frame->offset >= message->length) {
        /* The bytes may come from a duplicate, from a segment that is complete, or from
         * nonsense: everything that does not fit exactly is dropped. */
        return false;
    }
    index = (offset - message->from) / message->chunk;
    expected = message->length - offset < message->chunk ? message->length - offset
                                                         : (size_t)message->chunk;
    if (index >= XM_UCX_FRAME_CHUNKS || offset % message->chunk != 0 || length != expected ||
        (message->have >> index & 1) != 0) {
        return false;
    }
    memcpy((uint8_t *)message->op->priv.buffer + offset, bytes, length);
    message->have |= UINT64_C(1) << index;
    return true;
}

/* A chunk has come. When all of its segment are here the next segment is granted, and after the
 * last one the message ends. The window of one segment bounds how much the sender may have in
 * flight. */
static void on_chunk(xm_ucx_multirail_t *multirail, int lane, const xm_ucx_frame_t *frame,
                     const uint8_t *bytes, size_t length)
{
    xm_ucx_incoming_t *message = find_message(multirail, frame->message);
    size_t left, segment;
    uint64_t all;
    xm_op_t *op;

    if (message == NULL || message->eager || !put_chunk(message, frame, bytes, length)) {
        return;
    }
    xm_count_fragment(xm_ucx_rail_of(multirail->peer, lane)->counters, XM_RECEIVED, length, XM_OK);
    message->lane = lane;
    ++multirail->peer->moved;
    left = message->length - message->from;
    segment = (size_t)message->chunk * XM_UCX_FRAME_CHUNKS;
    /* A full segment has 64 chunks, whose mask cannot be made by a shift. */
    all = left > segment - message->chunk
              ? UINT64_MAX
              : (UINT64_C(1) << (left + message->chunk - 1) / message->chunk) - 1;
    if (message->have != all) {
        return;
    }
    if (left > segment) {
        message->from += segment;
        message->have = 0;
        answer(multirail, lane, message->number, message->from);
        return;
    }
    /* The message is ended before its operation: end_message() frees what the operation refers
     * to. */
    op = message->op;
    end_message(multirail, message);
    xm_ucx_end_op(op, XM_OK);
}

/* Each frame that concerns a message ends in an answer or in progress of the message; nothing
 * is dropped without one of the two, except what the sender has an answer for already. */
void xm_ucx_rx_queue_on_frame(xm_ucx_multirail_t *multirail, int lane, const xm_ucx_frame_t *frame,
                              const uint8_t *bytes, size_t length)
{
    /* The message has arrived before and came again: perhaps the answer was lost. */
    if (is_done(multirail, frame->message)) {
        answer(multirail, lane, frame->message, XM_UCX_FRAME_ALL);
    } else if (frame->kind == XM_UCX_FRAME_CHUNK) {
        on_chunk(multirail, lane, frame, bytes, length);
    } else {
        on_start(multirail, lane, frame, bytes, length);
    }
}

/* Says by every rail that these messages have arrived: any single rail may be dead without
 * anybody knowing. */
static void answer_everywhere(xm_ucx_multirail_t *multirail, uint64_t first, uint64_t count)
{
    xm_ucx_frame_t frame = {
        .kind = XM_UCX_FRAME_GRANT, .message = first, .offset = XM_UCX_FRAME_ALL, .length = count};

    for (int lane = 0; lane < multirail->peer->stripe.rails && count > 0; ++lane) {
        if (xm_ucx_multirail_uses(multirail, lane)) {
            xm_ucx_multirail_answer(multirail, lane, &frame);
        }
    }
}

/* This rank leaves. It walks over all numbers up to the end of the ring, acknowledges each
 * gapless run that is done in one frame, and then says FIN on every rail. A sender keeps copies
 * of its short messages until they are acknowledged, so this is what lets it go, too. */
void xm_ucx_rx_queue_fin(xm_ucx_multirail_t *multirail)
{
    xm_ucx_frame_t fin = {.kind = XM_UCX_FRAME_FIN};
    uint64_t first = 0;

    if (!multirail->peer->connected || multirail->left) {
        return;
    }
    for (xm_list_t *at = xm_list_first(&multirail->aside); at != NULL;
         at = xm_list_next(&multirail->aside, at)) {
        const xm_ucx_incoming_t *message = xm_list_entry(at, xm_ucx_incoming_t, aside);

        answer_everywhere(multirail, first, message->number - first);
        first = message->number + 1;
    }
    for (uint64_t i = multirail->base; i - multirail->base < multirail->slot_count; ++i) {
        if (!slot_of(multirail, i)->done) {
            answer_everywhere(multirail, first, i - first);
            first = i + 1;
        }
    }
    answer_everywhere(multirail, first, multirail->base + multirail->slot_count - first);
    for (int lane = 0; lane < multirail->peer->stripe.rails; ++lane) {
        if (xm_ucx_multirail_uses(multirail, lane)) {
            xm_ucx_multirail_answer(multirail, lane, &fin);
        }
    }
}
