/*
 * Direct hops: a rank copies what a neighbour on its host sends straight out of the neighbour's
 * tile, where that is in shared memory (comm/shared_memory.h). One copy instead of the kernel's
 * (cma), which takes every page through its tables, or of two through a queue; and strided boxes
 * need no packing at either end.
 *
 * Per run and lane, the ends make a pact: the sender offers the keys of the tiles that its hops
 * read, the receiver maps them and answers which it will copy from. An offer of nothing needs no
 * answer. All this anew in each run, because a run may have failed at one end alone; what was
 * offered before costs one comparison. Then every chunk is announced by a message of one byte and
 * copied by the receiver, and when all of a hop has been copied the receiver says so, which ends it
 * at the sender: its buffer may change then.
 *
 * A sender whose run fails may let its buffer change before that. It leaves a notice in a page that
 * its neighbours have mapped too, before the run ends; they look at it after each copy and fail.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "resharding/execute_direct.h"

/*
 * Hops of fewer bytes than the first always travel as messages: one with the data is quicker than
 * those about them. So do all hops of a lane that would carry fewer than the second directly: a
 * pact and the last hop's end take two exchanges between ranks that may sleep. Measured between two
 * ranks (us, least of 100 runs): 0.25 MiB 16 by UCX and 38 directly, 1 MiB 74 and 98, 8 MiB 802 and
 * 596; from one to four 1 MiB 667 and 367.
 */
enum { HOP_LEAST = 64 * 1024, LANE_LEAST = 1024 * 1024 };

/* ---- creation ------------------------------------------------------------------------------- */

static int64_t hop_bytes(const xm_executor_t *executor, const hop_t *hop)
{
    return (hop->end - hop->first) * executor->tensors[hop->tensor].element_size;
}

/* Hops of the lane that may go directly. Both ends count alike. */
static int64_t count_directs(const lane_t *lane)
{
    const xm_executor_t *executor = lane->executor;
    int64_t count = 0, bytes = 0;

    if (xm_plan_host_of(executor->plan, executor->transport->rank) !=
        xm_plan_host_of(executor->plan, lane->peer)) {
        return 0;
    }
    for (int64_t i = 0; i < lane->item_count; ++i) {
        int64_t own = hop_bytes(executor, &executor->hops[lane->items[i]]);

        if (own >= HOP_LEAST) {
            bytes += own;
            ++count;
        }
    }
    return bytes >= LANE_LEAST ? count : 0;
}

/* Whether the sender of a hop has what it sends in its destination tile, as a relay. */
static bool reads_dst(const xm_executor_t *executor, const hop_t *hop)
{
    int64_t count;
    const xm_transfer_t *transfer = &xm_plan_transfers(executor->plan, &count)[hop->transfer];
    int place = (int)(hop->number - xm_plan_first_hop(executor->plan, hop->transfer));

    return transfer->parent >= 0 ||
           xm_plan_route(executor->plan, transfer->route)->parents[place] >= 0;
}

static void init_direct(xm_executor_t *executor, lane_t *lane, hop_t *hop, direct_t *direct,
                        bool is_dst)
{
    int64_t count;
    const xm_transfer_t *transfer = &xm_plan_transfers(executor->plan, &count)[hop->transfer];

    *direct = (direct_t){.hop = hop, .lane = lane};
    direct->number = NUMBER_COPIED + (uint32_t)(direct - lane->pact->directs);
    hop->direct = direct;
    if (is_dst) {
        xm_executor_destination_view(executor, transfer, &direct->view);
    } else {
        xm_executor_source_view(executor, transfer, &direct->view);
    }
}

/* Lists the lane's direct hops, and the tiles they read. `index_of` is −1 for every tensor and side
 * before and after. */
static void fill_pact(pact_t *pact, int64_t *index_of)
{
    lane_t *lane = pact->lane;
    xm_executor_t *executor = lane->executor;

    for (int64_t i = 0; i < lane->item_count; ++i) {
        hop_t *hop = &executor->hops[lane->items[i]];
        direct_t *direct = &pact->directs[pact->direct_count];
        bool is_dst;
        int64_t *index;

        if (hop_bytes(executor, hop) < HOP_LEAST) {
            continue;
        }
        is_dst = reads_dst(executor, hop);
        index = &index_of[2 * hop->tensor + is_dst];
        if (*index < 0) {
            *index = pact->tile_count;
            pact->tiles[pact->tile_count++] =
                (direct_tile_t){.tensor = hop->tensor, .is_dst = is_dst};
        }
        init_direct(executor, lane, hop, direct, is_dst);
        direct->tile = *index;
        ++pact->direct_count;
    }
    for (int64_t i = 0; i < pact->tile_count; ++i) {
        index_of[2 * pact->tiles[i].tensor + pact->tiles[i].is_dst] = -1;
    }
}

static xm_status_t no_memory(const xm_executor_t *executor)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the %" PRId64 " direct hops of rank %d",
                        executor->direct_count, executor->transport->rank);
}

/* Gives every pact its share of the arrays: at most a tile for each direct hop. */
static xm_status_t list_pacts(xm_executor_t *executor)
{
    size_t sides = 2 * (size_t)executor->tensor_count;
    int64_t *index_of = malloc(sides * sizeof(*index_of)), next = 0;
    pact_t *pact = executor->pacts;

    if (index_of == NULL) {
        return no_memory(executor);
    }
    memset(index_of, -1, sides * sizeof(*index_of));
    for (int l = 0; l < executor->lane_count; ++l) {
        lane_t *lane = &executor->lanes[l];

        if (count_directs(lane) == 0) {
            continue;
        }
        *pact = (pact_t){.lane = lane,
                         .directs = executor->directs + next,
                         .tiles = executor->direct_tiles + next};
        lane->pact = pact;
        fill_pact(pact++, index_of);
        next += lane->pact->direct_count;
    }
    free(index_of);
    return XM_OK;
}

/* Makes room for the messages, and for what the tiles of others are mapped by. */
static xm_status_t make_room(xm_executor_t *executor)
{
    size_t bytes = 0, views = 0;
    unsigned char *next;
    xm_shared_view_t *view;

    for (int p = 0; p < executor->pact_count; ++p) {
        const pact_t *pact = &executor->pacts[p];

        bytes += 2 * offer_bytes(pact) + (size_t)pact->tile_count;
        views += 1 + (size_t)pact->tile_count;
    }
    executor->pact_bytes = next = calloc(bytes, 1);
    executor->views = view = calloc(views, sizeof(*view));
    if (next == NULL || view == NULL) {
        return no_memory(executor);
    }
    for (int p = 0; p < executor->pact_count; ++p) {
        pact_t *pact = &executor->pacts[p];

        pact->offer = next;
        pact->known = pact->offer + offer_bytes(pact);
        pact->answer = pact->known + offer_bytes(pact);
        next = pact->answer + pact->tile_count;
        pact->views = view;
        view += 1 + pact->tile_count;
    }
    return XM_OK;
}

xm_status_t xm_executor_list_directs(xm_executor_t *executor)
{
    xm_status_t status;

    if (!executor->transport->real_hosts || executor->no_copy) {
        return XM_OK;
    }
    for (int l = 0; l < executor->lane_count; ++l) {
        int64_t count = count_directs(&executor->lanes[l]);

        executor->direct_count += count;
        executor->pact_count += count > 0;
    }
    if (executor->direct_count == 0) {
        return XM_OK;
    }
    executor->directs = calloc((size_t)executor->direct_count, sizeof(*executor->directs));
    executor->direct_tiles =
        calloc((size_t)executor->direct_count, sizeof(*executor->direct_tiles));
    executor->pacts = calloc((size_t)executor->pact_count, sizeof(*executor->pacts));
    if (executor->directs == NULL || executor->direct_tiles == NULL || executor->pacts == NULL) {
        executor->pact_count = 0;
        return no_memory(executor);
    }
    status = list_pacts(executor);
    if (status == XM_OK) {
        status = make_room(executor);
    }
    if (status < 0) {
        executor->pact_count = 0; /* not yet fit to be walked */
        return status;
    }
    xm_executor_write_offers(executor);
    return XM_OK;
}

void xm_executor_free_directs(xm_executor_t *executor)
{
    for (int p = 0; p < executor->pact_count; ++p) {
        pact_t *pact = &executor->pacts[p];

        for (int64_t v = 0; v < pact->view_count; ++v) {
            xm_shared_memory_detach(&pact->views[v]);
        }
    }
    if (executor->gave_up) {
        xm_keep_for_ever(executor->pact_bytes);
        xm_keep_for_ever(executor->directs); /* each has the byte of a message */
    } else {
        free(executor->pact_bytes);
        free(executor->directs);
    }
    xm_shared_memory_destroy(executor->notice);
    free(executor->views);
    free(executor->pacts);
    free(executor->direct_tiles);
}

/* ---- the notice ----------------------------------------------------------------------------- */

void xm_executor_give_notice(xm_executor_t *executor)
{
    notice_t *notice;

    if (executor->notice == NULL) {
        return;
    }
    notice = xm_shared_memory_address(executor->notice);
    atomic_store(&notice->given_up, executor->runs);
    /* Whatever the user writes into his buffers after this run is seen after the notice. */
    atomic_thread_fence(memory_order_seq_cst);
}

xm_status_t xm_executor_check_notice(const lane_t *lane)
{
    const xm_executor_t *executor = lane->executor;
    const notice_t *notice = lane->pact->views[0].address;

    /* What has been copied was read before the notice is. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load(&notice->given_up) >= executor->runs) {
        return xm_error_set(XM_ERR_UNREACHABLE,
                            "rank %d gave the run up while rank %d copied from its memory",
                            lane->peer, executor->transport->rank);
    }
    return XM_OK;
}

/* ---- messages ------------------------------------------------------------------------------- */

void xm_direct_post(const lane_t *lane, bool send, uint32_t number, void *buffer, size_t length,
                    xm_op_t *op)
{
    xm_executor_t *executor = lane->executor;
    uint64_t tag = xm_executor_tag(executor) | XM_DIRECT_BIT | number;
    xm_status_t status;

    ++executor->signals;
    status =
        send ? xm_transport_send(executor->transport, lane->peer, tag, buffer, length, NULL, op)
             : xm_transport_receive(executor->transport, lane->peer, tag, buffer, length, NULL, op);
    if (status != XM_IN_PROGRESS) {
        op->done(op, status);
    }
}

/* The receiver has said that it copied a hop, or that has been sent. */
static void copied_done(xm_op_t *op, xm_status_t status)
{
    direct_t *direct = op->arg;
    lane_t *lane = direct->lane;

    direct->busy = false;
    --lane->executor->signals;
    ++lane->executor->steps;
    if (status < 0) {
        xm_executor_fail(lane->executor, status);
    } else if (lane_sends(lane)) {
        direct->next = lane->copied;
        lane->copied = direct;
        xm_executor_list_ended(lane);
    }
}

void xm_executor_finish_direct(xm_executor_t *executor, hop_t *hop)
{
    direct_t *direct = hop->direct;
    const lane_t *lane = &executor->lanes[hop->lane];

    direct->op.done = copied_done;
    direct->op.arg = direct;
    direct->busy = true;
    xm_direct_post(lane, !lane_sends(lane), direct->number, &direct->byte, 1, &direct->op);
}

/* ---- the end of what will not end ----------------------------------------------------------- */

void xm_executor_cancel_directs(xm_executor_t *executor)
{
    for (int p = 0; executor->signals > 0 && p < executor->pact_count; ++p) {
        pact_t *pact = &executor->pacts[p];

        if (pact->offer_busy) {
            xm_transport_cancel(executor->transport, &pact->offer_op);
        }
        if (pact->answer_busy) {
            xm_transport_cancel(executor->transport, &pact->answer_op);
        }
    }
    for (int64_t i = 0; executor->signals > 0 && i < executor->direct_count; ++i) {
        if (executor->directs[i].busy) {
            xm_transport_cancel(executor->transport, &executor->directs[i].op);
        }
    }
}

void xm_executor_give_up_directs(xm_executor_t *executor)
{
    for (int p = 0; executor->signals > 0 && p < executor->pact_count; ++p) {
        if (executor->pacts[p].offer_busy || executor->pacts[p].answer_busy) {
            xm_transport_peer_failed(executor->transport, executor->pacts[p].lane->peer);
        }
    }
    for (int64_t i = 0; executor->signals > 0 && i < executor->direct_count; ++i) {
        if (executor->directs[i].busy) {
            xm_transport_peer_failed(executor->transport, executor->directs[i].lane->peer);
        }
    }
}

bool xm_executor_describe_directs(const xm_executor_t *executor, char *buffer, size_t size)
{
    for (int p = 0; p < executor->pact_count; ++p) {
        const pact_t *pact = &executor->pacts[p];

        if (pact->offer_busy || pact->answer_busy) {
            (void)snprintf(buffer, size, "waits for rank %d to agree on how chunks %s it go",
                           pact->lane->peer, lane_sends(pact->lane) ? "to" : "from");
            return true;
        }
    }
    for (int64_t i = 0; i < executor->direct_count; ++i) {
        const direct_t *direct = &executor->directs[i];

        if (direct->busy && lane_sends(direct->lane)) {
            (void)snprintf(buffer, size,
                           "waits for rank %d to copy transfer %" PRId64 " (tensor %.100s)",
                           direct->lane->peer, direct->hop->transfer,
                           xm_plan_tensor_name(executor->plan, direct->hop->tensor));
            return true;
        }
    }
    return false;
}
