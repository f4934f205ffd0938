/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file changes.h
 * Which elements of a tile differ from what they were: a bit for each, in the order in which they
 * lie in the tile's buffer. Not installed.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/** Words of 64 bits that hold a bit for each element. */
static inline size_t xm_changes_words(int64_t elements)
{
    return (size_t)(elements + 63) / 64;
}

/**
 * Sets the bits of elements whose bytes differ between @p now and @p shadow, leaves the others as
 * they are, and makes the shadow what is now: so bits gather what has changed over several calls.
 * Bytes are compared, so a NaN is what it was, and -0 is not 0. Returns how many differed.
 */
int64_t xm_changes_find(const void *now, void *shadow, int64_t elements, int64_t element_size,
                        uint64_t *changed);
