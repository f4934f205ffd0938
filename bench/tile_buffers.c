#include "bench/tile_buffers.h"

#include <inttypes.h>
#include <stdlib.h>

#include "bench/pattern.h"

static xm_status_t allocate(int rank, const char *what, uint64_t bytes, void **buffer)
{
    if (bytes == 0) {
        return XM_OK;
    }
    *buffer = malloc(bytes);
    return *buffer != NULL
               ? XM_OK
               : xm_error_set(XM_ERR_NO_MEMORY,
                              "rank %d has no memory for its %s tile of %" PRIu64 " bytes", rank,
                              what, bytes);
}

xm_status_t rb_tile_buffers_create(const rb_prepared_t *prepared, int rank,
                                   rb_tile_buffers_t *buffers)
{
    int64_t element_size = prepared->one->element_size;
    rb_tile_buffers_t made = {
        .prepared = prepared,
        .rank = rank,
        .src_bytes = xm_layout_buffer_bytes(prepared->src, rank, element_size),
        .dst_bytes = xm_layout_buffer_bytes(prepared->dst, rank, element_size)};
    xm_status_t status = allocate(rank, "source", made.src_bytes, &made.src);

    if (status == XM_OK) {
        status = allocate(rank, "destination", made.dst_bytes, &made.dst);
    }
    if (status < 0) {
        rb_tile_buffers_clear(&made);
        return status;
    }
    *buffers = made;
    return XM_OK;
}

void rb_tile_buffers_fill(const rb_tile_buffers_t *buffers, uint64_t salt)
{
    const rb_prepared_t *prepared = buffers->prepared;
    const rb_case_t *one = prepared->one;
    xm_box_t box;

    if (buffers->src != NULL) {
        xm_layout_tile_box(prepared->src, xm_layout_tile_of_rank(prepared->src, buffers->rank),
                           &box);
        rb_pattern_fill(buffers->src, &box, one->shape, one->element_size, salt);
    }
    if (buffers->dst != NULL) {
        xm_layout_tile_box(prepared->dst, xm_layout_tile_of_rank(prepared->dst, buffers->rank),
                           &box);
        rb_pattern_poison(buffers->dst, &box, one->shape, one->element_size, salt);
    }
}

uint64_t rb_tile_buffers_check(const rb_tile_buffers_t *buffers, uint64_t salt)
{
    const rb_prepared_t *prepared = buffers->prepared;
    const rb_case_t *one = prepared->one;
    xm_box_t box;

    if (buffers->dst == NULL) {
        return 0;
    }
    xm_layout_tile_box(prepared->dst, xm_layout_tile_of_rank(prepared->dst, buffers->rank), &box);
    return rb_pattern_check(buffers->dst, &box, one->shape, one->element_size, salt);
}

void rb_tile_buffers_clear(rb_tile_buffers_t *buffers)
{
    free(buffers->src);
    free(buffers->dst);
    *buffers = (rb_tile_buffers_t){0};
}
