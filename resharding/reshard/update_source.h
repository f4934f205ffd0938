/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file update_source.h
 * Tiles of an update: mirrors of those on a device; of a source its shadow, and which elements have
 * changed since when. Not installed.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <crossmesh/reshard.h>

#include "comm/base.h"
#include "resharding/delta.h"

/** Sets of bits: of what the commit under way has found, and two of older ones, of each all that
 *  has changed since it was begun. */
enum { XM_SOURCE_SETS = 3 };

typedef struct xm_source {
    const void *src;                /**< its memory, or what stands for that (delta/mirror.h) */
    int64_t elements, element_size; /**< of the tile */
    int64_t found;                  /**< elements that this commit has compared */
    void *shadow;                   /**< NULL where a device has it */
    uint64_t *bits[XM_SOURCE_SETS]; /**< NULL: this rank has no part of the source */
} xm_source_t;

/** Mirrors of a rank's tiles on a device, sources (2 t) and destinations (2 t + 1) of tensor t in
 *  turn, and the buffers in which they stand for them; to be freed, also after a failure. */
xm_status_t xm_update_mirror(const xm_reshard_params_t *params, int rank, xm_mirrors_t **mirrors,
                             xm_tensor_buffers_t **buffers);

/** Says where the tile is, and makes what it lacks: a shadow, unless the tile is @p mirrored, which
 *  the first commit fills. */
xm_status_t xm_source_open(xm_source_t *source, const void *src, size_t bytes, int64_t element_size,
                           bool mirrored);
void xm_source_close(xm_source_t *source);

/** Compares the tile up to that element, or fills the shadow where there is nothing to compare
 *  with. Returns how many have changed. */
uint64_t xm_source_find(xm_source_t *source, bool compares, int64_t end);

/** The older sets get what the newer ones have, which makes each all that has changed since its
 *  version. If this commit fails they have too much, which does no harm. */
void xm_source_gather(xm_source_t *source);

/** The newest set begins anew, and what it had goes to the next; with @p turn all do. */
void xm_source_settle(xm_source_t *source, bool compares, bool turn);
