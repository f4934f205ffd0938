/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/base/arena.h
 * Memory of what lives equally long: handed out piece by piece, freed at once. All-zero is empty.
 * And arrays that grow, and in what order they are sorted. Internal.
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

/** -1, 0 or 1: whether @p a comes before @p b, for functions that qsort() is given. */
static inline int xm_order(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

/** For qsort() of numbers, or of structures that begin with one: the smallest first. */
int xm_order_ints(const void *a, const void *b);
int xm_order_int64s(const void *a, const void *b);
int xm_order_doubles(const void *a, const void *b);

/** Median of @p count values (at least 1), which it sorts. */
double xm_array_median(double *values, int count);
