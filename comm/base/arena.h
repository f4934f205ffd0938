/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/base/arena.h
 * Memory of what lives equally long: handed out piece by piece, freed at once. All-zero is empty.
 * Internal.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct xm_arena_chunk xm_arena_chunk_t;

typedef struct xm_arena {
    xm_arena_chunk_t *last;
    bool failed; /**< memory was short for a piece: one question after several of them */
} xm_arena_t;

/** Zeroed memory for @p count items of @p size bytes, or NULL. Never fails for count 0. */
void *xm_arena_get(xm_arena_t *arena, size_t count, size_t size);

/** Frees all pieces. */
void xm_arena_clear(xm_arena_t *arena);
