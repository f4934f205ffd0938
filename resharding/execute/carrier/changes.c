/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The carriers of an executor that brings only what has changed (execute.h, xm_executor_changes_t).
 *
 * A chunk is a message of its encoding (resharding/delta.h), whose length only its sender knows. So
 * another one of eight bytes goes before it and says the length; the two follow each other in the
 * slot, which leaves one operation to cancel.
 *
 * What comes for this rank's tiles waits in a journal, and the tiles are written when the caller
 * says so. What this rank passes on of it is cut out of the journal, whatever range the next rank
 * wants. A rank that has nothing to keep has no journal: chunks, which then are of all elements,
 * are written as they arrive, and passed on out of the tile.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "resharding/delta.h"
#include "resharding/execute/carrier.h"

enum { PARTS = 2 }; /* chunks of one grid that a chunk of the same length on another one touches */

/* A chunk in the journal; nothing of it has come when it has no length. */
typedef struct {
    size_t at, length;
} entry_t;

/* What only these carriers need. */
struct changing {
    slot_t *waiting, *latest; /* list: chunks that have yet to be encoded */
    uint64_t *scratch;        /* bits of a range */
    char *encoded;            /* of a copy's chunk */
    int64_t next, chunk;      /* the copy to go on with, and its chunk */
    int64_t *first;           /* by hop: its first entry */
    entry_t *entries;         /* of the chunks that come for this rank's tiles */
    char *journal;            /* their bytes */
    size_t used, room;
    uint64_t sent, covered; /* bytes of encodings in this run, and of their elements */
};

/* Encodes a range out of a source tile. */
static size_t encode(const xm_executor_t *executor, const hop_t *hop, const xm_view_t *view,
                     int64_t first, int64_t count, void *bytes)
{
    const xm_executor_changes_t *changes = executor->changes;
    xm_cursor_t last;

    xm_cursor_set(&last, view, first + count - 1);
    return xm_encoding_write(view, executor->tensors[hop->tensor].src,
                             changes->changed(changes->arg,
                                              xm_plan_transfer(executor->plan, hop->transfer).task,
                                              hop->tensor, last.offset / view->element_size + 1),
                             first, count, executor->changing->scratch, bytes);
}

/* Encodes a range out of what this rank has got by the hop that feeds this one. */
static size_t encode_again(xm_executor_t *executor, const hop_t *hop, int64_t first, int64_t count,
                           void *bytes)
{
    const struct changing *changing = executor->changing;
    const hop_t *feed = &executor->hops[hop->feed];
    xm_encoded_range_t parts[PARTS];
    int64_t chunk = (first - feed->first) / feed->chunk;
    size_t length;

    if (!executor->changes->keeps) {
        return xm_encoding_write(&hop->view, executor->tensors[hop->tensor].dst, NULL, first, count,
                                 changing->scratch, bytes);
    }
    for (int p = 0; p < PARTS && chunk < feed->chunks; ++p, ++chunk) {
        const entry_t *entry = &changing->entries[changing->first[hop->feed] + chunk];

        parts[p] =
            (xm_encoded_range_t){.bytes = changing->journal + entry->at, .length = entry->length};
        chunk_range(feed, chunk, &parts[p].first, &parts[p].count);
    }
    length = xm_encoding_cut(parts, first, count, hop->view.element_size, changing->scratch, bytes);
    if (length == 0) {
        xm_executor_fail(executor,
                         xm_error_set(XM_ERR_CORRUPT, "rank %d passes on what is no encoding",
                                      executor->transport->rank));
    }
    return length;
}

/* Keeps a chunk until it is to be written. Readers of an encoding look a little behind it. */
static xm_status_t add_entry(xm_executor_t *executor, const hop_t *hop, int64_t chunk,
                             const void *bytes, size_t length)
{
    struct changing *changing = executor->changing;
    size_t wanted = changing->used + length + xm_encoding_limit(0, 1);

    if (wanted > changing->room) {
        size_t room = 2 * wanted;
        char *grown = realloc(changing->journal, room);

        if (grown == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "rank %d: no memory for %zu bytes of an update",
                                executor->transport->rank, room);
        }
        changing->journal = grown;
        changing->room = room;
    }
    memcpy(changing->journal + changing->used, bytes, length);
    changing->entries[changing->first[hop - executor->hops] + chunk] =
        (entry_t){changing->used, length};
    changing->used += length;
    return XM_OK;
}

static xm_status_t write_tile(const xm_executor_t *executor, const hop_t *hop, int64_t chunk,
                              const void *bytes, size_t length)
{
    int64_t first, count;

    chunk_range(hop, chunk, &first, &count);
    return xm_encoding_apply(&hop->view, executor->tensors[hop->tensor].dst, first, count, bytes,
                             length)
               ? XM_OK
               : xm_error_set(XM_ERR_CORRUPT,
                              "rank %d: what came for %" PRId64 " elements of tensor %d is no "
                              "encoding of them",
                              executor->transport->rank, count, hop->tensor);
}

/* A chunk for a destination tile of this rank. */
static void take(xm_executor_t *executor, const hop_t *hop, int64_t chunk, const void *bytes,
                 size_t length)
{
    xm_status_t status = executor->changes->keeps ? add_entry(executor, hop, chunk, bytes, length)
                                                  : write_tile(executor, hop, chunk, bytes, length);

    if (status < 0) {
        xm_executor_fail(executor, status);
    }
}

xm_status_t xm_executor_write_changes(xm_executor_t *executor)
{
    const struct changing *changing = executor->changing;

    for (int64_t h = 0; h < executor->hop_count; ++h) {
        const hop_t *hop = &executor->hops[h];

        for (int64_t c = 0; c < hop->chunks; ++c) {
            const entry_t *entry = &changing->entries[changing->first[h] + c];

            if (entry->length > 0) {
                XM_TRY(write_tile(executor, hop, c, changing->journal + entry->at, entry->length));
            }
        }
    }
    return XM_OK;
}

xm_status_t xm_executor_changed(const xm_executor_t *executor, int tensor, uint64_t *bits)
{
    const struct changing *changing = executor->changing;

    for (int64_t h = 0; h < executor->hop_count; ++h) {
        const hop_t *hop = &executor->hops[h];

        for (int64_t c = 0; hop->tensor == tensor && c < hop->chunks; ++c) {
            const entry_t *entry = &changing->entries[changing->first[h] + c];
            int64_t first, count;

            chunk_range(hop, c, &first, &count);
            if (entry->length > 0) {
                xm_encoding_mark(&hop->view, first, count, changing->journal + entry->at,
                                 entry->length, bits);
            }
        }
    }
    return XM_OK;
}

/* ---- messages ------------------------------------------------------------------------------- */

static void data_done(xm_op_t *op, xm_status_t status)
{
    slot_t *slot = op->arg;

    slot->op_busy = false;
    xm_executor_chunk_ended(slot, status);
}

/* The length has left, or has come: the data follow. */
static void length_done(xm_op_t *op, xm_status_t status)
{
    slot_t *slot = op->arg;
    xm_executor_t *executor = slot->lane->executor;

    slot->ack_busy = false;
    if (status == XM_OK && !lane_sends(slot->lane)) {
        int64_t first, count;

        chunk_range(slot->hop, slot->chunk, &first, &count);
        slot->length = (size_t)slot->copied;
        if (slot->copied < 1 ||
            slot->length > xm_encoding_limit(count, slot->hop->view.element_size)) {
            status = xm_error_set(XM_ERR_CORRUPT,
                                  "rank %d: rank %d announced %" PRId64 " bytes for %" PRId64
                                  " elements",
                                  executor->transport->rank, slot->lane->peer, slot->copied, count);
        }
    }
    if (status == XM_OK && executor->result == XM_OK) {
        xm_message_transmit(slot, data_done);
    } else {
        xm_executor_chunk_ended(slot, status < 0 ? status : executor->result);
    }
}

/* The buffer of a slot is ready: its length goes first. */
static void announce(slot_t *slot)
{
    lane_t *lane = slot->lane;
    xm_executor_t *executor = lane->executor;
    uint64_t tag = slot->tag | XM_LENGTH_BIT;
    xm_status_t status;

    if (lane_sends(lane)) {
        int64_t first, count;

        chunk_range(slot->hop, slot->chunk, &first, &count);
        executor->changing->sent += slot->length;
        executor->changing->covered += (uint64_t)(count * slot->hop->view.element_size);
    }
    slot->copied = (int64_t)slot->length;
    slot->ack_busy = true;
    slot->ack.done = length_done;
    slot->ack.arg = slot;
    status = lane_sends(lane)
                 ? xm_transport_send(executor->transport, lane->peer, tag, &slot->copied,
                                     sizeof(slot->copied), NULL, &slot->ack)
                 : xm_transport_receive(executor->transport, lane->peer, tag, &slot->copied,
                                        sizeof(slot->copied), NULL, &slot->ack);
    if (status != XM_IN_PROGRESS) {
        length_done(&slot->ack, status);
    }
}

/* What has to be encoded waits for its turn in changes_move(). */
static void changes_post(slot_t *slot)
{
    const hop_t *hop = slot->hop;
    lane_t *lane = slot->lane;
    struct changing *changing = lane->executor->changing;

    xm_message_announce(slot);
    slot->memory = lane->executor->staging.registration;
    if (lane_sends(lane) && hop->forward != NULL) {
        slot->buffer = xm_forward_buffer(hop, slot->chunk, &slot->length);
        announce(slot);
        return;
    }
    slot->packed = slot->buffer = xm_executor_take_pack_buffer(lane);
    slot->length = 0;
    if (!lane_sends(lane)) {
        announce(slot);
        return;
    }
    slot->pending = NULL;
    *(changing->waiting != NULL ? &changing->latest->pending : &changing->waiting) = slot;
    changing->latest = slot;
}

/* Encodes what waits, in the order in which it was posted: by slices, between which the network
 * takes what is ready. After a failure it only ends. */
static int64_t changes_move(xm_executor_t *executor, int64_t budget)
{
    struct changing *changing = executor->changing;

    while (changing->waiting != NULL && (budget > 0 || executor->result < 0)) {
        slot_t *slot = changing->waiting;
        const hop_t *hop = slot->hop;
        int64_t first, count;

        changing->waiting = slot->pending;
        if (executor->result == XM_OK) {
            chunk_range(hop, slot->chunk, &first, &count);
            slot->length = hop->feed < 0
                               ? encode(executor, hop, &hop->view, first, count, slot->packed)
                               : encode_again(executor, hop, first, count, slot->packed);
            budget -= count * hop->view.element_size;
        }
        if (executor->result == XM_OK) {
            announce(slot);
        } else {
            xm_executor_chunk_ended(slot, executor->result);
        }
    }
    return budget;
}

static bool changes_busy(const xm_executor_t *executor)
{
    return executor->changing->waiting != NULL;
}

static bool changes_ended(slot_t *slot)
{
    lane_t *lane = slot->lane;
    const hop_t *hop = slot->hop;

    if (slot->packed == NULL) {
        xm_forward_passed(lane->executor, hop, slot->chunk);
        return true;
    }
    if (slot->status == XM_OK && !lane_sends(lane) && xm_forward_takes(lane->executor, hop)) {
        take(lane->executor, hop, slot->chunk, slot->packed, slot->length);
    }
    if (hop->forward != NULL) {
        xm_forward_keep(hop, slot->chunk, slot->packed, slot->length);
    } else {
        xm_executor_return_pack_buffer(lane, slot->packed);
    }
    return true;
}

/* The core has cancelled what it knows of. */
static void changes_cancel(xm_executor_t *executor)
{
    for (int l = 0; l < executor->lane_count; ++l) {
        const lane_t *lane = &executor->lanes[l];

        for (int s = 0; s < lane->in_flight; ++s) {
            slot_t *slot = &lane->slots[(lane->oldest + s) % lane->slot_count];

            if (slot->ack_busy) {
                xm_transport_cancel(executor->transport, &slot->ack);
            }
        }
    }
}

/* ---- copies inside the rank ------------------------------------------------------------------ */

static int64_t copies_move(xm_executor_t *executor, int64_t budget)
{
    struct changing *changing = executor->changing;

    while (budget > 0 && changing->next < executor->copy_count && executor->result == XM_OK) {
        const copy_t *one = &executor->copies[changing->next];
        hop_t *hop = &executor->hops[one->hop];
        int64_t first, count;

        if (changing->chunk == 0) {
            hop->span.start_ns = xm_transport_now(executor->transport);
        }
        chunk_range(hop, changing->chunk, &first, &count);
        take(executor, hop, changing->chunk, changing->encoded,
             encode(executor, hop, &one->from, first, count, changing->encoded));
        ++executor->steps;
        budget -= count * hop->view.element_size;
        if (++changing->chunk == hop->chunks) {
            ++changing->next;
            changing->chunk = 0;
            xm_executor_end_hop(executor, hop);
        }
    }
    return budget;
}

static void copies_offer(xm_executor_t *executor)
{
    struct changing *changing = executor->changing;

    changing->next = changing->chunk = 0;
    changing->sent = changing->covered = changing->used = 0;
    memset(changing->entries, 0, (size_t)changing->first[executor->hop_count] * sizeof(entry_t));
}

static bool copies_busy(const xm_executor_t *executor)
{
    return executor->result == XM_OK && executor->changing->next < executor->copy_count;
}

/* ---- the executor's part --------------------------------------------------------------------- */

/* Entries for the chunks of all hops that bring something for this rank, and room for what is
 * encoded at once. */
static xm_status_t make_changing(xm_executor_t *executor, struct changing *made)
{
    size_t scratch = 0, encoded = 0;
    int64_t entries = 0;

    made->first = malloc(((size_t)executor->hop_count + 1) * sizeof(*made->first));
    for (int64_t h = 0; made->first != NULL && h <= executor->hop_count; ++h) {
        const hop_t *hop = &executor->hops[h];
        size_t bits = xm_encoding_scratch(hop->chunk);
        size_t bytes = xm_encoding_limit(hop->chunk, hop->view.element_size);

        made->first[h] = entries;
        if (h < executor->hop_count) {
            entries += hop->chunks;
            scratch = bits > scratch ? bits : scratch;
            encoded = bytes > encoded ? bytes : encoded;
        }
    }
    made->entries = calloc((size_t)entries + 1, sizeof(*made->entries));
    made->scratch = malloc(scratch + 1);
    made->encoded = malloc(encoded + 1);
    return made->first != NULL && made->entries != NULL && made->scratch != NULL &&
                   made->encoded != NULL
               ? XM_OK
               : XM_NO_MEMORY("what changes");
}

static xm_status_t changes_create(xm_executor_t *executor, const xm_executor_params_t *params)
{
    struct changing *made = calloc(1, sizeof(*made));

    (void)params;
    executor->changing = made; /* freed with the executor */
    XM_NEED_MEMORY(made, "what changes");
    if (executor->device != NULL) {
        return XM_UNSUPPORTED(
            "rank %d: a tile lies on a device, and updates are found by the host: reshard it",
            executor->transport->rank);
    }
    for (int64_t h = 0; h < executor->hop_count; ++h) {
        if (executor->hops[h].in_dst && executor->hops[h].feed < 0 && executor->hops[h].lane >= 0 &&
            lane_sends(&executor->lanes[executor->hops[h].lane])) {
            return XM_UNSUPPORTED("the rest of a run cannot be an update");
        }
    }
    return make_changing(executor, made);
}

static void changes_destroy(xm_executor_t *executor)
{
    if (executor->changing != NULL) {
        free(executor->changing->journal);
        free(executor->changing->entries);
        free(executor->changing->first);
        free(executor->changing->encoded);
        free(executor->changing->scratch);
        free(executor->changing);
    }
}

void xm_executor_changes_moved(const xm_executor_t *executor, xm_executor_moved_t *moved)
{
    const struct changing *changing = executor->changing;

    *moved = (xm_executor_moved_t){changing->sent, changing->covered, changing->used};
}

const carrier_t xm_carrier_changes = {.packs = true,
                                      .create = changes_create,
                                      .post = changes_post,
                                      .move = changes_move,
                                      .busy = changes_busy,
                                      .ended = changes_ended,
                                      .cancel = changes_cancel,
                                      .destroy = changes_destroy};
const carrier_t xm_carrier_changed_copies = {
    .offer = copies_offer, .move = copies_move, .busy = copies_busy};
const carrier_t xm_carrier_none = {.packs = false};
