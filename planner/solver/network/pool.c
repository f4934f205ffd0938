/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bump allocator. Chunks are never moved, so pieces stay valid while the pool grows; a reset
 * replaces several chunks by one, so a pool that is used again and again soon never allocates.
 */

#include "planner/solver/network/pool.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 64, FIRST_BYTES = 1 << 16 };

struct ap_pool_chunk {
    ap_pool_chunk_t *next;
    size_t used, size; /* of all bytes, with this header */
};

static size_t whole_lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

/* The header takes the first line of a chunk, so all pieces begin at a line. */
void *ap_pool_take(ap_pool_t *pool, size_t bytes)
{
    ap_pool_chunk_t *chunk = pool->last;
    size_t needed;

    if (bytes > SIZE_MAX / 4) {
        pool->failed = true;
        return NULL;
    }
    needed = whole_lines(bytes);
    if (chunk == NULL || chunk->size - chunk->used < needed) {
        size_t room = pool->wanted > FIRST_BYTES ? pool->wanted : FIRST_BYTES;

        room = whole_lines(room > needed + LINE ? room : needed + LINE);
        chunk = aligned_alloc(LINE, room);
        if (chunk == NULL) {
            pool->failed = true;
            return NULL;
        }
        *chunk = (ap_pool_chunk_t){pool->last, LINE, room};
        pool->last = chunk;
        pool->wanted = 2 * room;
    }
    chunk->used += needed;
    return (char *)chunk + chunk->used - needed;
}

void *ap_pool_take_zeros(ap_pool_t *pool, size_t bytes)
{
    void *piece = ap_pool_take(pool, bytes);

    return piece != NULL ? memset(piece, 0, bytes) : NULL;
}

void ap_pool_reset(ap_pool_t *pool)
{
    pool->failed = false;
    if (pool->last != NULL && pool->last->next != NULL) {
        size_t all = 0;

        for (const ap_pool_chunk_t *chunk = pool->last; chunk != NULL; chunk = chunk->next) {
            all += chunk->size;
        }
        ap_pool_close(pool);
        pool->wanted = all;
    } else if (pool->last != NULL) {
        pool->last->used = LINE;
    }
}

void ap_pool_close(ap_pool_t *pool)
{
    while (pool->last != NULL) {
        ap_pool_chunk_t *next = pool->last->next;

        free(pool->last);
        pool->last = next;
    }
}
