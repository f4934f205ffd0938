/**
 * @file layout.h
 * Layout: how one tensor lies on one mesh. Mesh + sharding spec + partition rule + tensor shape.
 *
 * A *sharding spec* says for every tensor dimension which mesh axes split it, first axis outermost.
 * It is written as Alpa and the MLSys'23 paper do, one token per dimension: `R` (not split), or `S`
 * followed by the axes' digits: `S0`, `S1`, `S01`. "S01RR" splits dimension 0 over axes 0 and 1 and
 * keeps dimensions 1 and 2 whole. `S01` and `S10` differ in which device gets which part. A mesh
 * axis that appears nowhere replicates. The empty text is the spec of a scalar.
 *
 * Along a dimension split into p *parts* the layout has p + 1 *cut points*; the cross product of
 * the dimensions' parts are the *tiles*, numbered row-major. A device at a mesh position holds
 * exactly one tile; positions that differ only in axes the spec does not use hold the same tile
 * (*replicas*). A tile may be empty. Partition rules:
 *  - even: every split dimension must divide;
 *  - chunk: torch's rule. Along each axis, outermost first, a range of n is cut into pieces of
 *    ceil(n / p), so last pieces are shorter or empty;
 *  - balanced: likewise axis by axis, but the first n mod p of the p pieces get one element more
 *    than the others, which get floor(n / p);
 *  - explicit: the caller gives the cut points. Parts may be empty.
 *
 * A device's buffer holds its tile contiguously, row-major, without padding. Elements smaller than
 * a byte (1, 2 or 4 bits) are packed along the innermost dimension.
 *
 * @code
 *     // A matrix of `rows` × `columns` floats, its rows split over all axes of `mesh`.
 *     xm_status_t split_rows(const xm_mesh_t *mesh, int64_t rows, int64_t columns,
 *                            xm_layout_t **layout)
 *     {
 *         const int64_t shape[] = {rows, columns};
 *         xm_spec_t spec;
 *         xm_status_t status = xm_spec_parse("S01R", &spec);
 *
 *         return status < 0 ? status
 *                           : xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, shape, layout);
 *     }
 * @endcode
 *
 * Units: elements of the tensor, unless a name says bytes. Ownership: a layout is freed by
 * xm_layout_destroy(); the mesh it was made on may be freed before it. Threads: immutable after
 * creation, so shared freely. Errors: status.h; the sentence names dimension and numbers. Source:
 * MLSys'23, section 2.1; Alpa (OSDI'22), section 4.1 for the specs; torch.chunk for `chunk`,
 * numpy.array_split for `balanced`.
 */
#ifndef CROSSMESH_LAYOUT_H
#define CROSSMESH_LAYOUT_H

#include <stdint.h>

#include <crossmesh/mesh.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Most dimensions a tensor may have. */
enum { XM_MAX_DIMS = 12 };

/** A box of tensor elements: per dimension a half-open range of global indices. Without dimensions
 * it is a scalar: one element. An empty range in some dimension means no elements. */
typedef struct xm_box {
    int dims;                /**< 0 … XM_MAX_DIMS */
    int64_t lo[XM_MAX_DIMS]; /**< first index */
    int64_t hi[XM_MAX_DIMS]; /**< one past the last index */
} xm_box_t;

/** A sharding spec, parsed. Plain value, nothing to free. */
typedef struct xm_spec {
    int dims;                               /**< of the tensor */
    int axis_count[XM_MAX_DIMS];            /**< 0: the dimension is not split */
    uint8_t axes[XM_MAX_DIMS][XM_MAX_AXES]; /**< outermost first */
} xm_spec_t;

/** How a dimension is cut, see above. */
typedef enum xm_partition {
    XM_PARTITION_EVEN,
    XM_PARTITION_CHUNK,
    XM_PARTITION_BALANCED,
    XM_PARTITION_EXPLICIT, /**< last: the one that its name alone does not make */
    XM_PARTITION_COUNT
} xm_partition_t;

/** Where a tensor's elements lie. */
typedef struct xm_layout xm_layout_t;

/** Parses e.g. "S01RR". Fails with the position of the offending character. */
XM_API xm_status_t xm_spec_parse(const char *text, xm_spec_t *spec);

/**
 * The partition rule named "even", "chunk" or "balanced"; unknown names fail with the nearest
 * match. "explicit" fails too: a name carries no offsets, see xm_layout_create_explicit().
 */
XM_API xm_status_t xm_partition_parse(const char *name, xm_partition_t *partition);

/**
 * Lays a tensor of spec->dims dimensions (shape[d] ≥ 0 elements each; @p shape may be NULL for a
 * scalar) on @p mesh. Fails with the dimension and the numbers when the spec does not fit the mesh,
 * when a split dimension does not divide under `even`, when the partition is `explicit`, or when
 * the number of elements exceeds 2^62. O(devices + parts).
 */
XM_API xm_status_t xm_layout_create(const xm_mesh_t *mesh, const xm_spec_t *spec,
                                    xm_partition_t partition, const int64_t *shape,
                                    xm_layout_t **layout);

/**
 * The same with the cut points given: cuts[d] has one entry more than dimension d has parts, starts
 * with 0, never falls and ends with shape[d]; part i is [cuts[d][i], cuts[d][i + 1]). With several
 * axes on a dimension the parts are numbered with the first axis outermost. NULL will do for a
 * dimension of one part, and for @p cuts when no dimension has more. The cuts are copied. Fails
 * with the dimension, the number of the cut and its neighbours.
 *
 * @code
 *     // Packed Q, K, V of 32, 8 and 8 heads on three devices: unequal parts of 48 heads.
 *     xm_status_t lay_heads(const xm_mesh_t *three, int64_t width, xm_layout_t **layout)
 *     {
 *         const int64_t heads[] = {0, 32, 40, 48}, shape[] = {48, width};
 *         const int64_t *const cuts[] = {heads, NULL};
 *         xm_spec_t spec;
 *         xm_status_t status = xm_spec_parse("S0R", &spec);
 *
 *         return status < 0 ? status
 *                           : xm_layout_create_explicit(three, &spec, shape, cuts, layout);
 *     }
 * @endcode
 */
XM_API xm_status_t xm_layout_create_explicit(const xm_mesh_t *mesh, const xm_spec_t *spec,
                                             const int64_t *shape, const int64_t *const *cuts,
                                             xm_layout_t **layout);

/** Frees the layout. NULL is accepted. */
XM_API void xm_layout_destroy(xm_layout_t *layout);

/** Parts of dimension @p dim; 0 for one that does not exist. */
XM_API int xm_layout_parts(const xm_layout_t *layout, int dim);
/** Its cut points: parts + 1 of them, from 0 to the extent, not falling; NULL for a dimension that
 * does not exist. They live as long as the layout. */
XM_API const int64_t *xm_layout_cuts(const xm_layout_t *layout, int dim);

/** Tile held by a rank, or −1 when the rank is not in the mesh. */
XM_API int xm_layout_tile_of_rank(const xm_layout_t *layout, int rank);
/** The box of a tile, global indices. A box without dimensions and elements is written for a tile
 * that does not exist. */
XM_API void xm_layout_tile_box(const xm_layout_t *layout, int tile, xm_box_t *box);

/** Bytes of the buffer of @p rank: its tile's elements times @p element_size (bytes); 0 outside the
 * mesh. */
XM_API uint64_t xm_layout_buffer_bytes(const xm_layout_t *layout, int rank, int64_t element_size);

#ifdef __cplusplus
}
#endif

#endif
