/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts by what they are made of, each made once: the tensors of a model share a few
 * dozen layouts, and making one for each of thousands of tensors would cost more than
 * planning. Keys are plain values that are compared byte by byte, so unused fields must
 * be zero.
 */
#include "bench/model/layout_pool.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct {
    rb_layout_key_t key;
    xm_layout_t *layout;
} entry_t;

struct rb_layout_pool {
    entry_t *entries;
    int count;
    size_t room;
    xm_index_t index; /* of entries, by their keys */
};

/* Unused axes are zero in both keys, so whole keys are compared. They have no gap between their
 * members; what may be behind the last one does not count. */
enum { KEY_BYTES = offsetof(rb_layout_key_t, spec) + sizeof(xm_spec_t) };
_Static_assert((int)KEY_BYTES == sizeof(int64_t) * (XM_MAX_DIMS + 1) +
                                     sizeof(int) * (2 + 2 * XM_MAX_AXES) + sizeof(xm_spec_t),
               "keys are compared byte by byte");

/* Ranks are an affine function of the mesh coordinates, with the strides of the key. */
static xm_status_t make_mesh(const rb_layout_key_t *key, xm_mesh_t **mesh)
{
    int count = 1;
    int *ranks;
    xm_status_t status;

    for (int a = 0; a < key->axes; ++a) {
        count *= key->size[a];
    }
    ranks = malloc((size_t)count * sizeof(*ranks));
    XM_NEED_MEMORY(ranks, "a mesh of %d ranks", count);
    for (int position = 0; position < count; ++position) {
        int rest = position;

        ranks[position] = key->first;
        for (int a = key->axes - 1; a >= 0; --a) {
            ranks[position] += rest % key->size[a] * key->stride[a];
            rest /= key->size[a];
        }
    }
    status = xm_mesh_create(key->axes, key->size, ranks, mesh);
    free(ranks);
    return status;
}

/* Cuts dimension 0 between blocks over its first axis, and each part in chunks over the
 * others. Blocks are heads, which tensor parallelism must not cut; other axes may. */
static void cut_blocks(const rb_layout_key_t *key, int parts, int64_t *cuts)
{
    int64_t outer = key->size[key->spec.axes[0][0]], inner = parts / outer;
    int64_t blocks = key->shape[0] / key->block;

    for (int64_t i = 0; i < outer; ++i) {
        int64_t extra = blocks % outer;
        int64_t lo = (blocks / outer * i + (i < extra ? i : extra)) * key->block;
        int64_t hi = lo + (blocks / outer + (i < extra)) * key->block;
        int64_t piece = (hi - lo + inner - 1) / inner;

        for (int64_t j = 0; j < inner; ++j) {
            cuts[i * inner + j] = lo + j * piece < hi ? lo + j * piece : hi;
        }
    }
    cuts[parts] = key->shape[0];
}

/* A key with a block splits no dimension but the first. */
static xm_status_t make_blocks(const rb_layout_key_t *key, const xm_mesh_t *mesh,
                               xm_layout_t **layout)
{
    int parts = xm_spec_parts(&key->spec, mesh, 0);
    const int64_t *given[XM_MAX_DIMS] = {NULL};
    int64_t *cuts = malloc(((size_t)parts + 1) * sizeof(*cuts));
    xm_status_t status;

    XM_NEED_MEMORY(cuts, "%d cut points", parts + 1);
    cut_blocks(key, parts, cuts);
    given[0] = cuts;
    status = xm_layout_create_explicit(mesh, &key->spec, key->shape, given, layout);
    free(cuts);
    return status;
}

/* The mesh is released at once, as the layout keeps it. */
static xm_status_t make_layout(const rb_layout_key_t *key, xm_layout_t **layout)
{
    xm_partition_t partition = XM_PARTITION_EVEN;
    xm_mesh_t *mesh;
    xm_status_t status;

    XM_TRY(make_mesh(key, &mesh));
    /* Chunks are used only where a dimension does not divide, so that specs are refused
     * as rarely as torch refuses them. */
    for (int d = 0; d < key->spec.dims; ++d) {
        if (key->shape[d] % xm_spec_parts(&key->spec, mesh, d) != 0) {
            partition = XM_PARTITION_CHUNK;
        }
    }
    status = key->block > 0 ? make_blocks(key, mesh, layout)
                            : xm_layout_create(mesh, &key->spec, partition, key->shape, layout);
    xm_mesh_destroy(mesh);
    return status;
}

xm_status_t rb_layout_pool_create(rb_layout_pool_t **pool)
{
    *pool = calloc(1, sizeof(**pool));
    XM_NEED_MEMORY(*pool, "a pool of layouts");
    return XM_OK;
}

xm_status_t rb_layout_pool_get(rb_layout_pool_t *pool, const rb_layout_key_t *key,
                               const xm_layout_t **layout)
{
    uint64_t hash = XXH3_64bits(key, KEY_BYTES);
    xm_layout_t *made;
    int64_t at;

    for (size_t step = 0; (at = xm_index_next(&pool->index, hash, &step)) >= 0;) {
        if (memcmp(&pool->entries[at].key, key, KEY_BYTES) == 0) {
            *layout = pool->entries[at].layout;
            return XM_OK;
        }
    }
    /* The layout is the pool's before it is entered, which may fail. */
    XM_NEED_MEMORY(XM_ARRAY_ROOM(pool->entries, pool->room, pool->count), "%d layouts",
                   pool->count + 1);
    XM_TRY(make_layout(key, &made));
    pool->entries[pool->count] = (entry_t){*key, made};
    *layout = made;
    XM_NEED_MEMORY(xm_index_enter(&pool->index, hash, pool->count++), "%d layouts", pool->count);
    return XM_OK;
}

void rb_layout_pool_destroy(rb_layout_pool_t *pool)
{
    if (pool == NULL) {
        return;
    }
    for (int i = 0; i < pool->count; ++i) {
        xm_layout_destroy(pool->entries[i].layout);
    }
    free(pool->entries);
    xm_index_clear(&pool->index);
    free(pool);
}
