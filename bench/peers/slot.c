/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's tiles of one case, filled and checked as in reshard-bench, with the same
 * layouts and pattern.
 */
#include "bench/peers/slot.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

#include "bench/run.h"
#include "bench/cases.h"

enum { ALIGNMENT = 64 };

/* The tile's box is kept beside its buffer, as types and pattern need both. */
static xm_status_t allocate(const rb_peer_slot_t *slot, const char *side, const xm_layout_t *layout,
                            xm_box_t *box, unsigned char **buffer)
{
    uint64_t bytes = xm_layout_buffer_bytes(layout, slot->rank, slot->one->element_size);

    if (bytes == 0) {
        return XM_OK;
    }
    xm_layout_tile_box(layout, xm_layout_tile_of_rank(layout, slot->rank), box);
    /* The limit is checked here once, so that types can be made without looking. */
    for (int d = 0; d < box->dims; ++d) {
        if (box->hi[d] - box->lo[d] > INT_MAX) {
            return XM_UNSUPPORTED("dimension %d of a %s tile has %" PRId64
                                  " elements, but an MPI subarray has at most %d",
                                  d, side, box->hi[d] - box->lo[d], INT_MAX);
        }
    }
    *buffer = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    return *buffer != NULL
               ? XM_OK
               : xm_error_set(XM_ERR_NO_MEMORY,
                              "rank %d has no memory for its %s tile of %" PRIu64 " bytes",
                              slot->rank, side, bytes);
}

/* A rank without a tile has a NULL buffer and takes part in collectives all the same. */
xm_status_t rb_peer_slot_create(const rb_case_t *one, const rb_host_map_t *hosts, int rank,
                                rb_peer_slot_t *slot)
{
    rb_peer_slot_t made = {.one = one, .rank = rank};
    bool shared;
    xm_status_t status;

    status = rb_lay_out(one, hosts, &made.src, &made.dst, &shared);
    XM_THEN(status, allocate(&made, "source", made.src, &made.src_box, &made.src_buffer));
    XM_THEN(status, allocate(&made, "destination", made.dst, &made.dst_box, &made.dst_buffer));
    if (status < 0) {
        rb_peer_slot_clear(&made);
        return status;
    }
    *slot = made;
    return XM_OK;
}

void rb_peer_slot_fill(const rb_peer_slot_t *slot, uint64_t salt)
{
    const rb_case_t *one = slot->one;

    if (slot->src_buffer != NULL) {
        rb_pattern_fill(slot->src_buffer, &slot->src_box, one->shape, one->element_size, salt);
    }
    if (slot->dst_buffer != NULL) {
        rb_pattern_poison(slot->dst_buffer, &slot->dst_box, one->shape, one->element_size, salt);
    }
}

uint64_t rb_peer_slot_check(const rb_peer_slot_t *slot, uint64_t salt)
{
    const rb_case_t *one = slot->one;

    return slot->dst_buffer != NULL ? rb_pattern_check(slot->dst_buffer, &slot->dst_box, one->shape,
                                                       one->element_size, salt)
                                    : 0;
}

void rb_peer_slot_clear(rb_peer_slot_t *slot)
{
    free(slot->dst_buffer);
    free(slot->src_buffer);
    xm_layout_destroy(slot->dst);
    xm_layout_destroy(slot->src);
    *slot = (rb_peer_slot_t){0};
}

/* The bytes of the whole tensor, as reported for every peer. */
uint64_t rb_peer_case_bytes(const rb_case_t *one)
{
    uint64_t bytes = (uint64_t)one->element_size;

    for (int d = 0; d < one->dims; ++d) {
        bytes *= (uint64_t)one->shape[d];
    }
    return bytes;
}
