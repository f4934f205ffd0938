/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/frontend/common/arena.h
 * Memory of one model that is being read: handed out piece by piece, freed at once.
 */
#pragma once

#include <stddef.h>

typedef struct arena_chunk arena_chunk_t;

typedef struct arena {
    arena_chunk_t *last;
} arena_t;

/** Zeroed memory for @p count items of @p size bytes, or NULL. Never fails for count 0. */
void *arena_get(arena_t *arena, size_t count, size_t size);

void arena_clear(arena_t *arena);
