/* SPDX-License-Identifier: Apache-2.0 */
/* Where tiles are, what has changed in a source tile, and since which commits. */
#include "resharding/reshard/update_source.h"

#include <stdlib.h>
#include <string.h>

#include "resharding/layout.h"
#include "resharding/plan.h"

enum {
    FIND = 65536
}; /* elements that are compared at once: what is then encoded is in the caches */

static xm_mirrored_t mirrored(const void *tile, uint64_t given, const xm_layout_t *layout, int rank,
                              int64_t size)
{
    const uint64_t bytes =
        size > 0 && layout != NULL ? xm_layout_buffer_bytes(layout, rank, size) : 0;

    return (xm_mirrored_t){tile, bytes < given ? bytes : given, size > 0 ? size : 1, false};
}

xm_status_t xm_update_mirror(const xm_reshard_params_t *params, int rank, xm_mirrors_t **mirrors,
                             xm_tensor_buffers_t **buffers)
{
    const xm_plan_t *plan = params->plan;
    const int tensors = plan != NULL ? xm_plan_tensors(plan) : params->tensor_count;
    xm_mirrored_t *tiles = calloc(2 * (size_t)tensors + 1, sizeof(*tiles));
    xm_tensor_buffers_t *made = calloc((size_t)tensors + 1, sizeof(*made));
    xm_status_t status;

    *buffers = made;
    if (tiles == NULL || made == NULL) {
        free(tiles);
        return XM_NO_MEMORY("the buffers of %d tensors", tensors);
    }
    for (int t = 0;
         t < tensors && params->buffers != NULL && (plan != NULL || params->tensors != NULL); ++t) {
        const xm_tensor_t *one = plan == NULL ? &params->tensors[t] : NULL;
        int64_t size = plan != NULL ? xm_plan_tensor_element_size(plan, t) : one->element_bits / 8;

        made[t] = params->buffers[t];
        tiles[2 * t] = mirrored(made[t].src, made[t].src_bytes,
                                plan != NULL ? xm_plan_tensor_src(plan, t) : one->src, rank, size);
        tiles[2 * t].finds = true;
        tiles[2 * t + 1] =
            mirrored(made[t].dst, made[t].dst_bytes,
                     plan != NULL ? xm_plan_tensor_dst(plan, t) : one->dst, rank, size);
    }
    status = xm_mirrors_create(tiles, 2 * tensors, mirrors);
    for (int t = 0; t < tensors && status == XM_OK; ++t) {
        made[t].src = xm_mirrors_of(*mirrors, 2 * t);
        made[t].dst = xm_mirrors_of(*mirrors, 2 * t + 1);
    }
    free(tiles);
    return status;
}

xm_status_t xm_source_open(xm_source_t *source, const void *src, size_t bytes, int64_t element_size,
                           bool mirrored)
{
    source->src = src;
    source->element_size = element_size;
    source->elements = (int64_t)bytes / element_size;
    if (bytes == 0 || source->bits[0] != NULL) {
        return XM_OK;
    }
    source->shadow = mirrored ? NULL : malloc(bytes);
    if (source->shadow == NULL && !mirrored) {
        return XM_NO_MEMORY("%zu bytes of an update", bytes);
    }
    for (int s = 0; s < XM_SOURCE_SETS; ++s) {
        source->bits[s] = calloc(xm_changes_words(source->elements), sizeof(uint64_t));
        XM_NEED_MEMORY(source->bits[s], "the bits of %zu bytes of an update", bytes);
    }
    return XM_OK;
}

void xm_source_close(xm_source_t *source)
{
    free(source->shadow);
    for (int s = 0; s < XM_SOURCE_SETS; ++s) {
        free(source->bits[s]);
    }
}

uint64_t xm_source_find(xm_source_t *source, bool compares, int64_t end)
{
    const char *now;
    char *shadow;
    int64_t count, changed;

    if (end <= source->found) {
        return 0; /* where there is no tile, too */
    }
    now = (const char *)source->src + source->found * source->element_size;
    shadow = (char *)source->shadow + source->found * source->element_size;
    end = (end + FIND - 1) / FIND * FIND;
    changed = count = (end < source->elements ? end : source->elements) - source->found;
    if (compares) {
        changed = xm_changes_find(now, shadow, count, source->element_size,
                                  source->bits[0] + xm_changes_words(source->found));
    } else {
        memcpy(shadow, now, (size_t)(count * source->element_size));
    }
    source->found += count;
    return (uint64_t)changed;
}

void xm_source_gather(xm_source_t *source)
{
    for (int s = 1; s < XM_SOURCE_SETS && source->bits[0] != NULL; ++s) {
        for (size_t w = 0; w < xm_changes_words(source->elements); ++w) {
            source->bits[s][w] |= source->bits[s - 1][w];
        }
    }
}

void xm_source_settle(xm_source_t *source, bool compares, bool turn)
{
    const size_t words = xm_changes_words(source->elements), bytes = words * sizeof(uint64_t);
    uint64_t *last = source->bits[2];

    if (source->bits[0] == NULL) {
        return;
    }
    for (size_t w = 0; w < words && compares; ++w) {
        source->bits[1][w] |= source->bits[0][w];
    }
    memset(source->bits[0], 0, bytes);
    if (turn) {
        source->bits[2] = source->bits[1];
        source->bits[1] = last;
        memset(last, 0, bytes);
    }
}
