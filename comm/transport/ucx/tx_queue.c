/* SPDX-License-Identifier: Apache-2.0 */
/* Send queue of the multi-rail channel. A message stays on the list `unfinished` until the peer
 * has acknowledged it, because until then any rail may turn out to be lost and its bytes have
 * to be sent again: from the caller's buffer, or from a copy for short ones, whose sends end at
 * once. What is bounded are the bytes kept for acknowledged sends (COPIES) and those sent
 * unasked (UNHEARD), so a peer that receives nothing makes sends wait, never memory grow. */
#include <string.h>

#include "comm/transport/ucx/multirail.h"

/* Bytes of a chunk: a message has CHUNKS_FOR_EACH of them for each rail, within these bounds.
 * UCX sends up to a MiB at a time. Small chunks balance rails of different rates better and
 * lose less with a rail; large ones cost fewer frames. */
enum { SMALLEST_CHUNK = 32 * 1024, LARGEST_CHUNK = 512 * 1024, CHUNKS_FOR_EACH = 4 };

/* Chunks are whole pages, so that none but the last ends inside one. */
static uint32_t chunk_of(const xm_ucx_multirail_t *multirail, size_t length)
{
    size_t chunk = length / ((size_t)CHUNKS_FOR_EACH * (size_t)multirail->peer->stripe.used);

    chunk = (chunk + 4095) / 4096 * 4096;
    chunk = chunk < SMALLEST_CHUNK ? SMALLEST_CHUNK : chunk;
    return (uint32_t)(chunk > LARGEST_CHUNK ? LARGEST_CHUNK : chunk);
}

/* The chunks of the segment that was granted, as bits; a segment never has more than one word
 * of them. */
static uint64_t segment_of(const xm_ucx_outgoing_t *message)
{
    size_t chunks = (message->length - message->from + message->chunk - 1) / message->chunk;

    return chunks >= XM_UCX_FRAME_CHUNKS ? UINT64_MAX : (UINT64_C(1) << chunks) - 1;
}

/* Queues the announcement, unless it is queued already. Announcing twice does no harm: the
 * receiver knows the message by its number and answers again. */
static void announce(xm_ucx_multirail_t *multirail, xm_ucx_outgoing_t *message)
{
    if (!xm_list_is_in(&message->start)) {
        xm_list_append(&multirail->starts, &message->start);
    }
    xm_ucx_multirail_set_due(multirail);
}

/* The bookkeeping counts too, or many empty messages would escape the limits. */
static size_t cost_of(size_t length)
{
    return length + sizeof(xm_ucx_outgoing_t);
}

/* True when a message goes without being announced: it is short, and not too many unanswered
 * ones are under way. */
static bool is_eager(const xm_ucx_multirail_t *multirail, size_t length)
{
    return length < XM_UCX_MULTIRAIL_EAGER &&
           multirail->unheard + cost_of(length) <= XM_UCX_MULTIRAIL_UNHEARD;
}

/* True when the send of such a message ends at once because a copy is kept. Posting asks first,
 * since an operation that ends at once is never put on a ring. */
bool xm_ucx_tx_queue_copies(const xm_ucx_multirail_t *multirail, size_t length)
{
    return is_eager(multirail, length) &&
           multirail->copies + cost_of(length) <= XM_UCX_MULTIRAIL_COPIES;
}

/* An operation that is in flight already ends through its ring; a copied send has none and
 * fails in the post. */
static xm_status_t no_memory(const xm_ucx_multirail_t *multirail, xm_op_t *op)
{
    xm_status_t status =
        xm_error_set(XM_ERR_NO_MEMORY, "rank %d: no memory for a message to rank %d",
                     multirail->peer->owner->base.rank, multirail->peer->rank);

    if (op != NULL) {
        xm_ucx_end_op(op, status);
        return XM_IN_PROGRESS;
    }
    return status;
}

/* Takes a message into the queue. Its number is drawn here, so messages are received in the
 * order in which they were posted, whatever rails carry them. The progress runs at once: waiting
 * for the next progress would add its delay to each message. */
xm_status_t xm_ucx_tx_queue_send(xm_ucx_multirail_t *multirail, xm_op_t *op, uint64_t tag,
                                 const void *buffer, size_t length)
{
    xm_ucx_outgoing_t *message = xm_blocks_take(&multirail->peer->owner->blocks,
                                                sizeof(*message) + (op == NULL ? length : 0));

    if (message == NULL) {
        return no_memory(multirail, op);
    }
    *message = (xm_ucx_outgoing_t){.op = op,
                                   .number = multirail->next_number++,
                                   .tag = tag,
                                   .length = length,
                                   .bytes = buffer};
    /* A chunk size of 0 is what marks an eager message from here on. */
    message->chunk = is_eager(multirail, length) ? 0 : chunk_of(multirail, length);
    multirail->unheard += message->chunk == 0 ? cost_of(length) : 0;
    message->start_by = XM_UCX_MULTIRAIL_NO_LANE;
    if (op == NULL) {
        memcpy(message->copy, buffer, length);
        message->bytes = message->copy;
        multirail->copies += cost_of(length);
    } else {
        op->priv.handle = message;
    }
    xm_list_append(&multirail->unfinished, &message->all);
    announce(multirail, message);
    xm_ucx_failover_arm(multirail->peer->owner);
    xm_ucx_multirail_progress(multirail->peer->owner);
    return op == NULL ? XM_OK : XM_IN_PROGRESS;
}

/* Takes a message off all lists and detaches it from packets that UCX has, then frees it:
 * nobody reads its bytes after that. */
static void drop(xm_ucx_multirail_t *multirail, xm_ucx_outgoing_t *message)
{
    xm_ucx_multirail_void(multirail, message);
    xm_list_remove(&message->all);
    if (xm_list_is_in(&message->start)) {
        xm_list_remove(&message->start);
    }
    if (xm_list_is_in(&message->ready)) {
        xm_list_remove(&message->ready);
    }
    multirail->copies -= message->op == NULL ? cost_of(message->length) : 0;
    multirail->unheard -= message->chunk == 0 ? cost_of(message->length) : 0;
    xm_blocks_give(&multirail->peer->owner->blocks, message);
}

/* The peer has everything. The message is gone before `done` is queued, so the caller's buffer
 * is free when it learns of it. */
static void end(xm_ucx_multirail_t *multirail, xm_ucx_outgoing_t *message)
{
    xm_op_t *op = message->op;

    drop(multirail, message);
    if (op != NULL) {
        xm_ucx_end_op(op, XM_OK);
    }
}

/* The receiver wants the segment that begins at `offset`. Only whole segments of this message
 * can be asked for; anything else is a peer that does not keep to the protocol, with which
 * nothing can go on. */
static void send_segment(xm_ucx_multirail_t *multirail, xm_ucx_outgoing_t *message, uint64_t offset)
{
    if (message->chunk == 0 || offset >= message->length ||
        offset % ((uint64_t)message->chunk * XM_UCX_FRAME_CHUNKS) != 0) {
        xm_ucx_report(multirail->peer, UCS_ERR_INVALID_PARAM);
        return;
    }
    /* Answers are repeated when rails are lost, so an old one may come after a newer one; it
     * must not set the message back. */
    if (message->granted && offset <= message->from) {
        return; /* said before */
    }
    message->granted = true;
    message->from = (size_t)offset;
    message->todo = segment_of(message);
    memset(message->by, XM_UCX_MULTIRAIL_NO_LANE, sizeof(message->by));
    if (!xm_list_is_in(&message->ready)) {
        xm_list_append(&multirail->ready, &message->ready);
    }
    ++multirail->peer->moved;
    xm_ucx_multirail_set_due(multirail);
}

/* Handles an answer. ALL may cover a run of messages; the list is in the order of numbers, so
 * the loop stops at the first one behind it. Messages that are not on the list were
 * acknowledged before. */
void xm_ucx_tx_queue_on_grant(xm_ucx_multirail_t *multirail, const xm_ucx_frame_t *frame)
{
    bool all = frame->offset == XM_UCX_FRAME_ALL;
    uint64_t end_number = frame->message + (all ? frame->length : 1);

    for (xm_list_t *at = xm_list_first(&multirail->unfinished), *next; at != NULL; at = next) {
        xm_ucx_outgoing_t *message = xm_list_entry(at, xm_ucx_outgoing_t, all);

        next = xm_list_next(&multirail->unfinished, at);
        if (message->number >= end_number) {
            return;
        }
        if (message->number >= frame->message && all) {
            end(multirail, message);
        } else if (message->number >= frame->message) {
            send_segment(multirail, message, frame->offset);
        }
    }
}

/* Chunks of the current segment that went by a lane, as bits. Those of earlier segments have
 * arrived, or this one would not have been granted. */
static uint64_t chunks_by(const xm_ucx_outgoing_t *message, int lane)
{
    uint64_t chunks = 0;

    for (int i = 0; i < XM_UCX_FRAME_CHUNKS; ++i) {
        chunks |= (uint64_t)(message->by[i] == lane) << i;
    }
    return chunks;
}

/* A lane is lost: what went by it and was not acknowledged is queued again. Nobody knows what
 * of it has arrived; the receiver drops what it has. All unfinished messages are announced
 * again, because the answer may be what was lost, and an announcement makes the peer repeat it.
 * Returns the number of fragments for the warning. */
uint64_t xm_ucx_tx_queue_resend(xm_ucx_multirail_t *multirail, int lane)
{
    uint64_t moved = 0;

    for (xm_list_t *at = xm_list_first(&multirail->unfinished); at != NULL;
         at = xm_list_next(&multirail->unfinished, at)) {
        xm_ucx_outgoing_t *message = xm_list_entry(at, xm_ucx_outgoing_t, all);
        uint64_t again = 0;

        if (message->granted) {
            /* Chunks that are still to be sent are not counted as moved. */
            again = chunks_by(message, lane) & ~message->todo;
            message->todo |= again;
            moved += (uint64_t)__builtin_popcountll(again);
        } else {
            moved += message->start_by == lane;
        }
        if (again != 0 && !xm_list_is_in(&message->ready)) {
            xm_list_append(&multirail->ready, &message->ready);
        }
        /* An answer to it may be lost. */
        announce(multirail, message);
    }
    return moved;
}

/* Before leaving: sends what has ended here without an answer once more, by another rail
 * (`elsewhere`). Each message is repeated once only, so this ends. */
void xm_ucx_tx_queue_repeat(xm_ucx_multirail_t *multirail)
{
    for (xm_list_t *at = xm_list_first(&multirail->unfinished); at != NULL;
         at = xm_list_next(&multirail->unfinished, at)) {
        xm_ucx_outgoing_t *message = xm_list_entry(at, xm_ucx_outgoing_t, all);

        if (message->op == NULL && !message->elsewhere) {
            message->elsewhere = true;
            announce(multirail, message);
        }
    }
}

/* Forgets all messages; operations have been ended by the caller. */
void xm_ucx_tx_queue_clear(xm_ucx_multirail_t *multirail)
{
    while (!xm_list_is_empty(&multirail->unfinished)) {
        drop(multirail, xm_list_entry(multirail->unfinished.next, xm_ucx_outgoing_t, all));
    }
}
