/**
 * @file tile_buffers.h
 * The memory of one rank in one case: its source tile and its destination tile.
 */
#ifndef RB_TILE_BUFFERS_H
#define RB_TILE_BUFFERS_H

#include "bench/prepared.h"

typedef struct rb_tile_buffers {
    const rb_prepared_t *prepared;
    int rank;
    void *src, *dst; /**< NULL where the rank has no tile */
    uint64_t src_bytes, dst_bytes;
} rb_tile_buffers_t;

xm_status_t rb_tile_buffers_create(const rb_prepared_t *prepared, int rank,
                                   rb_tile_buffers_t *buffers);
/** Fills the source tile and poisons the destination tile (pattern.h). */
void rb_tile_buffers_fill(const rb_tile_buffers_t *buffers, uint64_t salt);
/** Number of wrong bytes in the destination tile. */
uint64_t rb_tile_buffers_check(const rb_tile_buffers_t *buffers, uint64_t salt);
void rb_tile_buffers_clear(rb_tile_buffers_t *buffers);

#endif
