/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes of tensor elements: half-open intervals, one for each dimension. Volumes fit 63
 * bits because layouts refuse larger tensors (check_shape() in layout.c).
 */
#include "resharding/layout/box.h"

#include <inttypes.h>
#include <stdio.h>

int64_t xm_box_volume(const xm_box_t *box)
{
    int64_t volume = 1;

    for (int d = 0; d < box->dims; ++d) {
        volume *= box->hi[d] - box->lo[d];
    }
    return volume;
}

/* The common part is written as far as it was computed; it has meaning only when the
 * result is true. */
bool xm_box_intersect(const xm_box_t *a, const xm_box_t *b, xm_box_t *common)
{
    common->dims = a->dims;
    for (int d = 0; d < a->dims; ++d) {
        common->lo[d] = a->lo[d] > b->lo[d] ? a->lo[d] : b->lo[d];
        common->hi[d] = a->hi[d] < b->hi[d] ? a->hi[d] : b->hi[d];
        if (common->lo[d] >= common->hi[d]) {
            return false;
        }
    }
    return true;
}

/* A scalar has no intervals and keeps the "[]" that is written first. */
char *xm_box_format(const xm_box_t *box, char *buffer, size_t size)
{
    size_t used = 0;

    (void)snprintf(buffer, size, "[]");
    for (int d = 0; d < box->dims; ++d) {
        int length =
            snprintf(buffer + used, size - used, "%s%" PRId64 ":%" PRId64 "%s", d == 0 ? "[" : ",",
                     box->lo[d], box->hi[d], d == box->dims - 1 ? "]" : "");

        if (length < 0 || (size_t)length >= size - used) {
            break;
        }
        used += (size_t)length;
    }
    return buffer;
}
