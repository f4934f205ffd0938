/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of memory by size. Each has its size in front of it, so that whoever gives it back need
 * not know it. The system gives several small ones at a time; they stay here until the end, because
 * what was in flight once will be again. */
#include "comm/transport/blocks.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>

/* SMALLEST: the exponent of the smallest size. CHUNK: what the system is asked for, at least. */
enum { SMALLEST = 6, CHUNK = 16 * 1024 };

struct xm_block {
    alignas(max_align_t) xm_block_t *next;
    int size; /* its place in `free` */
};

/* Gets more blocks of a size, as many as a chunk holds; without memory there are none then. */
static void add(xm_blocks_t *blocks, int size)
{
    size_t each = sizeof(xm_block_t) + ((size_t)1 << (size + SMALLEST));
    size_t count = CHUNK / each > 0 ? CHUNK / each : 1;
    xm_block_t *chunk = malloc(sizeof(*chunk) + count * each);

    if (chunk == NULL) {
        return;
    }
    chunk->next = blocks->chunks;
    blocks->chunks = chunk;
    for (size_t i = 0; i < count; ++i) {
        xm_block_t *block = (xm_block_t *)(void *)((uint8_t *)(chunk + 1) + i * each);

        *block = (xm_block_t){.next = blocks->free[size], .size = size};
        blocks->free[size] = block;
    }
}

void *xm_blocks_take(xm_blocks_t *blocks, size_t bytes)
{
    xm_block_t *block;
    int size = 0;

    if (bytes > SIZE_MAX / 4) {
        return NULL;
    }
    while (bytes > (size_t)1 << (size + SMALLEST)) {
        ++size;
    }
    if (blocks->free[size] == NULL) {
        add(blocks, size);
    }
    block = blocks->free[size];
    if (block == NULL) {
        return NULL;
    }
    blocks->free[size] = block->next;
    return block + 1;
}

void xm_blocks_give(xm_blocks_t *blocks, void *memory)
{
    if (memory != NULL) {
        xm_block_t *block = (xm_block_t *)memory - 1;

        block->next = blocks->free[block->size];
        blocks->free[block->size] = block;
    }
}

void xm_blocks_clear(xm_blocks_t *blocks)
{
    while (blocks->chunks != NULL) {
        xm_block_t *chunk = blocks->chunks;

        blocks->chunks = chunk->next;
        free(chunk);
    }
    *blocks = (xm_blocks_t){.chunks = NULL};
}
