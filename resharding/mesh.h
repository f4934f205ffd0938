/**
 * @file mesh.h
 * Device mesh: an N-dimensional array of ranks.
 *
 * Axis 0 varies slowest. Any ranks in any order, but each at most once; two meshes may overlap. By
 * convention of the papers axis 0 runs over hosts and axis 1 over the devices of a host; nothing
 * here depends on that.
 *
 * Immutable after creation and counted by reference, so shared freely between threads and cheap to
 * keep. Source: MLSys'23, section 2 (device mesh).
 *
 * @code
 *     xm_mesh_t *mesh;
 *     xm_status_t status = xm_mesh_parse("2x4", "8-15", &mesh);   // ranks 8 … 15, four a row
 * @endcode
 */
#ifndef XM_RESHARDING_MESH_H
#define XM_RESHARDING_MESH_H

#include <stddef.h>
#include <stdint.h>

#include "comm/status.h"

/** Most axes a mesh may have (axes are named by one digit in a sharding spec). */
enum { XM_MAX_AXES = 8 };

typedef struct xm_mesh xm_mesh_t;

/**
 * Makes a mesh of @p axes axes (0: a single device) from product(sizes) ranks, row-major. @p ranks
 * NULL means 0, 1, 2, … Fails when an axis is not positive, a rank is negative, or a rank is named
 * twice.
 */
XM_API xm_status_t xm_mesh_create(int axes, const int *sizes, const int *ranks, xm_mesh_t **mesh);

/**
 * Parses "2x4" (axis sizes) and a rank list such as "8-15" or "0,2,4-7". @p ranks NULL means the
 * ranks from @p first_rank on.
 */
XM_API xm_status_t xm_mesh_parse(const char *shape, const char *ranks, int first_rank,
                                 xm_mesh_t **mesh);

/**
 * One more handle on the same mesh, to be destroyed like the first. O(1), nothing is copied; any
 * thread may clone and destroy while others use the mesh.
 */
XM_API xm_status_t xm_mesh_clone(const xm_mesh_t *mesh, xm_mesh_t **clone);
/** Gives a handle back; the last one frees the mesh. NULL is accepted. */
XM_API void xm_mesh_destroy(xm_mesh_t *mesh);

XM_API int xm_mesh_axes(const xm_mesh_t *mesh);
XM_API int xm_mesh_axis_size(const xm_mesh_t *mesh, int axis);
/** Number of devices. */
XM_API int xm_mesh_size(const xm_mesh_t *mesh);
/** Rank at a row-major position 0 … size − 1. */
XM_API int xm_mesh_rank(const xm_mesh_t *mesh, int position);
/** All ranks by position; they live as long as the mesh. */
XM_API const int *xm_mesh_ranks(const xm_mesh_t *mesh);
/** Row-major position of a rank, or −1 when it is not in the mesh. O(1) on average. */
XM_API int xm_mesh_position(const xm_mesh_t *mesh, int rank);
/** Coordinate of a position on an axis. */
XM_API int xm_mesh_coordinate(const xm_mesh_t *mesh, int position, int axis);
/** Largest rank. */
XM_API int xm_mesh_max_rank(const xm_mesh_t *mesh);

/** "2x4" ("1" for a mesh without axes). Returns @p buffer. */
XM_API char *xm_mesh_format_shape(const xm_mesh_t *mesh, char *buffer, size_t size);
/** "0-3,8" in mesh order with runs folded; cut at @p size. Returns @p buffer. */
XM_API char *xm_mesh_format_ranks(const xm_mesh_t *mesh, char *buffer, size_t size);

/**
 * Parses a rank list ("0,2,4-7"; runs may fall, "3-0") into a malloc'ed array the caller frees.
 * @p what names the option in failure sentences.
 */
XM_API xm_status_t xm_rank_list_parse(const char *what, const char *text, int **ranks, int *count);

#endif
