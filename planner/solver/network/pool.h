/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that is taken piece by piece and given back at once: the solver's
 * objects are made of many arrays of one lifetime, and thousands of small ones are made each
 * second. Private to the solver. A pool of zeros is empty.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct ap_pool_chunk ap_pool_chunk_t;

typedef struct ap_pool {
    ap_pool_chunk_t *last;
    size_t wanted; /* bytes of the next chunk, at least */
    bool failed;   /* memory ran out since it was reset; so one test is enough for many pieces */
} ap_pool_t;

/* `bytes` bytes that begin at a cache line, not zeroed; NULL when memory ran out. */
void *ap_pool_take(ap_pool_t *pool, size_t bytes);

void *ap_pool_take_zeros(ap_pool_t *pool, size_t bytes);

/* Takes all pieces back. What is taken next lies in one chunk as large as all were. */
void ap_pool_reset(ap_pool_t *pool);

void ap_pool_close(ap_pool_t *pool);
