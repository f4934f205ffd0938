/* SPDX-License-Identifier: Apache-2.0 */
/* Mirrors of tiles on a device. Kernels read and write pinned host memory by themselves, so what
 * has changed crosses the bus without a list of it being made first. */
#include "resharding/delta/mirror.h"

#include <stdlib.h>
#include <string.h>

#include "comm/memory.h"
#include "resharding/delta/changes.h"
#include "resharding/delta/mirror_kernel.h"

typedef struct {
    xm_mirrored_t about;
    int64_t elements;
    void *mirror, *bits, *shadow; /* pinned, pinned, on the device; NULL: the tile is the host's */
} mirrored_t;

struct xm_mirrors {
    xm_memory_space_t *space; /* NULL: no tile is on a device */
    xm_memory_queue_t *queue;
    int count;
    mirrored_t tiles[];
};

/* Seconds that the device may take for one tile. */
static const double timeout = 60;

static xm_status_t open_tile(xm_mirrors_t *self, mirrored_t *tile)
{
    const size_t bits = xm_changes_words(tile->elements) * sizeof(uint64_t);
    xm_status_t status = xm_memory_allocate_pinned(self->space, tile->about.bytes, &tile->mirror);
    XM_THEN(status, xm_memory_allocate_pinned(self->space, bits, &tile->bits));
    if (status == XM_OK) {
        memset(tile->bits, 0, bits);
    }
    if (status == XM_OK && tile->about.finds) {
        status = xm_memory_allocate(self->space, tile->about.bytes, &tile->shadow);
    }
    return status;
}

xm_status_t xm_mirrors_create(const xm_mirrored_t *tiles, int count, xm_mirrors_t **mirrors)
{
    xm_mirrors_t *self = calloc(1, sizeof(*self) + (size_t)count * sizeof(*self->tiles));
    xm_status_t status = XM_OK;

    XM_NEED_MEMORY(self, "%d mirrors", count);
    self->count = count;
    for (int t = 0; t < count && status == XM_OK; ++t) {
        xm_memory_place_t place = {.kind = XM_MEMORY_HOST};

        self->tiles[t].about = tiles[t];
        if (tiles[t].tile != NULL && tiles[t].bytes > 0) {
            self->tiles[t].elements = (int64_t)tiles[t].bytes / tiles[t].element_size;
            xm_memory_recognise(&tiles[t].tile, 1, &place);
        }
        if (place.kind == XM_MEMORY_HOST) {
            continue;
        }
        if (self->space == NULL) {
            status = xm_memory_cuda_of(&place, &self->space);
            XM_THEN(status, xm_memory_queue_create(self->space, &self->queue));
        } else if (place.device != self->space->device) {
            status = XM_UNSUPPORTED("tiles lie on devices %d and %d: one rank has one",
                                    self->space->device, place.device);
        }
        XM_THEN(status, open_tile(self, &self->tiles[t]));
    }
    if (status < 0) {
        xm_mirrors_destroy(self);
        return status;
    }
    *mirrors = self;
    return XM_OK;
}

void xm_mirrors_destroy(xm_mirrors_t *self)
{
    if (self == NULL) {
        return;
    }
    for (int t = 0; t < self->count && self->space != NULL; ++t) {
        xm_memory_release_pinned(self->space, self->tiles[t].mirror);
        xm_memory_release_pinned(self->space, self->tiles[t].bits);
        xm_memory_release(self->space, self->tiles[t].shadow);
    }
    xm_memory_queue_destroy(self->queue);
    xm_memory_space_destroy(self->space);
    free(self);
}

bool xm_mirrors_has(const xm_mirrors_t *self, int tile)
{
    return self->tiles[tile].mirror != NULL;
}

void *xm_mirrors_of(const xm_mirrors_t *self, int tile)
{
    const mirrored_t *one = &self->tiles[tile];

    return one->mirror != NULL ? one->mirror : (void *)(uintptr_t)one->about.tile;
}

uint64_t *xm_mirrors_bits(xm_mirrors_t *self, int tile)
{
    return self->tiles[tile].bits;
}

/* A kernel goes through all of the tile. */
static xm_status_t run(xm_mirrors_t *self, const mirrored_t *tile, const char *kernel)
{
    static const xm_memory_kernels_t kernels = {xm_mirror_device, &xm_mirror_device_size};
    xm_mirror_args_t args = {.tile = (uint64_t)(uintptr_t)tile->about.tile,
                             .shadow = (uint64_t)(uintptr_t)tile->shadow,
                             .mirror = (uint64_t)(uintptr_t)tile->mirror,
                             .bits = (uint64_t)(uintptr_t)tile->bits,
                             .elements = tile->elements,
                             .groups = (tile->elements + XM_MIRROR_GROUP - 1) / XM_MIRROR_GROUP,
                             .size = (int)tile->about.element_size};
    XM_TRY(xm_memory_queue_launch(self->queue, &kernels, kernel, &args, args.groups));

    return xm_memory_queue_finish(self->queue, timeout);
}

xm_status_t xm_mirrors_read(xm_mirrors_t *self, int tile)
{
    const mirrored_t *one = &self->tiles[tile];

    return one->mirror == NULL
               ? XM_OK
               : xm_memory_copy(self->space, one->mirror, one->about.tile, one->about.bytes);
}

xm_status_t xm_mirrors_find(xm_mirrors_t *self, int tile, bool compares, uint64_t *changed,
                            int64_t *found)
{
    const mirrored_t *one = &self->tiles[tile];
    const uint64_t *bits = one->bits;
    xm_status_t status;

    *found = one->elements;
    if (!compares) {
        XM_TRY(xm_memory_copy(self->space, one->shadow, one->about.tile, one->about.bytes));
        return xm_mirrors_read(self, tile);
    }
    status = run(self, one, "xm_mirror_find");
    *found = 0;
    for (size_t w = 0; status == XM_OK && w < xm_changes_words(one->elements); ++w) {
        changed[w] |= bits[w];
        *found += __builtin_popcountll(bits[w]);
    }
    return status;
}

xm_status_t xm_mirrors_write(xm_mirrors_t *self, int tile, bool all)
{
    const mirrored_t *one = &self->tiles[tile];

    return all ? xm_memory_copy(self->space, (void *)(uintptr_t)one->about.tile, one->mirror,
                                one->about.bytes)
               : run(self, one, "xm_mirror_write");
}

void xm_mirrors_take(xm_mirrors_t *self, int tile, xm_mirrors_t *other)
{
    mirrored_t *one = &self->tiles[tile], *before = &other->tiles[tile];
    void *shadow = one->shadow;

    if (one->mirror == NULL) {
        return;
    }
    memcpy(one->mirror, before->mirror, one->about.bytes);
    one->shadow = before->shadow;
    before->shadow = shadow;
}
