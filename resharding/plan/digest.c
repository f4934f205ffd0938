/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The digest of a plan: a hash of everything that decides which bytes move where. Ranks
 * compare it to know that they made the same plan, so it must not depend on the machine,
 * on addresses or on anything that does not decide (names, times, the scheduler's own
 * name).
 */
#include "resharding/plan/plan_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BUFFER = 4096 /* a multiple of 8 */, KEPT_BYTES = 32 * 1024 * 1024 };

/* The bytes that a layout gives, kept because many tensors of a model share one. */
typedef struct {
    unsigned char *bytes; /* NULL: not kept */
    size_t size;
} kept_t;

typedef struct {
    XXH3_state_t *state;
    unsigned char buffer[BUFFER];
    size_t used;
    kept_t *kept; /* by layout */
    size_t kept_bytes;
} digest_t;

/* Numbers enter the hash as 8 little-endian bytes, so that every machine computes the same digest.
 */
static unsigned char *write_number(unsigned char *bytes, int64_t value)
{
    for (int i = 0; i < 8; ++i) {
        bytes[i] = (unsigned char)((uint64_t)value >> (8 * i));
    }
    return bytes + 8;
}

static void flush(digest_t *digest)
{
    (void)XXH3_128bits_update(digest->state, digest->buffer, digest->used);
    digest->used = 0;
}

static void put(digest_t *digest, int64_t value)
{
    if (digest->used == BUFFER) {
        flush(digest);
    }
    (void)write_number(digest->buffer + digest->used, value);
    digest->used += 8;
}

/* Writes a layout by what it does, cut points and tile of each rank, and not by how it was
 * described: two specs that cut and place alike give the same digest. */
static void write_layout(unsigned char *to, const xm_layout_t *layout)
{
    const xm_mesh_t *mesh = xm_layout_mesh(layout);

    to = write_number(to, xm_layout_dims(layout));
    for (int d = 0; d < xm_layout_dims(layout); ++d) {
        to = write_number(to, xm_layout_shape(layout)[d]);
        to = write_number(to, xm_layout_parts(layout, d));
        for (int p = 0; p <= xm_layout_parts(layout, d); ++p) {
            to = write_number(to, xm_layout_cuts(layout, d)[p]);
        }
    }
    to = write_number(to, xm_mesh_size(mesh));
    for (int p = 0; p < xm_mesh_size(mesh); ++p) {
        to = write_number(to, xm_mesh_rank(mesh, p));
        to = write_number(to, xm_layout_tile_at(layout, p));
    }
}

static size_t layout_bytes(const xm_layout_t *layout)
{
    size_t numbers = 2 + 2 * (size_t)xm_mesh_size(xm_layout_mesh(layout));

    for (int d = 0; d < xm_layout_dims(layout); ++d) {
        numbers += 3 + (size_t)xm_layout_parts(layout, d);
    }
    return numbers * 8;
}

static xm_status_t put_layout(digest_t *digest, const xm_layout_t *layout, int index)
{
    kept_t *kept = &digest->kept[index];
    size_t size = layout_bytes(layout);
    unsigned char *bytes = kept->bytes;

    if (bytes == NULL) {
        bytes = malloc(size);
        if (bytes == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the digest of a layout");
        }
        write_layout(bytes, layout);
    }
    flush(digest);
    (void)XXH3_128bits_update(digest->state, bytes, size);
    if (kept->bytes == NULL && size <= KEPT_BYTES - digest->kept_bytes) {
        kept->bytes = bytes;
        digest->kept_bytes += size;
    } else if (kept->bytes == NULL) {
        free(bytes);
    }
    return XM_OK;
}

/* Lists are preceded by a length or are as long as an earlier number says, so different
 * plans never feed the same bytes. */
static xm_status_t put_tensors(digest_t *digest, const xm_plan_t *plan)
{
    xm_status_t status = XM_OK;

    put(digest, plan->tensor_count);
    for (int i = 0; status == XM_OK && i < plan->tensor_count; ++i) {
        const xm_planned_tensor_t *tensor = &plan->tensors[i];

        put(digest, tensor->element_size);
        status = put_layout(digest, tensor->src, tensor->src_index);
        status = status == XM_OK ? put_layout(digest, tensor->dst, tensor->dst_index) : status;
    }
    return status;
}

static void put_schedule(digest_t *digest, const xm_plan_t *plan)
{
    for (int64_t t = 0; t < plan->task_count; ++t) {
        put(digest, xm_plan_chunk_elements(plan, t));
    }
    for (int r = 0; r < plan->builder.route_count; ++r) {
        const xm_route_t *route = &plan->builder.routes[r];

        put(digest, route->count);
        for (int i = 0; i < route->count; ++i) {
            put(digest, route->ranks[i]);
            put(digest, route->parents[i]);
        }
    }
    for (int64_t i = 0; i < plan->builder.transfer_count; ++i) {
        const xm_transfer_t transfer = xm_plan_transfer(plan, i);

        put(digest, transfer.task);
        put(digest, transfer.parent);
        put(digest, transfer.first);
        put(digest, transfer.end);
        put(digest, transfer.sender);
        put(digest, transfer.route);
    }
}

xm_status_t xm_plan_hash(xm_plan_t *plan)
{
    digest_t digest = {.state = XXH3_createState(),
                       .kept = calloc((size_t)plan->layout_count + 1, sizeof(*digest.kept))};
    xm_status_t status;
    XXH128_hash_t hash;

    if (digest.state == NULL || digest.kept == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "no memory for the digest of a plan");
        goto free_all;
    }
    (void)XXH3_128bits_reset(digest.state);
    status = put_tensors(&digest, plan);
    put_schedule(&digest, plan);
    flush(&digest);
    hash = XXH3_128bits_digest(digest.state);
    (void)snprintf(plan->digest, sizeof(plan->digest), "%016llx%016llx",
                   (unsigned long long)hash.high64, (unsigned long long)hash.low64);

free_all:
    for (int l = 0; digest.kept != NULL && l < plan->layout_count; ++l) {
        free(digest.kept[l].bytes);
    }
    free(digest.kept);
    (void)XXH3_freeState(digest.state);
    return status;
}
