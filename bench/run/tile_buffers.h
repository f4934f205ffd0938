/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tile_buffers.h
 * The memory of one rank in one case: its source tiles in one allocation and its destination tiles
 * in another, each tensor at a multiple of 64 bytes. Ranks that are processes have them in shared
 * memory (comm/memory/shared_memory.h), where the system lets them. The tensors of a model's packed
 * parameter follow each other without a gap, as a serving engine has them.
 */
#pragma once

#include "bench/cases.h"
#include "comm/memory.h"
#include "resharding/execute.h"

typedef struct rb_tile_buffers {
    const xm_plan_t *plan;
    int rank;
    unsigned char *src, *dst; /**< the allocations; NULL where the rank has no tile */
    xm_shared_memory_t *src_shared, *dst_shared; /**< what holds them; NULL: malloc's memory */
    unsigned char **expected;     /**< by tensor, with rb_tile_buffers_expect(); else NULL */
    xm_tensor_buffers_t *tensors; /**< by tensor of the plan, for the executor */
} rb_tile_buffers_t;

xm_status_t rb_tile_buffers_create(const rb_prepared_t *prepared, int rank, bool shared,
                                   rb_tile_buffers_t *buffers);
/** Fills the source tiles and poisons the destination tiles (pattern.h). */
void rb_tile_buffers_fill(const rb_tile_buffers_t *buffers, uint64_t salt);
/** Changes elements of the source tiles (rb_pattern_change()), and the same in what the destination
 * tiles should be, which then is what they are compared with. @p again: poisons these elements in
 * the destination tiles instead, as they have been brought there already. */
void rb_tile_buffers_change(const rb_tile_buffers_t *buffers, uint64_t salt, rb_changes_t pattern,
                            double share, bool again);
/** What the destination tiles should be: that of rb_tile_buffers_fill(). */
xm_status_t rb_tile_buffers_expect(rb_tile_buffers_t *buffers, uint64_t salt);
/** Number of bytes in the destination tiles that are not what they should be. */
uint64_t rb_tile_buffers_differ(const rb_tile_buffers_t *buffers);
/** Number of wrong bytes in the destination tiles. */
uint64_t rb_tile_buffers_check(const rb_tile_buffers_t *buffers, uint64_t salt);
void rb_tile_buffers_clear(rb_tile_buffers_t *buffers);
