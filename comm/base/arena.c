/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bump allocator. A module of 100,000 instructions makes as many small lists that all live
 * exactly as long as the module; handing them out of chunks saves both the bookkeeping of
 * each and a destructor that walks them. A solver's tables end together as well.
 *
 * Chunks are never moved, so pointers into them stay valid until the arena is cleared.
 */

#include "comm/base/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>

/* Chunks double, so that a small arena stays one. */
enum { FIRST_CHUNK_BYTES = 1 << 10, CHUNK_BYTES = 1 << 16 };

struct xm_arena_chunk {
    xm_arena_chunk_t *next;
    size_t used, size;
    alignas(max_align_t) unsigned char bytes[];
};

/* The test keeps `bytes` and the chunk's header from overflowing. Chunks are zeroed when they are
 * made and pieces are never returned, so every piece is zeroed. What is left of a chunk that is too
 * full is wasted. */
void *xm_arena_get(xm_arena_t *arena, size_t count, size_t size)
{
    const size_t unit = alignof(max_align_t);
    xm_arena_chunk_t *chunk = arena->last;
    size_t bytes;

    if (size != 0 && count > (SIZE_MAX - sizeof(*chunk)) / 2 / size) {
        arena->failed = true;
        return NULL;
    }
    bytes = (count * size + unit - 1) / unit * unit;
    bytes = bytes == 0 ? unit : bytes;
    if (chunk == NULL || chunk->size - chunk->used < bytes) {
        size_t room = chunk == NULL                    ? FIRST_CHUNK_BYTES
                      : chunk->size >= CHUNK_BYTES / 2 ? CHUNK_BYTES
                                                       : 2 * chunk->size;

        room = bytes > room ? bytes : room;
        chunk = calloc(1, sizeof(*chunk) + room);
        if (chunk == NULL) {
            arena->failed = true;
            return NULL;
        }
        chunk->size = room;
        chunk->next = arena->last;
        arena->last = chunk;
    }
    chunk->used += bytes;
    return chunk->bytes + chunk->used - bytes;
}

void xm_arena_clear(xm_arena_t *arena)
{
    while (arena->last != NULL) {
        xm_arena_chunk_t *next = arena->last->next;

        free(arena->last);
        arena->last = next;
    }
    arena->failed = false;
}
