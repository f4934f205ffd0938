/**
 * @file box.h
 * An axis-aligned box of tensor elements: per dimension a half-open range of global indices.
 *
 * A box of zero dimensions is a scalar: one element. A box with an empty range in some dimension
 * has no elements. Plain values; nothing to free.
 */
#ifndef XM_RESHARDING_BOX_H
#define XM_RESHARDING_BOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/api.h"

/** Most dimensions a tensor may have. */
enum { XM_MAX_DIMS = 12 };

typedef struct xm_box {
    int dims;
    int64_t lo[XM_MAX_DIMS]; /**< first index */
    int64_t hi[XM_MAX_DIMS]; /**< one past the last index */
} xm_box_t;

/** Number of elements. The caller has made sure that it fits (layouts check their tensor's size).
 */
XM_API int64_t xm_box_volume(const xm_box_t *box);

/** True when @p inner lies inside @p outer (an empty box lies inside every box of its dimensions).
 */
XM_API bool xm_box_contains(const xm_box_t *outer, const xm_box_t *inner);

/** Writes the common part of two boxes of equal dimensions; returns false when it is empty. */
XM_API bool xm_box_intersect(const xm_box_t *a, const xm_box_t *b, xm_box_t *common);

/** Text such as "[0:4,8:16]" ("[]" for a scalar); cut at @p size. Returns @p buffer. */
XM_API char *xm_box_format(const xm_box_t *box, char *buffer, size_t size);

#endif
