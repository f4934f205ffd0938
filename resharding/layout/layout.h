/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file layout.h
 * What else the rooms ask a layout (crossmesh/layout.h). Layouts are counted by reference, so cheap
 * to keep.
 *
 * Elements smaller than a byte (1, 2 or 4 bits, packed along the innermost dimension) are moved as
 * bytes: xm_layout_pack_innermost() turns their layout into one of bytes.
 */
#pragma once

#include <crossmesh/layout.h>

#include "resharding/layout/box.h"
#include "resharding/layout/mesh.h"
#include "resharding/layout/spec.h"

/** "even", "chunk", "balanced", "explicit". */
const char *xm_partition_name(xm_partition_t partition);

/**
 * The layout of the same tensor with the innermost dimension counted in bytes of @p per_byte packed
 * elements (2 for 4-bit, 4 for 2-bit, 8 for 1-bit elements; 1 changes nothing): its extent and cut
 * points are divided by @p per_byte, all else stays. Fails, naming dimension and number, when the
 * extent or a cut point is not a multiple of @p per_byte, and for a scalar.
 */
xm_status_t xm_layout_pack_innermost(const xm_layout_t *layout, int per_byte, xm_layout_t **packed);

/**
 * One more handle on the same layout, to be destroyed like the first. O(1), nothing is copied; any
 * thread may clone and destroy while others use the layout.
 */
xm_status_t xm_layout_clone(const xm_layout_t *layout, xm_layout_t **clone);

/** The same layout on another mesh of the same shape. */
xm_status_t xm_layout_move(const xm_layout_t *layout, const xm_mesh_t *mesh, xm_layout_t **moved);

const xm_mesh_t *xm_layout_mesh(const xm_layout_t *layout);
const xm_spec_t *xm_layout_spec(const xm_layout_t *layout);
xm_partition_t xm_layout_partition(const xm_layout_t *layout);
int xm_layout_dims(const xm_layout_t *layout);
const int64_t *xm_layout_shape(const xm_layout_t *layout);

/** Number of tiles; tiles are numbered row-major over the dimensions' parts. */
int xm_layout_tiles(const xm_layout_t *layout);
/** Tile held at a mesh position. */
int xm_layout_tile_at(const xm_layout_t *layout, int position);
/** Ranks holding a tile, in mesh order, and their number (the same for every tile). */
const int *xm_layout_replicas(const xm_layout_t *layout, int tile, int *count);

/**
 * The partition's name and, when it is explicit, the cut points of the split dimensions: "explicit
 * (dimension 0 at 0,32,40,48)"; cut at @p size. Returns @p buffer.
 */
char *xm_layout_format_partition(const xm_layout_t *layout, char *buffer, size_t size);

/** "1024x1024x512" into @p buffer; "scalar" for no dimensions. Returns @p buffer. */
char *xm_shape_format(int dims, const int64_t *shape, char *buffer, size_t size);
/** Parses "1024x1024x512" into at most XM_MAX_DIMS extents (each ≥ 0). */
xm_status_t xm_shape_parse(const char *text, int *dims, int64_t *shape);
