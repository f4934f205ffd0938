/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a rank's tiles, in one block for sources and one for destinations: one
 * registration each, and one mapping for neighbours that copy directly. Packed parameters
 * lie as a serving engine has them.
 */
#include "bench/run/tile_buffers.h"

#include <inttypes.h>
#include <stdlib.h>

#include "bench/run/pattern.h"
#include "comm/base.h"

enum { ALIGNMENT = 64 };

/* Returns where the next tile starts; a tile without bytes takes no place. */
static uint64_t place(uint64_t bytes, uint64_t *end)
{
    uint64_t start = *end;

    *end += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return start;
}

/*
 * Allocates one block. `memory` is where shared memory goes, and NULL where none is
 * wanted. A system without shared memory is no failure, as direct copies are an
 * optimisation.
 */
static xm_status_t allocate(int rank, const char *what, uint64_t bytes, xm_shared_memory_t **memory,
                            unsigned char **buffer)
{
    if (bytes == 0) {
        return XM_OK;
    }
    if (memory != NULL) {
        if (xm_shared_memory_create(bytes, memory) == XM_OK) {
            *buffer = xm_shared_memory_address(*memory);
            return XM_OK;
        }
        xm_log_debug("rank %d has its %s tiles in ordinary memory: %s", rank, what,
                     xm_last_error());
    }
    *buffer = aligned_alloc(ALIGNMENT, bytes);
    return *buffer != NULL
               ? XM_OK
               : xm_error_set(XM_ERR_NO_MEMORY,
                              "rank %d has no memory for its %s tiles of %" PRIu64 " bytes", rank,
                              what, bytes);
}

/* Finds the offsets of the destination tiles, those of packed parameters one after the
 * other; *end is the bytes of all. */
static xm_status_t place_dst(const rb_prepared_t *prepared, const rb_tile_buffers_t *made,
                             uint64_t *offsets, uint64_t *end)
{
    const rb_model_t *model = prepared->one->model;
    int groups = model != NULL ? model->group_count : 0;
    uint64_t *starts = malloc(((size_t)groups + 1) * sizeof(*starts));

    XM_NEED_MEMORY(starts, "%d packed parameters", groups);
    for (int g = 0; g < groups; ++g) {
        starts[g] = place(rb_model_group_bytes(model, g, made->rank), end);
    }
    for (int i = 0; i < xm_plan_tensors(made->plan); ++i) {
        offsets[i] =
            model != NULL && model->tensors[i].group >= 0
                ? starts[model->tensors[i].group] + rb_model_packed_offset(model, i, made->rank)
                : place(made->tensors[i].dst_bytes, end);
    }
    free(starts);
    return XM_OK;
}

static void measure(rb_tile_buffers_t *made)
{
    for (int i = 0; i < xm_plan_tensors(made->plan); ++i) {
        int64_t element_size = xm_plan_tensor_element_size(made->plan, i);

        made->tensors[i].src_bytes =
            xm_layout_buffer_bytes(xm_plan_tensor_src(made->plan, i), made->rank, element_size);
        made->tensors[i].dst_bytes =
            xm_layout_buffer_bytes(xm_plan_tensor_dst(made->plan, i), made->rank, element_size);
    }
}

xm_status_t rb_tile_buffers_create(const rb_prepared_t *prepared, int rank, bool shared,
                                   rb_tile_buffers_t *buffers)
{
    rb_tile_buffers_t made = {.plan = prepared->plan, .rank = rank};
    size_t count = (size_t)xm_plan_tensors(prepared->plan);
    uint64_t *offsets = malloc(count * sizeof(*offsets)), src_bytes = 0, dst_bytes = 0;
    xm_status_t status;

    made.tensors = calloc(count, sizeof(*made.tensors));
    if (offsets == NULL || made.tensors == NULL) {
        status = XM_NO_MEMORY("%zu tensors", count);
        goto free_offsets;
    }
    measure(&made);
    status = place_dst(prepared, &made, offsets, &dst_bytes);
    if (status == XM_OK) {
        status =
            allocate(rank, "destination", dst_bytes, shared ? &made.dst_shared : NULL, &made.dst);
    }
    /* The offsets are used again for the sources once the destinations have their
     * addresses. */
    for (size_t i = 0; status == XM_OK && i < count; ++i) {
        made.tensors[i].dst = made.tensors[i].dst_bytes > 0 ? made.dst + offsets[i] : NULL;
        offsets[i] = place(made.tensors[i].src_bytes, &src_bytes);
    }
    XM_THEN(status,
            allocate(rank, "source", src_bytes, shared ? &made.src_shared : NULL, &made.src));
    for (size_t i = 0; status == XM_OK && i < count; ++i) {
        made.tensors[i].src = made.tensors[i].src_bytes > 0 ? made.src + offsets[i] : NULL;
    }

free_offsets:
    free(offsets);
    if (status < 0) {
        rb_tile_buffers_clear(&made);
        return status;
    }
    *buffers = made;
    return XM_OK;
}

static void tile_box(const xm_layout_t *layout, int rank, xm_box_t *box)
{
    xm_layout_tile_box(layout, xm_layout_tile_of_rank(layout, rank), box);
}

/* Each tensor has a salt of its own, so data that went to another tensor's tile are wrong
 * there. */
void rb_tile_buffers_fill(const rb_tile_buffers_t *buffers, uint64_t salt)
{
    for (int i = 0; i < xm_plan_tensors(buffers->plan); ++i) {
        const xm_layout_t *src = xm_plan_tensor_src(buffers->plan, i);
        const xm_layout_t *dst = xm_plan_tensor_dst(buffers->plan, i);
        int64_t element_size = xm_plan_tensor_element_size(buffers->plan, i);
        uint64_t own = rb_pattern_tensor_salt(salt, i);
        xm_box_t box;

        if (buffers->tensors[i].src_bytes > 0) {
            tile_box(src, buffers->rank, &box);
            /* The executor may not write there, but we do. */
            rb_pattern_fill((void *)(uintptr_t)buffers->tensors[i].src, &box, xm_layout_shape(src),
                            element_size, own);
        }
        if (buffers->tensors[i].dst_bytes > 0) {
            tile_box(dst, buffers->rank, &box);
            rb_pattern_poison(buffers->tensors[i].dst, &box, xm_layout_shape(dst), element_size,
                              own);
        }
    }
}

uint64_t rb_tile_buffers_check(const rb_tile_buffers_t *buffers, uint64_t salt)
{
    uint64_t wrong = 0;

    for (int i = 0; i < xm_plan_tensors(buffers->plan); ++i) {
        const xm_layout_t *dst = xm_plan_tensor_dst(buffers->plan, i);
        xm_box_t box;

        if (buffers->tensors[i].dst_bytes > 0) {
            tile_box(dst, buffers->rank, &box);
            wrong += rb_pattern_check(buffers->tensors[i].dst, &box, xm_layout_shape(dst),
                                      xm_plan_tensor_element_size(buffers->plan, i),
                                      rb_pattern_tensor_salt(salt, i));
        }
    }
    return wrong;
}

xm_status_t rb_tile_buffers_expect(rb_tile_buffers_t *buffers, uint64_t salt)
{
    size_t count = (size_t)xm_plan_tensors(buffers->plan);

    buffers->expected = calloc(count, sizeof(*buffers->expected));
    for (size_t i = 0; buffers->expected != NULL && i < count; ++i) {
        const xm_layout_t *dst = xm_plan_tensor_dst(buffers->plan, (int)i);
        uint64_t bytes = buffers->tensors[i].dst_bytes;
        xm_box_t box;

        buffers->expected[i] = bytes > 0 ? malloc(bytes) : NULL;
        if (buffers->expected[i] != NULL) {
            tile_box(dst, buffers->rank, &box);
            rb_pattern_fill(buffers->expected[i], &box, xm_layout_shape(dst),
                            xm_plan_tensor_element_size(buffers->plan, (int)i),
                            rb_pattern_tensor_salt(salt, (int)i));
        } else if (bytes > 0) {
            return XM_NO_MEMORY("a second destination");
        }
    }
    return buffers->expected != NULL ? XM_OK : XM_NO_MEMORY("%zu tensors", count);
}

void rb_tile_buffers_change(const rb_tile_buffers_t *buffers, uint64_t salt, rb_changes_t pattern,
                            double share, bool again)
{
    for (int i = 0; i < xm_plan_tensors(buffers->plan); ++i) {
        const xm_layout_t *layouts[] = {xm_plan_tensor_src(buffers->plan, i),
                                        xm_plan_tensor_dst(buffers->plan, i)};
        void *tiles[] = {(void *)(uintptr_t)buffers->tensors[i].src,
                         again ? buffers->tensors[i].dst : buffers->expected[i]};

        for (int side = again ? 1 : 0; side < 2; ++side) {
            xm_box_t box;

            if (tiles[side] != NULL) {
                tile_box(layouts[side], buffers->rank, &box);
                rb_pattern_change(tiles[side], &box, xm_layout_shape(layouts[side]),
                                  xm_plan_tensor_element_size(buffers->plan, i),
                                  rb_pattern_tensor_salt(salt, i), pattern, share, again);
            }
        }
    }
}

uint64_t rb_tile_buffers_differ(const rb_tile_buffers_t *buffers)
{
    uint64_t wrong = 0;

    for (int i = 0; i < xm_plan_tensors(buffers->plan); ++i) {
        const unsigned char *tile = buffers->tensors[i].dst, *expected = buffers->expected[i];

        for (uint64_t b = 0; expected != NULL && b < buffers->tensors[i].dst_bytes; ++b) {
            wrong += tile[b] != expected[b];
        }
    }
    return wrong;
}

/* Shared memory frees the block itself. */
static void release(xm_shared_memory_t *memory, unsigned char *buffer)
{
    if (memory != NULL) {
        xm_shared_memory_destroy(memory);
    } else {
        free(buffer);
    }
}

void rb_tile_buffers_clear(rb_tile_buffers_t *buffers)
{
    for (int i = 0; buffers->expected != NULL && i < xm_plan_tensors(buffers->plan); ++i) {
        free(buffers->expected[i]);
    }
    free(buffers->expected);
    free(buffers->tensors);
    release(buffers->src_shared, buffers->src);
    release(buffers->dst_shared, buffers->dst);
    *buffers = (rb_tile_buffers_t){0};
}
