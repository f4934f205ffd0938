/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The direct carrier: a rank copies what a neighbour on its host sends straight out of the
 * neighbour's tile, where that is in shared memory (comm/memory/shared_memory.h). One copy instead
 * of the kernel's (cma), which takes every page through its tables, or of two through a queue; and
 * strided boxes need no packing at either end.
 *
 * Per run and lane, the ends make a pact about the hops
 * (resharding/execute/carrier/direct_offer.c). Then a chunk's message has one byte, "it is there".
 * A chunk waits for that at either end; at the receiver it then waits to be copied, which `ended`
 * queues and `move` does slice by slice, so that a long copy does not keep the network waiting.
 * When all of a hop has been copied the receiver says so, once, which ends it at the sender: its
 * buffer may change then. That is why a hop's end is more than its chunks' (`finish`), and why
 * nothing is said about single chunks.
 *
 * A sender whose run fails may let its buffer change before that. It leaves a notice in a page that
 * its neighbours have mapped too, before the run ends; they look at it after each copy and fail.
 */
#include "resharding/execute/carrier/direct.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Hops of fewer bytes than the first always travel as messages: one with the data is quicker than
 * those about them. So do all hops of a lane that would carry fewer than the second directly: a
 * pact and the last hop's end take two exchanges between ranks that may sleep. Measured between two
 * ranks (us, least of 100 runs): 0.25 MiB 16 by UCX and 38 directly, 1 MiB 74 and 98, 8 MiB 802 and
 * 596; from one to four 1 MiB 667 and 367.
 */
enum { HOP_LEAST = 64 * 1024, LANE_LEAST = 1024 * 1024 };

/* ---- creation ------------------------------------------------------------------------------- */

static bool may_be_direct(const xm_executor_t *executor, const hop_t *hop)
{
    return hop->in_tiles && hop_bytes(executor, hop) >= HOP_LEAST;
}

/* Hops of the lane that may go directly. Both ends count alike. */
static int64_t count_directs(const lane_t *lane)
{
    const xm_executor_t *executor = lane->executor;
    int64_t count = 0, bytes = 0;

    if (!xm_executor_lane_is_inside(lane)) {
        return 0;
    }
    for (int64_t i = 0; i < lane->item_count; ++i) {
        const hop_t *hop = &executor->hops[lane->items[i]];

        if (may_be_direct(executor, hop)) {
            bytes += hop_bytes(executor, hop);
            ++count;
        }
    }
    return bytes >= LANE_LEAST ? count : 0;
}

/* Lists the lane's direct hops, and the tiles they read. `index_of` is −1 for every tensor and side
 * before and after. */
static void fill_pact(pact_t *pact, int64_t *index_of)
{
    const lane_t *lane = pact->lane;
    xm_executor_t *executor = lane->executor;

    for (int64_t i = 0; i < lane->item_count; ++i) {
        hop_t *hop = &executor->hops[lane->items[i]];
        bool is_dst;
        int64_t *index;

        if (!may_be_direct(executor, hop)) {
            continue;
        }
        is_dst = xm_executor_view_peer(executor, hop);
        index = &index_of[2 * hop->tensor + is_dst];
        if (*index < 0) {
            *index = pact->tile_count;
            pact->tiles[pact->tile_count++] =
                (direct_tile_t){.tensor = hop->tensor, .is_dst = is_dst};
        }
        hop->direct = &pact->directs[pact->direct_count];
        *hop->direct = (direct_t){.hop = hop,
                                  .pact = pact,
                                  .number = NUMBER_COPIED + (uint32_t)pact->direct_count,
                                  .tile = *index};
        ++pact->direct_count;
        executor->own_bytes += lane_sends(lane) ? 0 : hop_bytes(executor, hop);
    }
    for (int64_t i = 0; i < pact->tile_count; ++i) {
        index_of[2 * pact->tiles[i].tensor + pact->tiles[i].is_dst] = -1;
    }
}

static xm_status_t no_memory(const xm_executor_t *executor)
{
    return XM_NO_MEMORY("the %" PRId64 " direct hops of rank %d", executor->directs->count,
                        executor->transport->rank);
}

/* Gives every pact its share of the arrays: at most a tile for each direct hop. */
static xm_status_t list_pacts(xm_executor_t *executor)
{
    size_t sides = 2 * (size_t)executor->tensor_count;
    int64_t *index_of = malloc(sides * sizeof(*index_of)), next = 0;
    directs_t *directs = executor->directs;
    pact_t *pact = directs->pacts;

    if (index_of == NULL) {
        return no_memory(executor);
    }
    memset(index_of, -1, sides * sizeof(*index_of));
    for (int l = 0; l < executor->lane_count; ++l) {
        lane_t *lane = &executor->lanes[l];

        if (count_directs(lane) == 0) {
            continue;
        }
        *pact = (pact_t){
            .lane = lane, .directs = directs->directs + next, .tiles = directs->tiles + next};
        fill_pact(pact, index_of);
        next += pact++->direct_count;
    }
    free(index_of);
    return XM_OK;
}

/* Makes room for the messages, and for what the tiles of others are mapped by. */
static xm_status_t make_room(const xm_executor_t *executor)
{
    directs_t *directs = executor->directs;
    size_t bytes = 0, views = 0;
    unsigned char *next;
    xm_shared_view_t *view;

    for (int p = 0; p < directs->pact_count; ++p) {
        const pact_t *pact = &directs->pacts[p];

        bytes += 2 * offer_bytes(pact) + (size_t)pact->tile_count;
        views += 1 + (size_t)pact->tile_count;
    }
    directs->bytes = next = calloc(bytes, 1);
    directs->views = view = calloc(views, sizeof(*view));
    if (next == NULL || view == NULL) {
        return no_memory(executor);
    }
    for (int p = 0; p < directs->pact_count; ++p) {
        pact_t *pact = &directs->pacts[p];

        pact->offer = next;
        pact->known = pact->offer + offer_bytes(pact);
        pact->answer = pact->known + offer_bytes(pact);
        next = pact->answer + pact->tile_count;
        pact->views = view;
        view += 1 + pact->tile_count;
    }
    return XM_OK;
}

/* Views of others' memory go at once: nobody but this rank reads there. */
static void direct_destroy(xm_executor_t *executor)
{
    directs_t *directs = executor->directs;

    if (directs == NULL) {
        return;
    }
    for (int p = 0; p < directs->pact_count; ++p) {
        for (int64_t v = 0; v < directs->pacts[p].view_count; ++v) {
            xm_shared_memory_detach(&directs->pacts[p].views[v]);
        }
    }
    xm_executor_let_go(executor, directs->bytes);
    xm_executor_let_go(executor, directs->directs); /* each has the byte of a message */
    xm_shared_memory_destroy(directs->notice);
    free(directs->views);
    xm_executor_let_go(executor, directs->pacts); /* their signals may still end */
    free(directs->tiles);
    free(directs);
}

/* Lists what may go directly, whoever shares memory in the end: both ends have to list alike. Not
 * on a simulated fabric, whose hosts and times are made up. */
static xm_status_t direct_create(xm_executor_t *executor, const xm_executor_params_t *params)
{
    directs_t *directs;
    int64_t count = 0;
    int pacts = 0;

    if (!executor->transport->real_hosts || params->no_copy) {
        return XM_OK;
    }
    for (int l = 0; l < executor->lane_count; ++l) {
        int64_t own = count_directs(&executor->lanes[l]);

        count += own;
        pacts += own > 0;
    }
    if (count == 0) {
        return XM_OK;
    }
    directs = calloc(1, sizeof(*directs));
    XM_NEED_MEMORY(directs, "direct hops");
    executor->directs = directs; /* freed with the executor */
    directs->count = count;
    directs->directs = calloc((size_t)count, sizeof(*directs->directs));
    directs->tiles = calloc((size_t)count, sizeof(*directs->tiles));
    directs->pacts = calloc((size_t)pacts, sizeof(*directs->pacts));
    if (directs->directs == NULL || directs->tiles == NULL || directs->pacts == NULL) {
        return no_memory(executor);
    }
    directs->pact_count = pacts;
    XM_TRY(list_pacts(executor));
    XM_TRY(make_room(executor));
    xm_direct_write_offers(executor);
    return XM_OK;
}

/* ---- the notice ----------------------------------------------------------------------------- */

/* At the end of every advance of a failed run: no tile may change before its last one. */
static void direct_close(xm_executor_t *executor)
{
    notice_t *notice;

    if (executor->result == XM_OK || executor->directs == NULL ||
        executor->directs->notice == NULL) {
        return;
    }
    notice = xm_shared_memory_address(executor->directs->notice);
    atomic_store(&notice->given_up, executor->runs);
    /* Whatever the user writes into his buffers after this run is seen after the notice. */
    atomic_thread_fence(memory_order_seq_cst);
}

/* XM_OK while what was copied out of the lane's peer is what it had when it said so. */
static xm_status_t check_notice(const pact_t *pact)
{
    const xm_executor_t *executor = pact->lane->executor;
    const notice_t *notice = pact->views[0].address;

    /* What has been copied was read before the notice is. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load(&notice->given_up) >= executor->runs) {
        return xm_error_set(XM_ERR_UNREACHABLE,
                            "rank %d gave the run up while rank %d copied from its memory",
                            pact->lane->peer, executor->transport->rank);
    }
    return XM_OK;
}

/* ---- chunks --------------------------------------------------------------------------------- */

/* The byte has left or come. That is all at the sender; the receiver copies when the lane comes to
 * the chunk. */
static void announced(xm_op_t *op, xm_status_t status)
{
    slot_t *slot = op->arg;

    slot->op_busy = false;
    xm_executor_chunk_ended(slot, status);
}

static void direct_post(slot_t *slot)
{
    slot->copied = 0;
    slot->buffer = &slot->byte;
    slot->length = 1;
    slot->memory = NULL;
    xm_executor_transmit(slot, announced);
}

/*
 * A chunk that has been announced ends when it has been copied, so chunks of a lane are copied one
 * after the other, and only the oldest can be in the middle of it: one entry per lane in the list
 * of copiers says all. After a failure nothing is copied any more.
 */
static bool direct_ended(slot_t *slot)
{
    xm_executor_t *executor = slot->lane->executor;
    pact_t *pact = slot->hop->direct->pact;
    int64_t first, count;

    chunk_range(slot->hop, slot->chunk, &first, &count);
    if (executor->result < 0 || lane_sends(slot->lane) || slot->copied == count) {
        return true;
    }
    if (!pact->copies) {
        pact->copies = true;
        pact->next_copier = executor->directs->copiers;
        executor->directs->copiers = pact;
    }
    return false;
}

/* The sender's buffer may change. This is a callback of the transport, so the hop is only listed.
 */
static void was_copied(signal_t *signal)
{
    const direct_t *direct = signal->owner;

    xm_executor_hop_finished(direct->pact->lane->executor, direct->hop);
}

/* The last chunk of a hop has been announced and, at the receiver, copied. The sender waits for its
 * receiver to say that. */
static bool direct_finish(hop_t *hop)
{
    direct_t *direct = hop->direct;
    lane_t *lane = direct->pact->lane;

    direct->copied.peer = lane->peer;
    direct->copied.sends = !lane_sends(lane);
    direct->copied.owner = direct;
    direct->copied.ended = lane_sends(lane) ? was_copied : NULL;
    xm_signal_post(lane->executor, &direct->copied, XM_DIRECT_BIT | direct->number, &direct->byte,
                   1);
    return !lane_sends(lane);
}

/* ---- copying -------------------------------------------------------------------------------- */

static slot_t *oldest_of(const pact_t *pact)
{
    return &pact->lane->slots[pact->lane->oldest];
}

/* The link to the pact whose lane's chunk comes first in the plan. */
static pact_t **earliest_copier(directs_t *directs)
{
    pact_t **found = &directs->copiers;

    for (pact_t **link = &(*found)->next_copier; *link != NULL; link = &(*link)->next_copier) {
        if (slot_message(oldest_of(*link)) < slot_message(oldest_of(*found))) {
            found = link;
        }
    }
    return found;
}

/* Copies from the lane's oldest chunk, about `budget` bytes; returns how many. */
static int64_t copy_chunk(const pact_t *pact, int64_t budget, bool *ended)
{
    xm_executor_t *executor = pact->lane->executor;
    slot_t *slot = oldest_of(pact);
    const hop_t *hop = slot->hop;
    const tensor_t *tensor = &executor->tensors[hop->tensor];
    int64_t first, count, part;

    chunk_range(hop, slot->chunk, &first, &count);
    part = min_of(count - slot->copied, elements_for(budget, tensor->element_size));
    xm_executor_copy(executor, &hop->peer_view, hop->peer_tile, &hop->view, tensor->dst,
                     first + slot->copied, part);
    slot->copied += part;
    ++executor->steps;
    *ended = slot->copied == count;
    if (*ended) {
        xm_transport_count_copy(executor->transport, pact->lane->peer,
                                (size_t)(count * tensor->element_size));
    }
    return part * tensor->element_size;
}

/* Looks at the notice after each slice: what was copied counts only if the sender had not given the
 * run up by then. */
static int64_t direct_move(xm_executor_t *executor, int64_t budget)
{
    directs_t *directs = executor->directs;

    while (directs != NULL && directs->copiers != NULL && budget > 0 && executor->result == XM_OK) {
        pact_t **link = earliest_copier(directs), *pact = *link;
        bool ended;
        xm_status_t status;

        budget -= copy_chunk(pact, budget, &ended);
        status = check_notice(pact);
        if (status < 0) {
            xm_executor_fail(executor, status);
        } else if (ended) {
            *link = pact->next_copier;
            pact->copies = false;
            xm_executor_revisit(pact->lane);
        }
    }
    return budget;
}

static bool direct_busy(const xm_executor_t *executor)
{
    return executor->result == XM_OK && executor->directs != NULL &&
           executor->directs->copiers != NULL;
}

/* What would have been copied next ends here. */
static void direct_cancel(xm_executor_t *executor)
{
    for (pact_t *pact = executor->directs != NULL ? executor->directs->copiers : NULL; pact != NULL;
         pact = pact->next_copier) {
        xm_executor_revisit(pact->lane);
    }
}

/* ---- for people ----------------------------------------------------------------------------- */

static bool direct_describe(const xm_executor_t *executor, char *buffer, size_t size)
{
    const directs_t *directs = executor->directs;

    for (int p = 0; directs != NULL && p < directs->pact_count; ++p) {
        const pact_t *pact = &directs->pacts[p];

        if (pact->offering.busy || pact->answering.busy) {
            (void)snprintf(buffer, size, "waits for rank %d to agree on how chunks %s it go",
                           pact->lane->peer, lane_sends(pact->lane) ? "to" : "from");
            return true;
        }
    }
    for (int64_t i = 0; directs != NULL && i < directs->count; ++i) {
        const direct_t *direct = &directs->directs[i];

        if (direct->copied.busy && !direct->copied.sends) {
            (void)snprintf(buffer, size,
                           "waits for rank %d to copy transfer %" PRId64 " (tensor %.100s)",
                           direct->copied.peer, direct->hop->transfer,
                           xm_plan_tensor_name(executor->plan, direct->hop->tensor));
            return true;
        }
    }
    return false;
}

const carrier_t xm_carrier_direct = {.create = direct_create,
                                     .offer = xm_direct_offer,
                                     .post = direct_post,
                                     .ended = direct_ended,
                                     .finish = direct_finish,
                                     .move = direct_move,
                                     .busy = direct_busy,
                                     .cancel = direct_cancel,
                                     .close = direct_close,
                                     .describe = direct_describe,
                                     .destroy = direct_destroy};
