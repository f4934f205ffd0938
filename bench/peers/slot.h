/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file slot.h
 * One rank's place in one case: the layouts, and its source and destination tiles filled and
 * checked by the pattern of reshard-bench.
 */
#pragma once

#include "bench/cases.h"
#include "resharding/layout.h"

typedef struct rb_peer_slot {
    const rb_case_t *one;
    int rank;
    xm_layout_t *src, *dst;
    xm_box_t src_box, dst_box;              /**< of the tiles; meant only where there is a buffer */
    unsigned char *src_buffer, *dst_buffer; /**< NULL where the rank has no tile, or an empty one */
} rb_peer_slot_t;

/**
 * Lays a case of one tensor out and allocates the rank's tiles. Fails when a tile has an extent
 * beyond an int, in which MPI counts.
 */
xm_status_t rb_peer_slot_create(const rb_case_t *one, const rb_host_map_t *hosts, int rank,
                                rb_peer_slot_t *slot);
/** Fills the source tile and poisons the destination tile. */
void rb_peer_slot_fill(const rb_peer_slot_t *slot, uint64_t salt);
/** Number of wrong bytes in the destination tile. */
uint64_t rb_peer_slot_check(const rb_peer_slot_t *slot, uint64_t salt);
void rb_peer_slot_clear(rb_peer_slot_t *slot);

/** Bytes of the whole tensor. */
uint64_t rb_peer_case_bytes(const rb_case_t *one);
