/**
 * @file planner/frontend/common/arena.h
 * Memory of one HLO module: handed out piece by piece, freed at once.
 */
#ifndef AP_PLANNER_FRONTEND_COMMON_ARENA_H
#define AP_PLANNER_FRONTEND_COMMON_ARENA_H

#include <stddef.h>

typedef struct hlo_chunk hlo_chunk_t;

typedef struct hlo_arena {
    hlo_chunk_t *last;
} hlo_arena_t;

/** Zeroed memory for @p count items of @p size bytes, or NULL. Never fails for count 0. */
void *hlo_arena_get(hlo_arena_t *arena, size_t count, size_t size);

void hlo_arena_clear(hlo_arena_t *arena);

#endif
