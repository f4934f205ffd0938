/* SPDX-License-Identifier: Apache-2.0 */
/* Receive queue of rails. Frames of one message arrive in any order, by any
 * rail and more than once, and receives must still match in the order in which messages were
 * sent. So messages are numbered: `base` … `started` … in a ring of slots indexed by number,
 * where a slot tells unknown, waiting and done apart. Everything is idempotent: what is known
 * already is answered again and dropped, which is what makes resending safe without any
 * agreement. User memory is written here, or by lanes that put, chunk by chunk, while a receive is
 * posted. */
#include <stdio.h>
#include <string.h>

#include "comm/base.h"
#include "comm/transport/rails/rails.h"

/* SLOTS: of rails that have received something. SPAN: messages after one that is not finished,
 * until that is put aside. MOST_SLOTS: after one that has not come yet; more than its sender gets
 * to send before it notices that the rail is lost. */
enum { SLOTS = 64, SPAN = 4096, MOST_SLOTS = 1 << 24 };

/* Slots are found by number modulo a power of two, so growing and sliding need no search. */
static xm_rails_slot_t *slot_of(const xm_rails_t *rails, uint64_t number)
{
    return &rails->slots[number & (rails->slot_count - 1)];
}

/* Moves the first message out of the ring into the list `aside`, because a message that nobody
 * receives would otherwise make the ring grow with every later one. Messages are put aside in
 * the order of their numbers, so that list stays sorted. */
static void put_first_aside(xm_rails_t *rails)
{
    xm_rails_slot_t *slot = slot_of(rails, rails->base);

    if (slot->message != NULL) {
        xm_list_append(&rails->aside, &slot->message->aside);
    }
    *slot = (xm_rails_slot_t){0};
    ++rails->base;
}

/* A message that is known and not finished; NULL: there is none of that number. */
static xm_rails_incoming_t *find_message(const xm_rails_t *rails, uint64_t number)
{
    if (number >= rails->base) {
        return number - rails->base < rails->slot_count ? slot_of(rails, number)->message : NULL;
    }
    for (xm_list_t *at = xm_list_first(&rails->aside); at != NULL;
         at = xm_list_next(&rails->aside, at)) {
        xm_rails_incoming_t *message = xm_list_entry(at, xm_rails_incoming_t, aside);

        if (message->number >= number) {
            return message->number == number ? message : NULL;
        }
    }
    return NULL;
}

/* True when the message has been answered completely. Numbers before `base` are done unless
 * they are in the list `aside`: that is all that needs to be remembered of the whole past. */
static bool is_done(const xm_rails_t *rails, uint64_t number)
{
    if (number < rails->base) {
        return find_message(rails, number) == NULL;
    }
    return number - rails->base < rails->slot_count && slot_of(rails, number)->done;
}

/* Makes room for the message of this number, or returns false without memory. The limit keeps a
 * peer that sends nonsense from making this rank allocate without end. */
static bool grow(xm_rails_t *rails, uint64_t number)
{
    size_t count = rails->slot_count > 0 ? rails->slot_count : SLOTS;
    xm_rails_slot_t *slots;

    while (rails->base < rails->started && number - rails->base >= SPAN) {
        put_first_aside(rails);
    }
    /* A stuck rail may hold the message `base` while later ones come by others, so the ring has
     * to reach far, but not without limit. */
    if (number - rails->base >= MOST_SLOTS) {
        return false;
    }
    while (number - rails->base >= count) {
        count *= 2;
    }
    if (count == rails->slot_count) {
        return true;
    }
    slots = xm_blocks_take(&rails->peer->owner->blocks, count * sizeof(*slots));
    if (slots == NULL) {
        return false;
    }
    memset(slots, 0, count * sizeof(*slots));
    /* Slots move to their new places; a number's place depends on the ring's size. */
    for (uint64_t i = rails->base; i - rails->base < rails->slot_count; ++i) {
        slots[i & (count - 1)] = *slot_of(rails, i);
    }
    xm_blocks_give(&rails->peer->owner->blocks, rails->slots);
    rails->slots = slots;
    rails->slot_count = count;
    return true;
}

/* Slides the ring over messages that are answered; a frame of theirs that still comes is
 * recognised by its number. */
static void forget(xm_rails_t *rails)
{
    while (rails->base < rails->started && slot_of(rails, rails->base)->done) {
        *slot_of(rails, rails->base) = (xm_rails_slot_t){0};
        ++rails->base;
    }
}

/* Acknowledges by GRANT. The answer takes the rail by which the message came last, since that
 * one works. */
static void answer(xm_rails_t *rails, int lane, uint64_t number, uint64_t offset)
{
    xm_rails_frame_t frame = {
        .kind = XM_RAILS_FRAME_GRANT, .message = number, .offset = offset, .length = 1};

    (void)xm_rails_answer(rails, lane, &frame);
}

/* Asks for the segment, and tells lanes that put where it belongs, and what of it is here. */
static void ask(xm_rails_t *rails, const xm_rails_incoming_t *message)
{
    const xm_rails_transport_t *self = rails->peer->owner;
    int count = rails->peer->stripe.rails;
    xm_rails_frame_t frame = {.kind = XM_RAILS_FRAME_GRANT,
                              .message = message->number,
                              .offset = message->from,
                              .length = 1};
    xm_rails_packet_t *packet;

    if (xm_rails_puts(rails)) {
        frame.tag = message->have;
        frame.length = (uintptr_t)message->op->priv.buffer;
    }
    packet = xm_rails_answer(rails, message->lane, &frame);
    if (packet != NULL && xm_rails_puts(rails)) {
        for (int rail = 0; rail < count; ++rail) {
            xm_put_le(packet->keys + 4 * rail, self->lanes->key(message->memory.handle, rail), 4);
        }
        packet->bytes = packet->keys;
        packet->length = 4 * (size_t)count;
    }
}

void xm_rails_rx_catch_up(xm_rails_t *rails)
{
    xm_rails_frame_t frame = {.kind = XM_RAILS_FRAME_GRANT,
                              .message = rails->late_first,
                              .offset = XM_RAILS_FRAME_ALL,
                              .length = rails->late};

    if (rails->late > 0) {
        --rails->peer->owner->late;
        rails->late = 0;
        (void)xm_rails_answer(rails, rails->late_lane, &frame);
    }
}

/* A short message is answered together with those that come behind it, or before this rank sleeps,
 * or at the next look at the rails: its send has ended, so nobody waits, and an answer to each
 * would be half of all that is sent. */
static void answer_late(xm_rails_t *rails, int lane, uint64_t number)
{
    if (rails->late > 0 && number != rails->late_first + rails->late) {
        xm_rails_rx_catch_up(rails);
    }
    if (rails->late == 0) {
        rails->late_first = number;
        ++rails->peer->owner->late;
    }
    rails->late_lane = lane;
    if (++rails->late >= XM_RAILS_LATE) {
        xm_rails_rx_catch_up(rails);
    }
}

/* The memory that a short message takes of this rank until it is received. */
static size_t cost_of(const xm_rails_incoming_t *message)
{
    return sizeof(*message) + message->length;
}

/* Lets go of the memory that lanes put a message to. */
static void release(xm_rails_t *rails, xm_rails_incoming_t *message)
{
    if (message->memory.held) {
        rails->peer->owner->lanes->release(rails->peer->owner, message->memory.handle);
        message->memory.held = false;
    }
}

/* Answers ALL and forgets the message: nothing more of it is wanted. Chunks that still arrive
 * find the slot done, or a number before `base`: they are answered again and dropped. */
static void end_message(xm_rails_t *rails, xm_rails_incoming_t *message)
{
    answer(rails, message->lane, message->number, XM_RAILS_FRAME_ALL);
    if (xm_list_is_in(&message->aside)) {
        xm_list_remove(&message->aside);
    } else {
        *slot_of(rails, message->number) = (xm_rails_slot_t){.done = true};
    }
    release(rails, message);
    xm_blocks_give(&rails->peer->owner->blocks, message);
    forget(rails);
}

/* Grants a message, if lanes that put can have the receive's buffer. Otherwise the receive fails
 * alone: the message is acknowledged, so the peer's send ends. */
static void grant(xm_rails_t *rails, xm_rails_incoming_t *message, xm_op_t *op)
{
    xm_rails_transport_t *self = rails->peer->owner;
    xm_memory_t *memory = op->priv.handle;
    xm_status_t status = xm_rails_puts(rails) ? self->lanes->hold(self, op->priv.buffer,
                                                                  op->priv.length, true, &memory)
                                              : XM_OK;

    if (status < 0) {
        (void)snprintf(self->sentence, sizeof(self->sentence), "%s", xm_last_error());
        end_message(rails, message);
        xm_rails_end_op(op, status);
        return;
    }
    message->memory = (xm_rails_memory_t){memory, xm_rails_puts(rails) && op->priv.handle == NULL};
    message->op = op;
    op->priv.handle = message;
    op->priv.flags |= XM_RAILS_MATCHED;
    ask(rails, message);
}

/* A receive has met its message. A short one is copied and ends at once; a longer one is
 * granted, and its chunks then go directly to the user's buffer. If the lengths differ the
 * message is acknowledged all the same, for the sender has done nothing wrong locally: only the
 * receive fails, with both lengths. */
static void match(xm_rails_t *rails, xm_rails_incoming_t *message, xm_op_t *op)
{
    bool fits = message->length == op->priv.length;

    op->priv.received = message->length;
    if (message->eager) {
        if (fits) {
            memcpy(op->priv.buffer, message->bytes, message->length);
        }
        rails->kept -= cost_of(message);
        if (message->owed) {
            end_message(rails, message);
        } else {
            xm_blocks_give(&rails->peer->owner->blocks, message);
        }
        xm_rails_end_op(op, fits ? XM_OK : XM_ERR_CORRUPT);
    } else if (!fits) {
        end_message(rails, message);
        xm_rails_end_op(op, XM_ERR_CORRUPT);
    } else {
        grant(rails, message, op);
    }
}

/* The oldest receive with the tag that has no message yet: receives match in the order of their
 * posts. */
static xm_op_t *find_receive(const xm_rails_peer_t *peer, uint64_t tag)
{
    for (xm_list_t *at = xm_list_first(&peer->in_flight); at != NULL;
         at = xm_list_next(&peer->in_flight, at)) {
        xm_op_t *op = xm_op_of(at);

        if (op->priv.kind == XM_RAILS_RECEIVE && op->priv.tag == tag &&
            (op->priv.flags & XM_RAILS_MATCHED) == 0) {
            return op;
        }
    }
    return NULL;
}

/* A receive was posted. It takes the oldest message with its tag that waits; otherwise it stays
 * on the peer's ring until take_up() finds it. */
void xm_rails_rx_receive(xm_rails_t *rails, xm_op_t *op)
{
    for (xm_list_t *at = xm_list_first(&rails->unclaimed); at != NULL;
         at = xm_list_next(&rails->unclaimed, at)) {
        xm_rails_incoming_t *message = xm_list_entry(at, xm_rails_incoming_t, link);

        if (message->tag == op->priv.tag) {
            xm_list_remove(at);
            match(rails, message, op);
            xm_rails_progress(rails->peer->owner);
            return;
        }
    }
}

/* Cancels a receive. If chunks are on their way the message is lost for good, and what still
 * comes is dropped: no byte is written after this returns. A send cannot be cancelled, because
 * its bytes may have arrived; nor can a receive that a NIC may be writing to. */
void xm_rails_rx_cancel(xm_rails_t *rails, xm_op_t *op)
{
    bool matched = (op->priv.flags & XM_RAILS_MATCHED) != 0;

    if (op->priv.kind != XM_RAILS_RECEIVE || op->priv.status != XM_IN_PROGRESS ||
        (matched && rails->way != XM_RAILS_COPY)) {
        return; /* it is too late, or it has ended already and waits for `done` */
    }
    if (matched) {
        end_message(rails, op->priv.handle);
        xm_rails_progress(rails->peer->owner);
    }
    xm_rails_end_op(op, XM_ERR_CANCELED);
}

void xm_rails_rx_forsake(xm_rails_t *rails, const xm_op_t *op)
{
    if (op->priv.kind == XM_RAILS_RECEIVE && (op->priv.flags & XM_RAILS_MATCHED) != 0) {
        xm_rails_incoming_t *message = op->priv.handle;

        message->op = NULL;
        release(rails, message);
    }
}

/* Matches the messages whose turn it is. It stops at the first number that has not come, even
 * if later ones with other tags are here: a later message of the same tag must not overtake. */
static void take_up(xm_rails_t *rails)
{
    while (rails->started - rails->base < rails->slot_count) {
        xm_rails_slot_t *slot = slot_of(rails, rails->started);
        xm_rails_incoming_t *message = slot->message;
        xm_op_t *op;

        if (message == NULL) {
            break;
        }
        ++rails->started;
        /* Such a message is acknowledged already and needs no slot; from here on it is only in
         * the list of those that wait for a receive. */
        if (message->eager && !message->owed) {
            slot->message = NULL;
        }
        op = find_receive(rails->peer, message->tag);
        if (op != NULL) {
            match(rails, message, op);
        } else {
            xm_list_append(&rails->unclaimed, &message->link);
        }
    }
    forget(rails);
}

/* EAGER or START: a new message, or one that is announced again. */
static void on_start(xm_rails_t *rails, int lane, const xm_rails_frame_t *frame,
                     const uint8_t *bytes, size_t length)
{
    bool eager = frame->kind == XM_RAILS_FRAME_EAGER;
    size_t kept = eager ? length : 0;
    xm_rails_incoming_t *message = find_message(rails, frame->message);
    xm_rails_slot_t *slot;

    if (message != NULL) { /* announced again: perhaps the answer was lost */
        message->lane = lane;
        if (message->op != NULL) {
            ask(rails, message);
        }
        return;
    }

    /* Impossible lengths and numbers are a fault of the peer, not a reason to drop the frame
     * silently: the sender would repeat it for ever. */
    if ((eager && frame->length != length) || frame->length > SIZE_MAX / 2 ||
        !grow(rails, frame->message)) {
        xm_rails_report(rails->peer, "there is no room for a message from it");
        return;
    }
    slot = slot_of(rails, frame->message);
    message = xm_blocks_take(&rails->peer->owner->blocks, sizeof(*message) + kept);
    if (message == NULL) {
        xm_rails_report(rails->peer, "there is no room for a message from it");
        return;
    }
    *message = (xm_rails_incoming_t){.number = frame->message,
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
        xm_count_fragment(xm_rails_nic(rails, lane)->counters, XM_RECEIVED, length, XM_OK);
        rails->kept += cost_of(message);
        /* Too much waits here: the sender gets no answer, and announces what follows, too. */
        message->owed = rails->kept > XM_RAILS_KEPT;
        slot->done = !message->owed;
    }
    if (slot->done && frame->chunk == 0) {
        answer_late(rails, lane, message->number);
    } else if (slot->done) {
        answer(rails, lane, message->number, XM_RAILS_FRAME_ALL);
    }
    take_up(rails);
}

/* Begins to fetch a chunk. Without memory the peer fails, as where an answer is lost. */
static void fetch_chunk(xm_rails_t *rails, xm_rails_incoming_t *message, int lane, size_t offset,
                        const void *bytes, size_t length)
{
    xm_rails_transport_t *self = rails->peer->owner;
    xm_rails_fetch_t *fetch = xm_blocks_take(&self->blocks, sizeof(*fetch));

    if (fetch == NULL) {
        xm_rails_report(rails->peer, "there is no room for a message from it");
        return;
    }
    *fetch = (xm_rails_fetch_t){rails, message, offset, length, lane, rails->life[lane]};
    ++message->fetched;
    self->lanes->fetch(rails->peer, lane, bytes, (uint8_t *)message->op->priv.buffer + offset,
                       fetch);
}

/* The length of a chunk if it is wanted, or 0: of the segment that was asked for, as long as its
 * place demands, and not here already. */
static size_t wanted(const xm_rails_t *rails, const xm_rails_incoming_t *message, uint64_t offset,
                     size_t length)
{
    size_t index, expected;

    if (message == NULL || message->eager || message->op == NULL || offset < message->from ||
        offset >= message->length) {
        /* The bytes may come from a duplicate, from a segment that is complete, or from
         * nonsense: everything that does not fit exactly is dropped. */
        return 0;
    }
    index = ((size_t)offset - message->from) / message->chunk;
    expected = message->length - offset < message->chunk ? message->length - offset
                                                         : (size_t)message->chunk;
    if (index >= XM_RAILS_FRAME_CHUNKS || offset % message->chunk != 0 ||
        length != (xm_rails_puts(rails) ? 0 : expected) || (message->have >> index & 1) != 0) {
        return 0;
    }
    return expected;
}

/* A chunk is where it belongs. */
static void take_chunk(const xm_rails_t *rails, xm_rails_incoming_t *message, int lane,
                       size_t offset, size_t length)
{
    xm_count_fragment(xm_rails_nic(rails, lane)->counters, XM_RECEIVED, length, XM_OK);
    message->lane = lane;
    message->have |= UINT64_C(1) << (offset - message->from) / message->chunk;
    ++rails->peer->moved;
}

/* When all chunks of a segment are here the next segment is granted, and after the last one the
 * message ends, unless some lane may still write to it. The window of one segment bounds how much
 * the sender may have in flight. */
static void go_on(xm_rails_t *rails, xm_rails_incoming_t *message)
{
    size_t left, segment;
    uint64_t all;
    xm_op_t *op;

    left = message->length - message->from;
    segment = (size_t)message->chunk * XM_RAILS_FRAME_CHUNKS;
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
        ask(rails, message);
        return;
    }
    if (message->fetched > 0) {
        return;
    }
    /* The message is ended before its operation: end_message() frees what the operation refers
     * to. */
    op = message->op;
    end_message(rails, message);
    xm_rails_end_op(op, XM_OK);
}

/* A chunk has come, or can be fetched. */
static void on_chunk(xm_rails_t *rails, int lane, const xm_rails_frame_t *frame,
                     const uint8_t *bytes, size_t length)
{
    xm_rails_incoming_t *message = find_message(rails, frame->message);
    size_t offset = (size_t)frame->offset, size = wanted(rails, message, frame->offset, length);

    if (size == 0) {
        return;
    }
    if (rails->way == XM_RAILS_FETCH) {
        fetch_chunk(rails, message, lane, offset, bytes, size);
        return;
    }
    if (rails->way == XM_RAILS_COPY) {
        memcpy((uint8_t *)message->op->priv.buffer + offset, bytes, size);
    }
    take_chunk(rails, message, lane, offset, size);
    go_on(rails, message);
}

/* The chunk may be here by another lane since, or its receive have ended with its peer. */
void xm_rails_fetched(xm_rails_fetch_t *fetch, const char *error)
{
    xm_rails_t *rails = fetch->rails;
    xm_rails_incoming_t *message = fetch->message;

    --message->fetched;
    if (error != NULL && rails->life[fetch->lane] == fetch->life) {
        xm_rails_broken(rails->peer, fetch->lane, "%s", error);
    } else if (error == NULL) {
        xm_rails_moved(rails, fetch->lane);
    }
    if (error == NULL && wanted(rails, message, fetch->offset, fetch->length) > 0) {
        take_chunk(rails, message, fetch->lane, fetch->offset, fetch->length);
    }
    if (message->op != NULL) {
        go_on(rails, message);
    }
    xm_blocks_give(&rails->peer->owner->blocks, fetch);
}

/* Each frame that concerns a message ends in an answer or in progress of the message; nothing
 * is dropped without one of the two, except what the sender has an answer for already. */
void xm_rails_rx_on_frame(xm_rails_t *rails, int lane, const xm_rails_frame_t *frame,
                          const uint8_t *bytes, size_t length)
{
    /* The message has arrived before and came again: perhaps the answer was lost. */
    if (is_done(rails, frame->message)) {
        answer(rails, lane, frame->message, XM_RAILS_FRAME_ALL);
    } else if (frame->kind == XM_RAILS_FRAME_CHUNK) {
        on_chunk(rails, lane, frame, bytes, length);
    } else {
        on_start(rails, lane, frame, bytes, length);
    }
}

/* Says by every rail that these messages have arrived: any single rail may be dead without
 * anybody knowing. */
static void answer_everywhere(xm_rails_t *rails, uint64_t first, uint64_t count)
{
    xm_rails_frame_t frame = {.kind = XM_RAILS_FRAME_GRANT,
                              .message = first,
                              .offset = XM_RAILS_FRAME_ALL,
                              .length = count};

    for (int lane = 0; lane < rails->peer->stripe.rails && count > 0; ++lane) {
        if (xm_rails_uses(rails, lane)) {
            (void)xm_rails_answer(rails, lane, &frame);
        }
    }
}

/* This rank leaves. It walks over all numbers up to the end of the ring, acknowledges each
 * gapless run that is done in one frame, and then says FIN on every rail. A sender keeps copies
 * of its short messages until they are acknowledged, so this is what lets it go, too. */
void xm_rails_rx_fin(xm_rails_t *rails)
{
    xm_rails_frame_t fin = {.kind = XM_RAILS_FRAME_FIN};
    uint64_t first = 0;

    if (!rails->peer->connected || rails->left) {
        return;
    }
    xm_rails_rx_catch_up(rails);
    for (xm_list_t *at = xm_list_first(&rails->aside); at != NULL;
         at = xm_list_next(&rails->aside, at)) {
        const xm_rails_incoming_t *message = xm_list_entry(at, xm_rails_incoming_t, aside);

        answer_everywhere(rails, first, message->number - first);
        first = message->number + 1;
    }
    for (uint64_t i = rails->base; i - rails->base < rails->slot_count; ++i) {
        if (!slot_of(rails, i)->done) {
            answer_everywhere(rails, first, i - first);
            first = i + 1;
        }
    }
    answer_everywhere(rails, first, rails->base + rails->slot_count - first);
    for (int lane = 0; lane < rails->peer->stripe.rails; ++lane) {
        if (xm_rails_uses(rails, lane)) {
            (void)xm_rails_answer(rails, lane, &fin);
        }
    }
}
