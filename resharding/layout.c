#include "resharding/layout.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/text.h"

struct xm_layout {
    xm_mesh_t *mesh;
    xm_spec_t spec;
    xm_partition_t partition;
    int64_t shape[XM_MAX_DIMS];
    int parts[XM_MAX_DIMS];
    int64_t *cuts[XM_MAX_DIMS];
    int tiles;
    int replicas;      /* per tile */
    int *replica_rank; /* tiles × replicas */
};

static const char *const partition_names[XM_PARTITION_COUNT] = {"even", "chunk"};

const char *xm_partition_name(xm_partition_t partition)
{
    return partition_names[partition];
}

xm_status_t xm_partition_parse(const char *name, xm_partition_t *partition)
{
    int index;
    xm_status_t status =
        xm_text_choose("partition", name, partition_names, XM_PARTITION_COUNT, &index);

    if (status == XM_OK) {
        *partition = (xm_partition_t)index;
    }
    return status;
}

/* Cut points of [lo, hi) over the axes from `axis` on; writes one start per part and advances *cut.
 */
static void cut_range(const xm_layout_t *layout, int dim, int axis, int64_t lo, int64_t hi,
                      int64_t **cut)
{
    int64_t pieces, piece;

    if (axis == layout->spec.axis_count[dim]) {
        *(*cut)++ = lo;
        return;
    }
    pieces = xm_mesh_axis_size(layout->mesh, layout->spec.axes[dim][axis]);
    piece = (hi - lo + pieces - 1) / pieces;
    for (int64_t i = 0; i < pieces; ++i) {
        int64_t start = lo + i * piece < hi ? lo + i * piece : hi;
        int64_t end = start + piece < hi ? start + piece : hi;

        cut_range(layout, dim, axis + 1, start, end, cut);
    }
}

static xm_status_t cut_dimension(xm_layout_t *layout, int dim)
{
    int64_t extent = layout->shape[dim], *cut;
    int parts = xm_spec_parts(&layout->spec, layout->mesh, dim);
    char text[XM_SPEC_TEXT], mesh[64];

    if (layout->partition == XM_PARTITION_EVEN && extent % parts != 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "sharding spec '%s' on mesh %s: dimension %d has %" PRId64
                            " elements, which %d parts do not divide; use the chunk partition",
                            xm_spec_format(&layout->spec, text),
                            xm_mesh_format_shape(layout->mesh, mesh, sizeof(mesh)), dim, extent,
                            parts);
    }
    layout->parts[dim] = parts;
    layout->cuts[dim] = malloc(((size_t)parts + 1) * sizeof(int64_t));
    if (layout->cuts[dim] == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d cut points", parts + 1);
    }
    cut = layout->cuts[dim];
    cut_range(layout, dim, 0, 0, extent, &cut);
    *cut = extent;
    return XM_OK;
}

static xm_status_t check_shape(const xm_spec_t *spec, const int64_t *shape)
{
    int64_t volume = 1;

    for (int d = 0; d < spec->dims; ++d) {
        if (shape[d] < 0) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "dimension %d has %" PRId64 " elements", d,
                                shape[d]);
        }
        if (__builtin_mul_overflow(volume, shape[d] > 0 ? shape[d] : 1, &volume) ||
            volume > INT64_C(1) << 62) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "the tensor has more than 2^62 elements (up to dimension %d)", d);
        }
    }
    return XM_OK;
}

int xm_layout_tile_at(const xm_layout_t *layout, int position)
{
    int tile = 0;

    for (int d = 0; d < layout->spec.dims; ++d) {
        int part = 0;

        for (int i = 0; i < layout->spec.axis_count[d]; ++i) {
            int axis = layout->spec.axes[d][i];

            part = part * xm_mesh_axis_size(layout->mesh, axis) +
                   xm_mesh_coordinate(layout->mesh, position, axis);
        }
        tile = tile * layout->parts[d] + part;
    }
    return tile;
}

static xm_status_t list_replicas(xm_layout_t *layout)
{
    int devices = xm_mesh_size(layout->mesh);
    int *filled;

    layout->tiles = 1;
    for (int d = 0; d < layout->spec.dims; ++d) {
        layout->tiles *= layout->parts[d];
    }
    layout->replicas = devices / layout->tiles;
    layout->replica_rank = malloc((size_t)devices * sizeof(int));
    filled = calloc((size_t)layout->tiles, sizeof(int));
    if (layout->replica_rank == NULL || filled == NULL) {
        free(filled);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d tiles", layout->tiles);
    }
    for (int p = 0; p < devices; ++p) {
        int tile = xm_layout_tile_at(layout, p);

        layout->replica_rank[tile * layout->replicas + filled[tile]++] =
            xm_mesh_rank(layout->mesh, p);
    }
    free(filled);
    return XM_OK;
}

xm_status_t xm_layout_create(const xm_mesh_t *mesh, const xm_spec_t *spec, xm_partition_t partition,
                             const int64_t *shape, xm_layout_t **layout)
{
    xm_layout_t *created;
    xm_status_t status;

    status = xm_spec_check(spec, mesh);
    if (status == XM_OK) {
        status = check_shape(spec, shape);
    }
    if (status < 0) {
        return status;
    }
    created = calloc(1, sizeof(*created));
    if (created == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a layout");
    }
    created->spec = *spec;
    created->partition = partition;
    status = xm_mesh_clone(mesh, &created->mesh);
    for (int d = 0; status == XM_OK && d < spec->dims; ++d) {
        created->shape[d] = shape[d];
        status = cut_dimension(created, d);
    }
    if (status == XM_OK) {
        status = list_replicas(created);
    }
    if (status < 0) {
        xm_layout_destroy(created);
        return status;
    }
    *layout = created;
    return XM_OK;
}

xm_status_t xm_layout_clone(const xm_layout_t *layout, xm_layout_t **clone)
{
    return xm_layout_create(layout->mesh, &layout->spec, layout->partition, layout->shape, clone);
}

void xm_layout_destroy(xm_layout_t *layout)
{
    if (layout == NULL) {
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
    return layout->parts[dim];
}

const int64_t *xm_layout_cuts(const xm_layout_t *layout, int dim)
{
    return layout->cuts[dim];
}

int xm_layout_tiles(const xm_layout_t *layout)
{
    return layout->tiles;
}

void xm_layout_tile_box(const xm_layout_t *layout, int tile, xm_box_t *box)
{
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
    int position = xm_mesh_position(layout->mesh, rank);

    return position < 0 ? -1 : xm_layout_tile_at(layout, position);
}

const int *xm_layout_replicas(const xm_layout_t *layout, int tile, int *count)
{
    *count = layout->replicas;
    return layout->replica_rank + (size_t)tile * (size_t)layout->replicas;
}

uint64_t xm_layout_buffer_bytes(const xm_layout_t *layout, int rank, int64_t element_size)
{
    int tile = xm_layout_tile_of_rank(layout, rank);
    xm_box_t box;

    if (tile < 0) {
        return 0;
    }
    xm_layout_tile_box(layout, tile, &box);
    return (uint64_t)xm_box_volume(&box) * (uint64_t)element_size;
}

char *xm_shape_format(int dims, const int64_t *shape, char *buffer, size_t size)
{
    size_t used = 0;

    (void)snprintf(buffer, size, "scalar");
    for (int d = 0; d < dims && used < size; ++d) {
        used +=
            (size_t)snprintf(buffer + used, size - used, "%s%" PRId64, d > 0 ? "x" : "", shape[d]);
    }
    return buffer;
}

xm_status_t xm_shape_parse(const char *text, int *dims, int64_t *shape)
{
    const char *rest = text;
    int count = 0;

    if (strcmp(text, "scalar") == 0) {
        *dims = 0;
        return XM_OK;
    }
    for (;;) {
        char token[32];
        size_t length = strcspn(rest, "x");
        xm_status_t status;

        if (length >= sizeof(token)) {
            return xm_error_set(XM_ERR_PARSE, "shape '%s': '%s' is not an extent", text, rest);
        }
        if (count == XM_MAX_DIMS) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "shape '%s' has more than %d dimensions",
                                text, XM_MAX_DIMS);
        }
        memcpy(token, rest, length);
        token[length] = '\0';
        status = xm_text_parse_int("extent", token, 0, INT64_MAX, &shape[count]);
        if (status < 0) {
            return xm_error_prefix(status, "shape '%s', dimension %d", text, count);
        }
        ++count;
        if (rest[length] == '\0') {
            *dims = count;
            return XM_OK;
        }
        rest += length + 1;
    }
}
