/* SPDX-License-Identifier: Apache-2.0 */
/* Send queue of rails. A message stays on the list `unfinished` until the peer
 * has acknowledged it, because until then any rail may turn out to be lost and its bytes have
 * to be sent again: from the caller's buffer, or from a copy for short ones, whose sends end at
 * once. What is bounded are the bytes kept for acknowledged sends (COPIES) and those sent
 * unasked (UNHEARD), so a peer that receives nothing makes sends wait, never memory grow. */
#include <string.h>

#include "comm/base.h"
#include "comm/transport/rails/rails.h"

/* Bytes of a chunk: a message has CHUNKS_FOR_EACH of them for each rail, within these bounds.
 * UCX sends up to a MiB at a time. Small chunks balance rails of different rates better and
 * lose less with a rail; large ones cost fewer frames. */
enum { SMALLEST_CHUNK = 32 * 1024, LARGEST_CHUNK = 512 * 1024, CHUNKS_FOR_EACH = 4 };

/* Chunks are whole pages, so that none but the last ends inside one. */
static uint32_t chunk_of(const xm_rails_t *rails, size_t length)
{
    size_t chunk = length / ((size_t)CHUNKS_FOR_EACH * (size_t)rails->peer->stripe.used);

    chunk = (chunk + 4095) / 4096 * 4096;
    chunk = chunk < SMALLEST_CHUNK ? SMALLEST_CHUNK : chunk;
    return (uint32_t)(chunk > LARGEST_CHUNK ? LARGEST_CHUNK : chunk);
}

/* The chunks of the segment that was granted, as bits; a segment never has more than one word
 * of them. */
static uint64_t segment_of(const xm_rails_outgoing_t *message)
{
    size_t chunks = (message->length - message->from + message->chunk - 1) / message->chunk;

    return chunks >= XM_RAILS_FRAME_CHUNKS ? UINT64_MAX : (UINT64_C(1) << chunks) - 1;
}

/* Queues the announcement, unless it is queued already. Announcing twice does no harm: the
 * receiver knows the message by its number and answers again. */
static void announce(xm_rails_t *rails, xm_rails_outgoing_t *message)
{
    if (!xm_list_is_in(&message->start)) {
        xm_list_append(&rails->starts, &message->start);
    }
    xm_rails_set_due(rails);
}

/* The bookkeeping counts too, or many empty messages would escape the limits. */
static size_t cost_of(size_t length)
{
    return length + sizeof(xm_rails_outgoing_t);
}

/* True when a message goes without being announced: it is short, and not too many unanswered
 * ones are under way. */
static bool is_eager(const xm_rails_t *rails, size_t length)
{
    return length < rails->eager && rails->unheard + cost_of(length) <= XM_RAILS_UNHEARD;
}

/* Takes what a post wants to send, or returns NULL with the sentence set. A short message is
 * copied, unless too many are; of a longer one the NICs have to know the memory, if they read it
 * themselves. A chunk size of 0 is what marks an eager message from here on. */
static xm_rails_outgoing_t *take(xm_rails_t *rails, const void *buffer, size_t length,
                                 xm_memory_t *memory, xm_status_t *status)
{
    xm_rails_transport_t *self = rails->peer->owner;
    bool eager = is_eager(rails, length);
    bool copied = eager && rails->copies + cost_of(length) <= XM_RAILS_COPIES;
    xm_rails_outgoing_t *message =
        xm_blocks_take(&self->blocks, sizeof(*message) + (copied ? length : 0));

    if (message == NULL) {
        *status = xm_error_set(XM_ERR_NO_MEMORY, "rank %d: no memory for a message to rank %d",
                               self->base.rank, rails->peer->rank);
        return NULL;
    }
    *message =
        (xm_rails_outgoing_t){.length = length,
                              .bytes = buffer,
                              .chunk = eager ? 0 : chunk_of(rails, length),
                              .start_by = XM_RAILS_NO_LANE,
                              .memory = {memory, !eager && xm_rails_puts(rails) && memory == NULL}};
    *status = !eager && xm_rails_puts(rails)
                  ? self->lanes->hold(self, (void *)(uintptr_t)buffer, length, false,
                                      &message->memory.handle)
                  : XM_OK;
    if (*status < 0) {
        xm_blocks_give(&self->blocks, message);
        return NULL;
    }
    if (copied) {
        message->bytes = memcpy(message->copy, buffer, length);
    }
    return message;
}

/* Takes a message into the queue. Its number is drawn here, so messages are received in the
 * order in which they were posted, whatever rails carry them. The progress runs at once: waiting
 * for the next progress would add its delay to each message. */
xm_status_t xm_rails_tx_send(xm_rails_t *rails, xm_op_t *op, uint64_t tag, const void *buffer,
                             size_t length, xm_memory_t *memory)
{
    xm_status_t status;
    xm_rails_outgoing_t *message = take(rails, buffer, length, memory, &status);
    bool copied;

    if (message == NULL) {
        return status;
    }
    copied = message->bytes == message->copy;
    message->number = rails->next_number++;
    message->tag = tag;
    rails->unheard += message->chunk == 0 ? cost_of(length) : 0;
    if (copied) {
        rails->copies += cost_of(length);
    } else {
        xm_rails_start(rails->peer, op, tag, buffer, length, XM_RAILS_SEND);
        message->op = op;
    }
    xm_list_append(&rails->unfinished, &message->all);
    announce(rails, message);
    xm_rails_failover_arm(rails->peer->owner);
    xm_rails_progress(rails->peer->owner);
    return copied ? XM_OK : XM_IN_PROGRESS;
}

/* Takes a message off the lists of what is to be sent. */
static void leave_lists(xm_rails_outgoing_t *message)
{
    xm_list_remove(&message->all);
    if (xm_list_is_in(&message->start)) {
        xm_list_remove(&message->start);
    }
    if (xm_list_is_in(&message->ready)) {
        xm_list_remove(&message->ready);
    }
}

/* Takes a message off all lists and detaches it from packets that lanes have, then frees it:
 * nobody reads its bytes after that. */
static void drop(xm_rails_t *rails, xm_rails_outgoing_t *message)
{
    xm_rails_void(rails, message);
    leave_lists(message);
    if (message->memory.held) {
        rails->peer->owner->lanes->release(rails->peer->owner, message->memory.handle);
    }
    rails->copies -= message->op == NULL ? cost_of(message->length) : 0;
    rails->unheard -= message->chunk == 0 ? cost_of(message->length) : 0;
    xm_blocks_give(&rails->peer->owner->blocks, message);
}

/* The message is gone before `done` is queued, so the caller's buffer is free when it learns of it.
 */
void xm_rails_tx_end(xm_rails_t *rails, xm_rails_outgoing_t *message)
{
    xm_op_t *op = message->op;

    drop(rails, message);
    if (op != NULL) {
        xm_rails_end_op(op, XM_OK);
    }
}

/* The peer has everything. A NIC that does not copy may still read the bytes to send them once
 * more, if it has not heard that they arrived: then the message ends with the last of its packets.
 */
static void end(xm_rails_t *rails, xm_rails_outgoing_t *message)
{
    if (rails->way == XM_RAILS_COPY || message->chunk == 0 || message->packets == 0) {
        xm_rails_tx_end(rails, message);
        return;
    }
    leave_lists(message);
    message->over = true;
    xm_list_append(&rails->over, &message->all);
}

/* Whether the peer knows all lanes by which chunks were lost for given up. */
static bool knows_losses(const xm_rails_outgoing_t *message, const xm_rails_frame_t *frame)
{
    bool knows = true;

    for (int lane = 0; lane < XM_NICS_MAX; ++lane) {
        uint8_t behind = (uint8_t)(message->lost_life[lane] - frame->life[lane]);

        knows = knows && (message->lost_life[lane] == 0 || behind == 0 || behind > INT8_MAX);
    }
    return knows;
}

/* Sends chunks that lanes which put have lost, as far as the peer lacks them: it has closed those
 * lanes, so what it says of them is final, and nobody writes to a chunk that it has. */
static void send_lost(xm_rails_t *rails, xm_rails_outgoing_t *message,
                      const xm_rails_frame_t *frame)
{
    if (message->lost == 0 || frame->offset != message->from || !knows_losses(message, frame)) {
        return;
    }
    message->todo |= message->lost & ~frame->tag;
    message->lost = 0;
    memset(message->lost_life, 0, sizeof(message->lost_life));
    if (message->todo != 0 && !xm_list_is_in(&message->ready)) {
        xm_list_append(&rails->ready, &message->ready);
    }
    xm_rails_set_due(rails);
}

/* Remembers where lanes are to put the message; false: the grant does not say it. */
static bool read_keys(const xm_rails_t *rails, xm_rails_outgoing_t *message,
                      const xm_rails_frame_t *frame, const uint8_t *keys, size_t length)
{
    int count = rails->peer->stripe.rails;

    if (length != 4 * (size_t)count || frame->length > UINT64_MAX - message->length) {
        return false;
    }
    message->address = frame->length;
    for (int rail = 0; rail < count; ++rail) {
        message->keys[rail] = (uint32_t)xm_get_le(keys + 4 * rail, 4);
    }
    return true;
}

/* The receiver wants the segment that begins at `offset`. Only whole segments of this message
 * can be asked for; anything else is a peer that does not keep to the protocol, with which
 * nothing can go on. */
static void send_segment(xm_rails_t *rails, xm_rails_outgoing_t *message,
                         const xm_rails_frame_t *frame, const uint8_t *keys, size_t length)
{
    uint64_t offset = frame->offset;

    if (message->chunk == 0 || offset >= message->length ||
        offset % ((uint64_t)message->chunk * XM_RAILS_FRAME_CHUNKS) != 0 ||
        (xm_rails_puts(rails) && !read_keys(rails, message, frame, keys, length))) {
        xm_rails_report(rails->peer, "it asks for what there is not");
        return;
    }
    /* Answers are repeated when rails are lost, so an old one may come after a newer one; it
     * must not set the message back. */
    if (message->granted && offset <= message->from) {
        send_lost(rails, message, frame);
        return; /* said before */
    }
    message->granted = true;
    message->from = (size_t)offset;
    message->todo = segment_of(message);
    message->lost = 0;
    memset(message->lost_life, 0, sizeof(message->lost_life));
    memset(message->by, XM_RAILS_NO_LANE, sizeof(message->by));
    if (!xm_list_is_in(&message->ready)) {
        xm_list_append(&rails->ready, &message->ready);
    }
    ++rails->peer->moved;
    xm_rails_set_due(rails);
}

/* Handles an answer. ALL may cover a run of messages; the list is in the order of numbers, so
 * the loop stops at the first one behind it. Messages that are not on the list were
 * acknowledged before. */
void xm_rails_tx_on_grant(xm_rails_t *rails, const xm_rails_frame_t *frame, const uint8_t *keys,
                          size_t length)
{
    bool all = frame->offset == XM_RAILS_FRAME_ALL;
    uint64_t end_number = frame->message + (all ? frame->length : 1);

    for (xm_list_t *at = xm_list_first(&rails->unfinished), *next; at != NULL; at = next) {
        xm_rails_outgoing_t *message = xm_list_entry(at, xm_rails_outgoing_t, all);

        next = xm_list_next(&rails->unfinished, at);
        if (message->number >= end_number) {
            return;
        }
        if (message->number >= frame->message && all) {
            end(rails, message);
        } else if (message->number >= frame->message) {
            send_segment(rails, message, frame, keys, length);
        }
    }
}

/* Chunks of the current segment that went by a lane, as bits. Those of earlier segments have
 * arrived, or this one would not have been granted. */
static uint64_t chunks_by(const xm_rails_outgoing_t *message, int lane)
{
    uint64_t chunks = 0;

    for (int i = 0; i < XM_RAILS_FRAME_CHUNKS; ++i) {
        chunks |= (uint64_t)(message->by[i] == lane) << i;
    }
    return chunks;
}

/* A lane is lost: what went by it and was not acknowledged is queued again. Nobody knows what
 * of it has arrived; the receiver drops what it has. All unfinished messages are announced
 * again, because the answer may be what was lost, and an announcement makes the peer repeat it.
 * Returns the number of fragments for the warning. */
uint64_t xm_rails_tx_resend(xm_rails_t *rails, int lane)
{
    uint64_t moved = 0;

    for (xm_list_t *at = xm_list_first(&rails->unfinished); at != NULL;
         at = xm_list_next(&rails->unfinished, at)) {
        xm_rails_outgoing_t *message = xm_list_entry(at, xm_rails_outgoing_t, all);
        uint64_t again = 0;

        if (message->granted) {
            /* Chunks that are still to be sent are not counted as moved. */
            again = chunks_by(message, lane) & ~message->todo;
            moved += (uint64_t)__builtin_popcountll(again);
            if (xm_rails_puts(rails) && again != 0) {
                message->lost |= again;
                message->lost_life[lane] = rails->life[lane];
                again = 0;
            }
            message->todo |= again;
        } else {
            moved += message->start_by == lane;
        }
        if (again != 0 && !xm_list_is_in(&message->ready)) {
            xm_list_append(&rails->ready, &message->ready);
        }
        /* An answer to it may be lost. */
        announce(rails, message);
    }
    return moved;
}

/* Before leaving: sends what has ended here without an answer once more, by another rail
 * (`elsewhere`). Each message is repeated once only, so this ends. */
void xm_rails_tx_repeat(xm_rails_t *rails)
{
    for (xm_list_t *at = xm_list_first(&rails->unfinished); at != NULL;
         at = xm_list_next(&rails->unfinished, at)) {
        xm_rails_outgoing_t *message = xm_list_entry(at, xm_rails_outgoing_t, all);

        if (message->op == NULL && !message->elsewhere) {
            message->elsewhere = true;
            announce(rails, message);
        }
    }
}

/* Forgets all messages; operations have been ended by the caller. */
void xm_rails_tx_clear(xm_rails_t *rails)
{
    xm_list_t *lists[] = {&rails->unfinished, &rails->over};

    for (int i = 0; i < 2; ++i) {
        while (!xm_list_is_empty(lists[i])) {
            drop(rails, xm_list_entry(lists[i]->next, xm_rails_outgoing_t, all));
        }
    }
}
