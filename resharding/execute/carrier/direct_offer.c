/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which hops go directly in a run (resharding/execute/carrier/direct.c has the picture). The sender
 * of a lane offers the keys of the tiles that its hops read, the receiver maps them and answers
 * which it will copy from. An offer of nothing needs no answer. All this anew in each run, because
 * a run may have failed at one end alone; what was offered before costs one comparison.
 *
 * A pact has no state but its two signals in flight: an end settles the lane when it knows the
 * answer, the receiver because it gives it and the sender because it gets it.
 */
#include <string.h>

#include "comm/base.h"
#include "resharding/execute/carrier/direct.h"

static bool is_allowed(void)
{
    return strcmp(xm_config_string(XM_CONFIG_DIRECT_COPY), "on") == 0;
}

static unsigned char *tile_offer(const pact_t *pact, int64_t tile)
{
    return pact->offer + OFFER_HEADER + OFFER_TILE * tile;
}

/* Writes down which of this rank's tiles the lane's receiver may map; returns how many. */
static uint64_t write_offer(const pact_t *pact)
{
    uint64_t offered = 0;

    for (int64_t i = 0; i < pact->tile_count; ++i) {
        const tensor_t *tensor = &pact->lane->executor->tensors[pact->tiles[i].tensor];
        unsigned char *place = tile_offer(pact, i);
        uint64_t offset;

        if (xm_shared_memory_find(
                pact->tiles[i].is_dst ? tensor->dst : tensor->src,
                xm_executor_tile_bytes(pact->lane, pact->tiles[i].tensor, pact->tiles[i].is_dst),
                place + 8, &offset)) {
            xm_put_le(place, offset, 8);
            ++offered;
        }
    }
    xm_put_le(pact->offer, offered, 8);
    return offered;
}

/* Without a place for its notice a rank can offer nothing. */
void xm_direct_write_offers(xm_executor_t *executor)
{
    directs_t *directs = executor->directs;
    bool any = false;
    xm_status_t status;

    for (int p = 0; p < directs->pact_count; ++p) {
        pact_t *pact = &directs->pacts[p];

        pact->offers = lane_sends(pact->lane) && is_allowed() && write_offer(pact) > 0;
        any = any || pact->offers;
    }
    status = any ? xm_shared_memory_create(sizeof(notice_t), &directs->notice) : XM_OK;
    if (status < 0) {
        xm_log_debug("rank %d shares no tiles: %s", executor->transport->rank, xm_last_error());
    }
    for (int p = 0; p < directs->pact_count; ++p) {
        pact_t *pact = &directs->pacts[p];

        if (pact->offers && status == XM_OK) {
            xm_shared_memory_key(directs->notice, pact->offer + 8);
        } else if (pact->offers) {
            pact->offers = false;
            xm_put_le(pact->offer, 0, 8);
        }
    }
}

static void settle(const pact_t *pact, bool agreed)
{
    const xm_executor_t *executor = pact->lane->executor;

    for (int64_t i = 0; agreed && i < pact->direct_count; ++i) {
        const direct_t *direct = &pact->directs[i];

        if (pact->answer[direct->tile] == 1) {
            direct->hop->carrier = executor->carriers[CARRIER_DIRECT];
            direct->hop->peer_tile = pact->tiles[direct->tile].from;
        }
    }
    xm_executor_settled(pact->lane);
}

static void on_answer(signal_t *signal)
{
    if (signal->executor->result == XM_OK) {
        settle(signal->owner, true);
    }
}

static void detach_all(pact_t *pact)
{
    while (pact->view_count > 0) {
        xm_shared_memory_detach(&pact->views[--pact->view_count]);
    }
}

/* Maps what a key names, unless an earlier tile of the offer lies in the same memory. */
static const xm_shared_view_t *map_tile(pact_t *pact, int64_t tile)
{
    const unsigned char *key = tile_offer(pact, tile) + 8;
    xm_shared_view_t *view = &pact->views[pact->view_count];

    for (int64_t i = 0; i < tile; ++i) {
        if (pact->answer[i] == 1 &&
            memcmp(tile_offer(pact, i) + 8, key, XM_SHARED_MEMORY_KEY_SIZE) == 0) {
            return &pact->views[pact->tiles[i].view];
        }
    }
    if (xm_shared_memory_attach(key, view) < 0) {
        xm_log_debug("rank %d does not copy directly from rank %d: %s",
                     pact->lane->executor->transport->rank, pact->lane->peer, xm_last_error());
        return NULL;
    }
    ++pact->view_count;
    return view;
}

static void take_tile(pact_t *pact, int64_t index)
{
    static const unsigned char nothing[XM_SHARED_MEMORY_KEY_SIZE];
    const unsigned char *place = tile_offer(pact, index);
    direct_tile_t *tile = &pact->tiles[index];
    uint64_t offset = xm_get_le(place, 8),
             bytes = xm_executor_tile_bytes(pact->lane, tile->tensor, tile->is_dst);
    const xm_shared_view_t *view;

    if (memcmp(place + 8, nothing, sizeof(nothing)) == 0 ||
        pact->lane->executor->tensors[tile->tensor].dst_on_device) {
        return; /* nothing was offered, or a device is to take it */
    }
    view = map_tile(pact, index);
    if (view != NULL && offset <= view->length && bytes <= view->length - offset) {
        tile->from = (const char *)view->address + offset;
        tile->view = view - pact->views;
        pact->answer[index] = 1;
    }
}

/* Maps what has been offered and writes the answer. */
static void take_offer(pact_t *pact)
{
    if (memcmp(pact->known, pact->offer, offer_bytes(pact)) == 0) {
        return; /* as in the last run */
    }
    memset(pact->answer, 0, (size_t)pact->tile_count);
    detach_all(pact);
    memcpy(pact->known, pact->offer, offer_bytes(pact));
    if (!is_allowed()) {
        return;
    }
    if (xm_shared_memory_attach(pact->offer + 8, &pact->views[0]) < 0) {
        xm_log_debug("rank %d does not copy directly from rank %d: %s",
                     pact->lane->executor->transport->rank, pact->lane->peer, xm_last_error());
        return;
    }
    pact->view_count = 1;
    for (int64_t i = 0; i < pact->tile_count && pact->views[0].length >= sizeof(notice_t); ++i) {
        take_tile(pact, i);
    }
}

static void on_offer(signal_t *signal);

/* Starts sending or receiving the offer or the answer. */
static void post(pact_t *pact, signal_t *signal, bool sends, uint64_t number, void *bytes,
                 size_t length)
{
    signal->owner = pact;
    signal->peer = pact->lane->peer;
    signal->sends = sends;
    signal->ended = sends ? NULL : number == NUMBER_OFFER ? on_offer : on_answer;
    xm_signal_post(pact->lane->executor, signal, XM_DIRECT_BIT | number, bytes, length);
}

static void post_answer(pact_t *pact, bool sends)
{
    post(pact, &pact->answering, sends, NUMBER_ANSWER, pact->answer, (size_t)pact->tile_count);
}

static void on_offer(signal_t *signal)
{
    pact_t *pact = signal->owner;
    bool offered = xm_get_le(pact->offer, 8) > 0;

    if (signal->executor->result < 0) {
        return;
    }
    if (offered) {
        take_offer(pact);
        post_answer(pact, true);
    }
    settle(pact, offered);
}

void xm_direct_offer(xm_executor_t *executor)
{
    directs_t *directs = executor->directs;

    for (int p = 0; directs != NULL && p < directs->pact_count; ++p) {
        pact_t *pact = &directs->pacts[p];
        bool sends = lane_sends(pact->lane);

        pact->copies = false;
        if (executor->result < 0) {
            continue;
        }
        ++pact->lane->unsettled;
        post(pact, &pact->offering, sends, NUMBER_OFFER, pact->offer, offer_bytes(pact));
        if (sends && !pact->offers) {
            settle(pact, false);
        } else if (sends && executor->result == XM_OK) {
            post_answer(pact, false);
        }
    }
    if (directs != NULL) {
        directs->copiers = NULL;
    }
}
