/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file blocks.h
 * Memory for what a transport has in flight: blocks that are taken and given back again and again,
 * and go to the system when the transport ends. So posting and progress allocate only while more is
 * in flight than ever before. All-zero is empty. Internal.
 */
#pragma once

#include <stddef.h>

/* Sizes are powers of two from 2^6 on. */
enum { XM_BLOCKS_SIZES = 58 };

typedef struct xm_block xm_block_t;

typedef struct xm_blocks {
    xm_block_t *free[XM_BLOCKS_SIZES];
    xm_block_t *chunks; /**< what the system gave */
} xm_blocks_t;

/** So many bytes for any type, not zeroed; NULL when there is no memory. */
void *xm_blocks_take(xm_blocks_t *blocks, size_t bytes);

/** NULL is accepted. */
void xm_blocks_give(xm_blocks_t *blocks, void *memory);

/** Frees all, also what was not given back. */
void xm_blocks_clear(xm_blocks_t *blocks);
