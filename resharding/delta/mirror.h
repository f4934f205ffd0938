/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file mirror.h
 * Tiles on a CUDA device, each with a mirror in host memory that stands for it: what has changed on
 * the device is found there, and comes to the mirror; what has changed in the mirror is written on
 * the device. The bus carries that, and a bit for each element. Not installed.
 *
 * Tiles are numbered by the caller. One in host memory is its own mirror. All calls wait until the
 * device is done.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"

typedef struct xm_mirrors xm_mirrors_t;

typedef struct xm_mirrored {
    const void *tile; /**< NULL: this rank has none of that number */
    size_t bytes;
    int64_t element_size;
    bool finds; /**< changes are looked for, which takes as much memory on the device */
} xm_mirrored_t;

/** Mirrors, empty at first, for those of the tiles that lie on a device, which is the same for all.
 *  XM_ERR_UNSUPPORTED: there are no kernels for it. */
xm_status_t xm_mirrors_create(const xm_mirrored_t *tiles, int count, xm_mirrors_t **mirrors);

bool xm_mirrors_has(const xm_mirrors_t *mirrors, int tile);

/** What stands for a tile in host memory. */
void *xm_mirrors_of(const xm_mirrors_t *mirrors, int tile);

/** As xm_changes_find(), with the shadow that the device has: what differs comes to the mirror.
 *  Not @p compares: all of the tile does. */
xm_status_t xm_mirrors_find(xm_mirrors_t *mirrors, int tile, bool compares, uint64_t *changed,
                            int64_t *found);

/** Room for a bit for each element, for xm_mirrors_write(). */
uint64_t *xm_mirrors_bits(xm_mirrors_t *mirrors, int tile);

/** Writes elements of the mirror whose bits are set to the tile, or all. */
xm_status_t xm_mirrors_write(xm_mirrors_t *mirrors, int tile, bool all);

/** Goes on from other mirrors' shadow of an equal tile, on a device too or not, which they get this
 * one's for; or from what a tile holds now. */
void xm_mirrors_take(xm_mirrors_t *mirrors, int tile, xm_mirrors_t *other);
xm_status_t xm_mirrors_read(xm_mirrors_t *mirrors, int tile);

/** NULL is accepted. */
void xm_mirrors_destroy(xm_mirrors_t *mirrors);
