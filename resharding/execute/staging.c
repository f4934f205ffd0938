/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pack buffers: where chunks that are not contiguous in a tile, or that the transport cannot reach
 * there, are sent from and received into. All have the size of the longest such chunk and lie in
 * one registered piece, so that taking one is popping a stack. The order
 * (resharding/execute/order.c) decides who may take one; execute.h says why the reserve of one per
 * direction cannot block.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "resharding/delta.h"
#include "resharding/execute/carrier/device.h"

enum {
    PEER_LIMIT = 8 * 1024 * 1024, /* bytes of pack buffers per peer and direction */
    LINE = 64                     /* pack buffers start at a cache line */
};

/* The longest chunk of this rank that must be packed, in bytes; 0 when none must be. */
static int64_t longest_packed_chunk(const xm_executor_t *executor)
{
    int64_t longest = 0;

    for (int64_t i = 0; i < executor->hop_count; ++i) {
        const hop_t *hop = &executor->hops[i];
        int64_t count = min_of(hop->chunk, hop->end - hop->first);
        int64_t size = executor->tensors[hop->tensor].element_size;
        int64_t bytes =
            executor->changing != NULL ? (int64_t)xm_encoding_limit(count, size) : count * size;

        if (hop->packs && bytes > longest) {
            longest = bytes;
        }
    }
    return longest;
}

/* Chunks of a lane that may have to be packed. */
static int64_t packed_chunks(const lane_t *lane)
{
    int64_t chunks = 0;

    for (int64_t i = 0; i < lane->item_count; ++i) {
        const hop_t *hop = &lane->executor->hops[lane->items[i]];

        chunks += hop->packs ? hop->chunks : 0;
    }
    return chunks;
}

/* Pack buffers that a lane may hold: one for each slot, and what it brings to be passed on stays in
 * its own for a while. */
static int64_t held_at_once(const lane_t *lane)
{
    int64_t most = lane->slot_count;

    for (int64_t i = 0; i < lane->item_count && !lane_sends(lane); ++i) {
        if (lane->executor->hops[lane->items[i]].forward != NULL) {
            most = xm_forward_depth(lane);
        }
    }
    return min_of(packed_chunks(lane), min_of(most, lane->executor->staging.per_lane));
}

/* Allocates `count` pack buffers, the first `reserved` of them for the directions that pack. */
static xm_status_t allocate_staging(xm_executor_t *executor, int64_t count, const bool *packs)
{
    staging_t *staging = &executor->staging;
    size_t bytes = (size_t)(count * staging->size);
    char *next;

    XM_TRY(xm_device_staging(executor, bytes, &staging->memory));
    staging->free = malloc((size_t)count * sizeof(char *));
    if (staging->memory == NULL) {
        staging->memory = aligned_alloc(LINE, bytes);
    }
    if (staging->free == NULL || staging->memory == NULL) {
        return XM_NO_MEMORY("%" PRId64 " pack buffers of %" PRId64 " bytes", count, staging->size);
    }
    staging->bytes = bytes;
    next = staging->memory;
    for (int side = 0; side < 2; ++side) {
        if (packs[side]) {
            staging->reserve[side] = next;
            next += staging->size;
        }
    }
    /* The stack gives the lowest address first. */
    for (char *last = staging->memory + bytes; last > next; last -= staging->size) {
        staging->free[staging->free_count++] = last - staging->size;
    }
    return xm_transport_memory_register(executor->transport, staging->memory, bytes,
                                        &staging->registration);
}

/*
 * As many buffers as can be in use at once: for each lane what its slots, or the limit per peer,
 * let it hold, and one in reserve per direction. A memory limit leaves fewer, down to the reserve,
 * with which a run still ends, if slowly.
 */
xm_status_t xm_executor_make_staging(xm_executor_t *executor, uint64_t memory_limit)
{
    staging_t *staging = &executor->staging;
    int64_t longest = longest_packed_chunk(executor), wanted = 0, affordable;
    bool packs[2] = {false, false};
    int least;

    if (longest == 0) {
        return XM_OK;
    }
    staging->size = (longest + LINE - 1) / LINE * LINE;
    if (staging->size > PEER_LIMIT) {
        return XM_UNSUPPORTED(
            "rank %d: chunks of %" PRId64
            " bytes that are not contiguous in its buffer, or on a device, exceed the %d bytes of "
            "pack buffers per peer: make the plan with smaller chunks",
            executor->transport->rank, longest, PEER_LIMIT);
    }
    /* What encoding puts before elements does not count, or of chunks of half the limit there would
     * be one instead of two, of which one is filled while the other is under way. */
    staging->per_lane =
        (int)((PEER_LIMIT + (executor->changing != NULL ? PEER_LIMIT / 64 : 0)) / staging->size);
    for (int l = 0; l < executor->lane_count; ++l) {
        const lane_t *lane = &executor->lanes[l];
        int64_t chunks = held_at_once(lane);

        wanted += chunks;
        packs[lane_sends(lane)] = packs[lane_sends(lane)] || chunks > 0;
    }
    least = packs[0] + packs[1];
    wanted += least; /* all lanes are served without the reserve */
    affordable = memory_limit > 0 ? (int64_t)(memory_limit / (uint64_t)staging->size) : wanted;
    if (affordable < least) {
        return XM_INVALID("rank %d: a memory limit of %" PRIu64
                          " bytes is too small: at least %d pack buffer%s of %" PRId64
                          " bytes %s needed, %" PRId64 " in all",
                          executor->transport->rank, memory_limit, least, least > 1 ? "s" : "",
                          staging->size, least > 1 ? "are" : "is", least * staging->size);
    }
    return allocate_staging(executor, min_of(wanted, affordable), packs);
}

uint64_t xm_executor_staging_bytes(const xm_executor_t *executor)
{
    return executor->staging.bytes;
}

void xm_executor_release_staging(xm_executor_t *executor)
{
    staging_t *staging = &executor->staging;

    if (staging->registration != NULL && !executor->gave_up) {
        xm_transport_memory_deregister(executor->transport, staging->registration);
    }
    if (executor->device == NULL) { /* else it is the device's */
        xm_executor_let_go(executor, staging->memory);
    }
    free(staging->free);
}

/* The reserve is taken last: the order gives it to the earliest unfinished chunk alone. */
char *xm_executor_take_pack_buffer(lane_t *lane)
{
    staging_t *staging = &lane->executor->staging;

    ++lane->packed;
    if (staging->free_count > 0) {
        return staging->free[--staging->free_count];
    }
    assert(!staging->reserve_taken[lane_sends(lane)]); /* the order looks after that */
    staging->reserve_taken[lane_sends(lane)] = true;
    return staging->reserve[lane_sends(lane)];
}

void xm_executor_return_pack_buffer(lane_t *lane, char *buffer)
{
    staging_t *staging = &lane->executor->staging;

    --lane->packed;
    if (buffer == staging->reserve[lane_sends(lane)]) {
        staging->reserve_taken[lane_sends(lane)] = false;
    } else {
        staging->free[staging->free_count++] = buffer;
    }
}
