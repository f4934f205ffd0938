/**
 * @file layout.h
 * Layout: how one tensor lies on one mesh. Mesh + sharding spec + partition flavour + tensor shape.
 *
 * Vocabulary. Along a dimension split into p *parts* the layout has p + 1 cut points; the cross
 * product of the dimensions' parts are the *tiles*. A device at a mesh position holds exactly one
 * tile; positions that differ only in axes the spec does not use hold the same tile (*replicas*). A
 * tile may be empty.
 *
 * Partition flavours:
 *  - even: every split dimension must divide;
 *  - chunk: torch's rule. Along each axis, outermost first, a range of n is cut into pieces of
 *    ceil(n / p), so last pieces are shorter or empty;
 *  - balanced: likewise axis by axis, but the first n mod p of the p pieces get one element more
 *    than the others, which get floor(n / p);
 *  - explicit: the caller gives the cut points. Parts may be empty.
 *
 * A device's buffer holds its tile contiguously, row-major, without padding.
 *
 * Elements smaller than a byte (1, 2 or 4 bits, packed along the innermost dimension) are moved as
 * bytes: xm_layout_pack_innermost() turns their layout into one of bytes.
 *
 * Immutable after creation and counted by reference, so shared freely between threads and cheap to
 * keep. A layout costs O(devices + parts) to make. Source: MLSys'23 section 2; Alpa (OSDI'22)
 * section 4.1 for the specs; torch.chunk for `chunk`, numpy.array_split for `balanced`.
 */
#ifndef XM_RESHARDING_LAYOUT_H
#define XM_RESHARDING_LAYOUT_H

#include "resharding/box.h"
#include "resharding/mesh.h"
#include "resharding/spec.h"

typedef enum xm_partition {
    XM_PARTITION_EVEN,
    XM_PARTITION_CHUNK,
    XM_PARTITION_BALANCED,
    XM_PARTITION_EXPLICIT, /**< last: the one that its name alone does not make */
    XM_PARTITION_COUNT
} xm_partition_t;

/** "even", "chunk", "balanced", "explicit". */
XM_API const char *xm_partition_name(xm_partition_t partition);
/**
 * The flavour of that name; unknown names fail with the nearest match. "explicit" fails too: a name
 * carries no offsets, see xm_layout_create_explicit().
 */
XM_API xm_status_t xm_partition_parse(const char *name, xm_partition_t *partition);

typedef struct xm_layout xm_layout_t;

/**
 * Lays a tensor of spec->dims dimensions (shape[d] ≥ 0 elements each) on @p mesh (kept by
 * reference). Fails with the dimension and the numbers when the spec does not fit the mesh, when a
 * split dimension does not divide under `even`, when the partition is `explicit`, or when the
 * number of elements exceeds 2^62.
 */
XM_API xm_status_t xm_layout_create(const xm_mesh_t *mesh, const xm_spec_t *spec,
                                    xm_partition_t partition, const int64_t *shape,
                                    xm_layout_t **layout);

/**
 * The same with the cut points given: cuts[d] has one entry more than dimension d has parts
 * (xm_spec_parts()), starts with 0, never falls and ends with shape[d]; part i is [cuts[d][i],
 * cuts[d][i + 1]). With several axes on a dimension the parts are numbered with the first axis
 * outermost. NULL will do for a dimension of one part, and for @p cuts when no dimension has more.
 * The cuts are copied. Fails with the dimension, the number of the cut and its neighbours.
 *
 * @code
 *     // Packed Q, K, V of 32, 8 and 8 heads on three devices: unequal parts of 48 heads.
 *     const int64_t heads[] = {0, 32, 40, 48}, *cuts[] = {heads, NULL};
 *     status = xm_layout_create_explicit(mesh, &spec, shape, cuts, &layout);   // spec S0R
 * @endcode
 */
XM_API xm_status_t xm_layout_create_explicit(const xm_mesh_t *mesh, const xm_spec_t *spec,
                                             const int64_t *shape, const int64_t *const *cuts,
                                             xm_layout_t **layout);

/**
 * The layout of the same tensor with the innermost dimension counted in bytes of @p per_byte packed
 * elements (2 for 4-bit, 4 for 2-bit, 8 for 1-bit elements; 1 changes nothing): its extent and cut
 * points are divided by @p per_byte, all else stays. Fails, naming dimension and number, when the
 * extent or a cut point is not a multiple of @p per_byte, and for a scalar.
 */
XM_API xm_status_t xm_layout_pack_innermost(const xm_layout_t *layout, int per_byte,
                                            xm_layout_t **packed);

/**
 * One more handle on the same layout, to be destroyed like the first. O(1), nothing is copied; any
 * thread may clone and destroy while others use the layout.
 */
XM_API xm_status_t xm_layout_clone(const xm_layout_t *layout, xm_layout_t **clone);
/** Gives a handle back; the last one frees the layout. NULL is accepted. */
XM_API void xm_layout_destroy(xm_layout_t *layout);

XM_API const xm_mesh_t *xm_layout_mesh(const xm_layout_t *layout);
XM_API const xm_spec_t *xm_layout_spec(const xm_layout_t *layout);
XM_API xm_partition_t xm_layout_partition(const xm_layout_t *layout);
XM_API int xm_layout_dims(const xm_layout_t *layout);
XM_API const int64_t *xm_layout_shape(const xm_layout_t *layout);

/** Parts of a dimension and its cut points (parts + 1 of them, from 0 to the extent, not falling).
 */
XM_API int xm_layout_parts(const xm_layout_t *layout, int dim);
XM_API const int64_t *xm_layout_cuts(const xm_layout_t *layout, int dim);

/** Number of tiles; tiles are numbered row-major over the dimensions' parts. */
XM_API int xm_layout_tiles(const xm_layout_t *layout);
/** The box of a tile. */
XM_API void xm_layout_tile_box(const xm_layout_t *layout, int tile, xm_box_t *box);
/** Tile held at a mesh position. */
XM_API int xm_layout_tile_at(const xm_layout_t *layout, int position);
/** Tile held by a rank, or −1 when the rank is not in the mesh. */
XM_API int xm_layout_tile_of_rank(const xm_layout_t *layout, int rank);
/** Ranks holding a tile, in mesh order, and their number (the same for every tile). */
XM_API const int *xm_layout_replicas(const xm_layout_t *layout, int tile, int *count);

/** Bytes of the buffer of @p rank: its tile's elements times @p element_size; 0 outside the mesh.
 */
XM_API uint64_t xm_layout_buffer_bytes(const xm_layout_t *layout, int rank, int64_t element_size);

/**
 * The partition's name and, when it is explicit, the cut points of the split dimensions: "explicit
 * (dimension 0 at 0,32,40,48)"; cut at @p size. Returns @p buffer.
 */
XM_API char *xm_layout_format_partition(const xm_layout_t *layout, char *buffer, size_t size);

/** "1024x1024x512" into @p buffer; "scalar" for no dimensions. Returns @p buffer. */
XM_API char *xm_shape_format(int dims, const int64_t *shape, char *buffer, size_t size);
/** Parses "1024x1024x512" into at most XM_MAX_DIMS extents (each ≥ 0). */
XM_API xm_status_t xm_shape_parse(const char *text, int *dims, int64_t *shape);

#endif
