/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/base/arena.h
 * Memory of what lives equally long: handed out piece by piece, freed at once. All-zero is empty.
 * And arrays that grow, in what order they are sorted, and how their items are found. Internal.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct xm_arena_chunk xm_arena_chunk_t;

typedef struct xm_arena {
    xm_arena_chunk_t *last;
    size_t wanted; /**< bytes of the next chunk, at least */
    bool failed;   /**< memory was short for a piece: one question after several of them */
} xm_arena_t;

/** Zeroed memory for @p count items of @p size bytes, or NULL. Never fails for count 0. */
void *xm_arena_get(xm_arena_t *arena, size_t count, size_t size);

/** So many bytes for any type, not zeroed, or NULL. */
void *xm_arena_take(xm_arena_t *arena, size_t bytes);

/** A copy of a text, or NULL. */
char *xm_arena_text(xm_arena_t *arena, const char *text);

/** Takes all pieces back. What is handed out next lies in one chunk as large as all were. */
void xm_arena_reset(xm_arena_t *arena);

/** Frees all pieces. */
void xm_arena_clear(xm_arena_t *arena);

/**
 * Makes room for @p wanted items of @p size bytes in an array that grows, which @p array points at;
 * *room is what it has room for. It is moved by realloc(), at least twice as large, and what comes
 * in is not zeroed. False: memory is short, and everything is as before.
 */
bool xm_array_reserve(void *array, size_t *room, size_t wanted, size_t size);

/** The same for one more than the @p count items of an array of any type. */
#define XM_ARRAY_ROOM(array, room, count)                                                          \
    xm_array_reserve(&(array), &(room), (size_t)(count) + 1, sizeof(*(array)))

/** -1, 0 or 1: whether @p a comes before @p b, for functions that qsort() is given. */
static inline int xm_order(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

/**
 * Numbers, such as places in an array, by the hash of what they stand for. All-zero is empty.
 *
 * @code
 *     for (size_t step = 0; (n = xm_index_next(&index, hash, &step)) >= 0;) {
 *         if (is_it(&items[n])) { // hashes may be equal by chance
 *             return n;
 *         }
 *     }
 *     items[count] = it;
 *     return xm_index_enter(&index, hash, count) ? count++ : -1;
 * @endcode
 */
typedef struct xm_index {
    struct xm_index_slot {
        uint64_t hash;
        int64_t number; /**< plus one; 0: free */
    } * slots;          /**< private: open addressing over a power of two, at most half full */
    size_t size, count;
} xm_index_t;

/** The next number of @p hash, whose bits are all spread well; −1: no more. */
static inline int64_t xm_index_next(const xm_index_t *index, uint64_t hash, size_t *step)
{
    while (index->size > 0) {
        const struct xm_index_slot *slot = &index->slots[(hash + (*step)++) & (index->size - 1)];

        if (slot->number == 0 || slot->hash == hash) {
            return slot->number - 1;
        }
    }
    return -1;
}

/** Enters a number from 0 on; false: memory is short, and everything is as before. */
bool xm_index_enter(xm_index_t *index, uint64_t hash, int64_t number);

void xm_index_clear(xm_index_t *index);

/** Halves an order from @p low to @p high until @p low, of the @p type of integers, is its first
 * place @p at of which @p before is false, or @p high: of all in front of that it is true.
 * (A name that is declared stands in no parentheses. NOLINTBEGIN(bugprone-macro-parentheses)) */
#define XM_BISECT(type, at, low, high, before)                                                     \
    for (type xm_end = (high), at; (low) < xm_end;) {                                              \
        at = (low) + (xm_end - (low)) / 2;                                                         \
        if (before) {                                                                              \
            (low) = at + 1;                                                                        \
        } else {                                                                                   \
            xm_end = at;                                                                           \
        }                                                                                          \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

/** For all keys but the last in such a function: returns unless @p a and @p b, numbers of any type,
 * are equal. */
#define XM_ORDER_BY(a, b)                                                                          \
    do {                                                                                           \
        if ((a) != (b)) {                                                                          \
            return (a) < (b) ? -1 : 1;                                                             \
        }                                                                                          \
    } while (0)

/** For qsort() of numbers, or of structures that begin with one: the smallest first. */
int xm_order_ints(const void *a, const void *b);
int xm_order_int64s(const void *a, const void *b);
int xm_order_doubles(const void *a, const void *b);

/** Median of @p count values (at least 1), which it sorts. */
double xm_array_median(double *values, int count);
