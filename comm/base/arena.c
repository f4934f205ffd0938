/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bump allocator. A module of 100,000 instructions makes as many small lists that all live
 * exactly as long as the module; handing them out of chunks saves both the bookkeeping of
 * each and a destructor that walks them. A solver's tables end together as well, and thousands of
 * small ones are made each second.
 *
 * Chunks are never moved, so pointers into them stay valid until the arena is cleared; a reset
 * replaces several chunks by one, so an arena that is used again and again soon never allocates.
 */

#include "comm/base/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Chunks double, so that a small arena stays one, up to a size at which more would be waste. */
enum { LINE = 64, UNIT = 16, SMALL_BYTES = 1024, FIRST_BYTES = 1024, MOST_BYTES = 1 << 24 };
enum { FIRST_ITEMS = 16, FIRST_SLOTS = 64 };

struct xm_arena_chunk {
    xm_arena_chunk_t *next;
    size_t used, size; /* of all bytes, with this header */
};

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* The header takes the first line of a chunk. Small pieces are packed, as lines of their own would
 * double what they take; a piece of several lines begins at one. */
void *xm_arena_take(xm_arena_t *arena, size_t bytes)
{
    xm_arena_chunk_t *chunk = arena->last;
    size_t unit = bytes < SMALL_BYTES ? UNIT : LINE, first;

    if (bytes > SIZE_MAX / 4) {
        arena->failed = true;
        return NULL;
    }
    if (chunk == NULL || chunk->size < round_up(chunk->used, unit) + bytes) {
        size_t room = arena->wanted > FIRST_BYTES ? arena->wanted : FIRST_BYTES;

        room = round_up(room > bytes + LINE ? room : bytes + LINE, LINE);
        chunk = aligned_alloc(LINE, room);
        if (chunk == NULL) {
            arena->failed = true;
            return NULL;
        }
        *chunk = (xm_arena_chunk_t){arena->last, LINE, room};
        arena->last = chunk;
        arena->wanted = 2 * room < MOST_BYTES ? 2 * room : MOST_BYTES;
    }
    first = round_up(chunk->used, unit);
    chunk->used = first + bytes;
    return (char *)chunk + first;
}

void *xm_arena_get(xm_arena_t *arena, size_t count, size_t size)
{
    void *piece =
        xm_arena_take(arena, size != 0 && count > SIZE_MAX / size ? SIZE_MAX : count * size);

    return piece != NULL ? memset(piece, 0, count * size) : NULL;
}

char *xm_arena_text(xm_arena_t *arena, const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = xm_arena_take(arena, size);

    return copy != NULL ? memcpy(copy, text, size) : NULL;
}

void xm_arena_reset(xm_arena_t *arena)
{
    arena->failed = false;
    if (arena->last != NULL && arena->last->next != NULL) {
        size_t all = 0;

        for (const xm_arena_chunk_t *chunk = arena->last; chunk != NULL; chunk = chunk->next) {
            all += chunk->size;
        }
        xm_arena_clear(arena);
        arena->wanted = all;
    } else if (arena->last != NULL) {
        arena->last->used = LINE;
    }
}

void xm_arena_clear(xm_arena_t *arena)
{
    while (arena->last != NULL) {
        xm_arena_chunk_t *next = arena->last->next;

        free(arena->last);
        arena->last = next;
    }
    *arena = (xm_arena_t){0};
}

/* The pointer is copied, because an array of any type may be behind it. */
bool xm_array_reserve(void *array, size_t *room, size_t wanted, size_t size)
{
    size_t larger = 2 * *room > FIRST_ITEMS ? 2 * *room : FIRST_ITEMS;
    void *items;

    if (wanted <= *room) {
        return true;
    }
    larger = wanted > larger ? wanted : larger;
    if (larger > SIZE_MAX / 2 / size) {
        return false;
    }
    memcpy(&items, array, sizeof(items));
    items = realloc(items, larger * size);
    if (items == NULL) {
        return false;
    }
    memcpy(array, &items, sizeof(items));
    *room = larger;
    return true;
}

static void take_slot(xm_index_t *index, struct xm_index_slot entry)
{
    size_t at = (size_t)entry.hash & (index->size - 1);

    while (index->slots[at].number != 0) {
        at = (at + 1) & (index->size - 1);
    }
    index->slots[at] = entry;
    ++index->count;
}

bool xm_index_enter(xm_index_t *index, uint64_t hash, int64_t number)
{
    if (2 * index->count >= index->size) {
        xm_index_t larger = {.size = index->size > 0 ? 2 * index->size : FIRST_SLOTS};

        larger.slots = calloc(larger.size, sizeof(*larger.slots));
        if (larger.slots == NULL) {
            return false;
        }
        for (size_t i = 0; i < index->size; ++i) {
            if (index->slots[i].number != 0) {
                take_slot(&larger, index->slots[i]);
            }
        }
        free(index->slots);
        *index = larger;
    }
    take_slot(index, (struct xm_index_slot){hash, number + 1});
    return true;
}

void xm_index_clear(xm_index_t *index)
{
    free(index->slots);
    *index = (xm_index_t){0};
}

int xm_order_ints(const void *a, const void *b)
{
    return xm_order(*(const int *)a, *(const int *)b);
}

int xm_order_int64s(const void *a, const void *b)
{
    return xm_order(*(const int64_t *)a, *(const int64_t *)b);
}

int xm_order_doubles(const void *a, const void *b)
{
    const double *left = a, *right = b;

    return (*left > *right) - (*left < *right);
}

/* Even counts have the mean of the two middle values as their median. */
double xm_array_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(double), xm_order_doubles);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}
