/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layout: how a mesh cuts a tensor and which ranks hold each piece. All answers are
 * tables made at creation (cut points by dimension, ranks by tile), because plans ask
 * millions of times. A tile's number and a rank's place among its replicas are both
 * linear in the mesh coordinates, so the table of a mesh of thousands of devices is
 * filled in one pass. Layouts never change and are counted by reference.
 */
#include "resharding/layout/layout.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

struct xm_layout {
    atomic_uint references;
    xm_mesh_t *mesh;
    xm_spec_t spec;
    xm_partition_t partition;
    int64_t shape[XM_MAX_DIMS];
    int parts[XM_MAX_DIMS];
    int64_t *cuts[XM_MAX_DIMS];
    int tiles;
    int tile_stride[XM_MAX_AXES]; /* of a coordinate in the tile's number; 0: it replicates */
    int replicas;                 /* per tile */
    int *replica_rank;            /* tiles × replicas */
};

static const char *const partition_names[XM_PARTITION_COUNT] = {"even", "chunk", "balanced",
                                                                "explicit"};

const char *xm_partition_name(xm_partition_t partition)
{
    return partition_names[partition];
}

xm_status_t xm_partition_parse(const char *name, xm_partition_t *partition)
{
    int index;
    xm_status_t status;

    XM_NEED_ARGUMENTS(name, partition);
    if (strcmp(name, partition_names[XM_PARTITION_EXPLICIT]) == 0) {
        return XM_INVALID("the explicit partition needs the offsets of its cuts, which its name "
                          "does not give; choose even, chunk or balanced");
    }
    status = xm_text_choose("partition", name, partition_names, XM_PARTITION_EXPLICIT, &index);
    if (status == XM_OK) {
        *partition = (xm_partition_t)index;
    }
    return status;
}

/*
 * Writes the cut points of [lo, hi) over the axes from `axis` on, one start for each
 * part, and advances *cut. Each axis cuts the pieces of the one before, which is what
 * makes S01 and S10 differ in uneven sizes. Even partitions have no remainder, so either
 * rule makes them.
 */
static void cut_range(const xm_layout_t *layout, int dim, int axis, int64_t lo, int64_t hi,
                      int64_t **cut)
{
    int64_t pieces, whole, rest;

    if (axis == layout->spec.axis_count[dim]) {
        *(*cut)++ = lo;
        return;
    }
    pieces = xm_mesh_axis_size(layout->mesh, layout->spec.axes[dim][axis]);
    whole = (hi - lo) / pieces;
    rest = (hi - lo) % pieces;
    for (int64_t i = 0; i < pieces; ++i) {
        /*
         * `chunk` makes every piece longer while there is a remainder and lets the last
         * ones run short or empty; `balanced` gives the remainder to the first pieces,
         * one element each.
         */
        bool longer = layout->partition == XM_PARTITION_BALANCED ? i < rest : rest > 0;
        int64_t length = whole + (longer ? 1 : 0);
        int64_t end = hi - lo > length ? lo + length : hi;

        cut_range(layout, dim, axis + 1, lo, end, cut);
        lo = end;
    }
}

/* Copies the cut points that a caller gives for a dimension: they start at 0, never fall
 * and end at the extent. Equal neighbours are allowed, they make empty parts. */
static xm_status_t copy_cuts(xm_layout_t *layout, int dim, const int64_t *given)
{
    int64_t extent = layout->shape[dim];
    int parts = layout->parts[dim];

    if (given[0] != 0) {
        return XM_INVALID("dimension %d: the first cut point is %" PRId64 ", not 0", dim, given[0]);
    }
    for (int i = 1; i <= parts; ++i) {
        if (given[i] < given[i - 1]) {
            return XM_INVALID("dimension %d: cut point %d is %" PRId64
                              ", before cut point %d, which is %" PRId64,
                              dim, i, given[i], i - 1, given[i - 1]);
        }
        if (given[i] > extent) {
            return XM_INVALID("dimension %d: cut point %d is %" PRId64 ", beyond its %" PRId64
                              " elements",
                              dim, i, given[i], extent);
        }
    }
    if (given[parts] != extent) {
        return XM_INVALID("dimension %d: the last cut point, number %d, is %" PRId64
                          ", not its %" PRId64 " elements",
                          dim, parts, given[parts], extent);
    }
    memcpy(layout->cuts[dim], given, ((size_t)parts + 1) * sizeof(*given));
    return XM_OK;
}

/* Only the even partition refuses remainders; the sentence names the two that accept
 * them. */
static xm_status_t check_divides(const xm_layout_t *layout, int dim)
{
    char text[XM_SPEC_TEXT], mesh[64];

    if (layout->shape[dim] % layout->parts[dim] == 0) {
        return XM_OK;
    }
    return XM_INVALID(
        "sharding spec '%s' on mesh %s: dimension %d has %" PRId64
        " elements, which %d parts do not divide; use the chunk or balanced partition",
        xm_spec_format(&layout->spec, text), xm_mesh_format_shape(layout->mesh, mesh, sizeof(mesh)),
        dim, layout->shape[dim], layout->parts[dim]);
}

/* Cuts a dimension by the partition's rule, or as `given` says where that is not NULL. */
static xm_status_t cut_dimension(xm_layout_t *layout, int dim, const int64_t *given)
{
    int parts = xm_spec_parts(&layout->spec, layout->mesh, dim);
    int64_t *cut;

    layout->parts[dim] = parts;
    layout->cuts[dim] = malloc(((size_t)parts + 1) * sizeof(int64_t));
    XM_NEED_MEMORY(layout->cuts[dim], "%d cut points", parts + 1);
    if (given != NULL) {
        return copy_cuts(layout, dim, given);
    }
    if (layout->partition == XM_PARTITION_EXPLICIT && parts > 1) {
        return XM_INVALID("dimension %d has %d parts, but no cut points are given for it", dim,
                          parts);
    }
    if (layout->partition == XM_PARTITION_EVEN) {
        XM_TRY(check_divides(layout, dim));
    }
    cut = layout->cuts[dim];
    cut_range(layout, dim, 0, 0, layout->shape[dim], &cut);
    *cut = layout->shape[dim];
    return XM_OK;
}

/* Keeps volumes below 2^62 elements, counting empty dimensions as 1: then no product of
 * any subset of extents overflows later. */
static xm_status_t check_shape(const xm_spec_t *spec, const int64_t *shape)
{
    int64_t volume = 1;

    for (int d = 0; d < spec->dims; ++d) {
        if (shape[d] < 0) {
            return XM_INVALID("dimension %d has %" PRId64 " elements", d, shape[d]);
        }
        if (__builtin_mul_overflow(volume, shape[d] > 0 ? shape[d] : 1, &volume) ||
            volume > INT64_C(1) << 62) {
            return XM_INVALID("the tensor has more than 2^62 elements (up to dimension %d)", d);
        }
    }
    return XM_OK;
}

/* The tile at a mesh position, from its coordinates on the axes that split something. */
int xm_layout_tile_at(const xm_layout_t *layout, int position)
{
    int tile = 0;

    for (int a = 0; a < xm_mesh_axes(layout->mesh); ++a) {
        if (layout->tile_stride[a] > 0) {
            tile += xm_mesh_coordinate(layout->mesh, position, a) * layout->tile_stride[a];
        }
    }
    return tile;
}

/*
 * Numbers the tiles. Both the tile and the place among its replicas are linear in a
 * position's coordinates; `slot_stride` is what one step of a coordinate means in the
 * table of ranks, which is tiles × replicas.
 */
static void number_tiles(xm_layout_t *layout, int *slot_stride)
{
    int tiles = 1, replicas = 1;

    for (int d = layout->spec.dims - 1; d >= 0; --d) {
        for (int i = layout->spec.axis_count[d] - 1; i >= 0; --i) {
            int axis = layout->spec.axes[d][i];

            layout->tile_stride[axis] = tiles;
            tiles *= xm_mesh_axis_size(layout->mesh, axis);
        }
    }
    for (int a = xm_mesh_axes(layout->mesh) - 1; a >= 0; --a) {
        if (layout->tile_stride[a] == 0) {
            slot_stride[a] = replicas;
            replicas *= xm_mesh_axis_size(layout->mesh, a);
        }
    }
    for (int a = 0; a < xm_mesh_axes(layout->mesh); ++a) {
        if (layout->tile_stride[a] > 0) {
            slot_stride[a] = layout->tile_stride[a] * replicas;
        }
    }
    layout->tiles = tiles;
    layout->replicas = replicas;
}

/* Fills the table of ranks in one pass over the mesh positions, with the coordinates as
 * an odometer, so that no position needs divisions. */
static xm_status_t list_replicas(xm_layout_t *layout)
{
    const int *ranks = xm_mesh_ranks(layout->mesh);
    int devices = xm_mesh_size(layout->mesh), axes = xm_mesh_axes(layout->mesh);
    int slot_stride[XM_MAX_AXES], sizes[XM_MAX_AXES], at[XM_MAX_AXES] = {0};

    number_tiles(layout, slot_stride);
    layout->replica_rank = malloc((size_t)devices * sizeof(int));
    XM_NEED_MEMORY(layout->replica_rank, "%d tiles", layout->tiles);
    for (int a = 0; a < axes; ++a) {
        sizes[a] = xm_mesh_axis_size(layout->mesh, a);
    }
    for (int p = 0, slot = 0; p < devices; ++p) {
        int a = axes - 1;

        layout->replica_rank[slot] = ranks[p];
        while (a >= 0 && at[a] == sizes[a] - 1) { /* as an odometer turns */
            slot -= at[a] * slot_stride[a];
            at[a--] = 0;
        }
        if (a >= 0) {
            ++at[a];
            slot += slot_stride[a];
        }
    }
    return XM_OK;
}

/* Everything is checked before the layout is handed out, so no query can fail later. */
static xm_status_t build(const xm_mesh_t *mesh, const xm_spec_t *spec, xm_partition_t partition,
                         const int64_t *shape, const int64_t *const *cuts, xm_layout_t **layout)
{
    xm_layout_t *created;
    xm_status_t status;

    XM_TRY(xm_spec_check(spec, mesh));
    XM_TRY(check_shape(spec, shape));
    created = calloc(1, sizeof(*created));
    XM_NEED_MEMORY(created, "a layout");
    atomic_init(&created->references, 1);
    created->spec = *spec;
    created->partition = partition;
    status = xm_mesh_clone(mesh, &created->mesh);
    for (int d = 0; status == XM_OK && d < spec->dims; ++d) {
        created->shape[d] = shape[d];
        status = cut_dimension(created, d, cuts != NULL ? cuts[d] : NULL);
    }
    XM_THEN(status, list_replicas(created));
    if (status < 0) {
        xm_layout_destroy(created);
        return status;
    }
    *layout = created;
    return XM_OK;
}

xm_status_t xm_layout_create(const xm_mesh_t *mesh, const xm_spec_t *spec, xm_partition_t partition,
                             const int64_t *shape, xm_layout_t **layout)
{
    if (XM_IS_NULL(mesh) || XM_IS_NULL(spec) || XM_IS_NULL(layout) ||
        (spec->dims > 0 && XM_IS_NULL(shape))) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    if (partition == XM_PARTITION_EXPLICIT) {
        return XM_INVALID(
            "the explicit partition needs its cut points: xm_layout_create_explicit() takes them");
    }
    return build(mesh, spec, partition, shape, NULL, layout);
}

xm_status_t xm_layout_create_explicit(const xm_mesh_t *mesh, const xm_spec_t *spec,
                                      const int64_t *shape, const int64_t *const *cuts,
                                      xm_layout_t **layout)
{
    if (XM_IS_NULL(mesh) || XM_IS_NULL(spec) || XM_IS_NULL(layout) ||
        (spec->dims > 0 && XM_IS_NULL(shape))) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    return build(mesh, spec, XM_PARTITION_EXPLICIT, shape, cuts, layout);
}

/* Packed elements can be moved as bytes only when no byte is shared by two parts. */
static xm_status_t check_packing(const xm_layout_t *layout, int per_byte)
{
    int inner = layout->spec.dims - 1;

    if (per_byte != 1 && per_byte != 2 && per_byte != 4 && per_byte != 8) {
        return XM_INVALID("a byte packs 1, 2, 4 or 8 elements, not %d", per_byte);
    }
    if (inner < 0) {
        return per_byte == 1
                   ? XM_OK
                   : XM_INVALID("a scalar has no dimension to pack %d elements a byte along",
                                per_byte);
    }
    if (layout->shape[inner] % per_byte != 0) {
        return XM_INVALID("dimension %d has %" PRId64
                          " elements, which do not fill bytes of %d packed elements",
                          inner, layout->shape[inner], per_byte);
    }
    for (int i = 0; i <= layout->parts[inner]; ++i) {
        if (layout->cuts[inner][i] % per_byte != 0) {
            return XM_INVALID("dimension %d is cut at element %" PRId64
                              ", inside a byte of %d packed elements",
                              inner, layout->cuts[inner][i], per_byte);
        }
    }
    return XM_OK;
}

/* Makes the layout of bytes. It keeps the partition's kind but passes explicit cut
 * points, so that it cuts exactly where the layout of elements does. */
xm_status_t xm_layout_pack_innermost(const xm_layout_t *layout, int per_byte, xm_layout_t **packed)
{
    xm_status_t status = check_packing(layout, per_byte);
    const int64_t *cuts[XM_MAX_DIMS];
    int64_t shape[XM_MAX_DIMS], *bytes;
    int inner = layout->spec.dims - 1;

    XM_TRY(status);
    if (per_byte == 1) {
        return xm_layout_clone(layout, packed);
    }
    bytes = malloc(((size_t)layout->parts[inner] + 1) * sizeof(*bytes));
    XM_NEED_MEMORY(bytes, "%d cut points", layout->parts[inner] + 1);
    for (int i = 0; i <= layout->parts[inner]; ++i) {
        bytes[i] = layout->cuts[inner][i] / per_byte;
    }
    for (int d = 0; d <= inner; ++d) {
        shape[d] = d < inner ? layout->shape[d] : layout->shape[d] / per_byte;
        cuts[d] = d < inner ? layout->cuts[d] : bytes;
    }
    status = build(layout->mesh, &layout->spec, layout->partition, shape, cuts, packed);
    free(bytes);
    return status;
}

/* As above, the cut points are passed whatever the partition's kind. */
xm_status_t xm_layout_move(const xm_layout_t *layout, const xm_mesh_t *mesh, xm_layout_t **moved)
{
    const int64_t *cuts[XM_MAX_DIMS];

    for (int d = 0; d < layout->spec.dims; ++d) {
        cuts[d] = layout->cuts[d];
    }
    return build(mesh, &layout->spec, layout->partition, layout->shape, cuts, moved);
}

xm_status_t xm_layout_clone(const xm_layout_t *layout, xm_layout_t **clone)
{
    xm_layout_t *same = (xm_layout_t *)layout; /* only the count is not const */

    (void)atomic_fetch_add_explicit(&same->references, 1, memory_order_relaxed);
    *clone = same;
    return XM_OK;
}

void xm_layout_destroy(xm_layout_t *layout)
{
    /* Acquire and release: the last handle frees after every use through the others. */
    if (layout == NULL ||
        atomic_fetch_sub_explicit(&layout->references, 1, memory_order_acq_rel) > 1) {
        return;
    }
    free(layout->replica_rank);
    for (int d = 0; d < layout->spec.dims; ++d) {
        free(layout->cuts[d]);
    }
    xm_mesh_destroy(layout->mesh);
    free(layout);
}

const xm_mesh_t *xm_layout_mesh(const xm_layout_t *layout)
{
    return layout->mesh;
}

const xm_spec_t *xm_layout_spec(const xm_layout_t *layout)
{
    return &layout->spec;
}

xm_partition_t xm_layout_partition(const xm_layout_t *layout)
{
    return layout->partition;
}

int xm_layout_dims(const xm_layout_t *layout)
{
    return layout->spec.dims;
}

const int64_t *xm_layout_shape(const xm_layout_t *layout)
{
    return layout->shape;
}

int xm_layout_parts(const xm_layout_t *layout, int dim)
{
    if (XM_IS_NULL(layout) || dim < 0 || dim >= layout->spec.dims) {
        return 0;
    }
    return layout->parts[dim];
}

const int64_t *xm_layout_cuts(const xm_layout_t *layout, int dim)
{
    if (XM_IS_NULL(layout) || dim < 0 || dim >= layout->spec.dims) {
        return NULL;
    }
    return layout->cuts[dim];
}

int xm_layout_tiles(const xm_layout_t *layout)
{
    return layout->tiles;
}

/* A tile's number is row-major over the parts, so its coordinates come out from the last
 * dimension on. */
void xm_layout_tile_box(const xm_layout_t *layout, int tile, xm_box_t *box)
{
    if (XM_IS_NULL(layout) || XM_IS_NULL(box)) {
        return;
    }
    if (tile < 0 || tile >= layout->tiles) {
        *box = (xm_box_t){0};
        return;
    }
    box->dims = layout->spec.dims;
    for (int d = layout->spec.dims - 1; d >= 0; --d) {
        int part = tile % layout->parts[d];

        box->lo[d] = layout->cuts[d][part];
        box->hi[d] = layout->cuts[d][part + 1];
        tile /= layout->parts[d];
    }
}

int xm_layout_tile_of_rank(const xm_layout_t *layout, int rank)
{
    if (XM_IS_NULL(layout)) {
        return -1;
    }
    int position = xm_mesh_position(layout->mesh, rank);

    return position < 0 ? -1 : xm_layout_tile_at(layout, position);
}

/* The list lives as long as the layout. */
const int *xm_layout_replicas(const xm_layout_t *layout, int tile, int *count)
{
    *count = layout->replicas;
    return layout->replica_rank + (size_t)tile * (size_t)layout->replicas;
}

/* 0 where the rank holds nothing, so callers can allocate without asking first. */
uint64_t xm_layout_buffer_bytes(const xm_layout_t *layout, int rank, int64_t element_size)
{
    if (XM_IS_NULL(layout)) {
        return 0;
    }
    int tile = xm_layout_tile_of_rank(layout, rank);
    xm_box_t box;

    if (tile < 0) {
        return 0;
    }
    xm_layout_tile_box(layout, tile, &box);
    return (uint64_t)xm_box_volume(&box) * (uint64_t)element_size;
}

/* Only the cuts of an explicit partition are written; the other names say it all. */
char *xm_layout_format_partition(const xm_layout_t *layout, char *buffer, size_t size)
{
    size_t used = (size_t)snprintf(buffer, size, "%s", xm_partition_name(layout->partition));
    const char *before = " (";

    if (layout->partition != XM_PARTITION_EXPLICIT) {
        return buffer;
    }
    for (int d = 0; d < layout->spec.dims && used < size; ++d) {
        if (layout->parts[d] == 1) {
            continue;
        }
        used += (size_t)snprintf(buffer + used, size - used, "%sdimension %d at ", before, d);
        before = "; ";
        for (int i = 0; i <= layout->parts[d] && used < size; ++i) {
            used += (size_t)snprintf(buffer + used, size - used, "%s%" PRId64, i > 0 ? "," : "",
                                     layout->cuts[d][i]);
        }
    }
    if (before[0] == ';' && used < size) {
        (void)snprintf(buffer + used, size - used, ")");
    }
    return buffer;
}
