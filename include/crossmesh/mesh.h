/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file mesh.h
 * Device mesh: an N-dimensional array of ranks.
 *
 * Axis 0 varies slowest. Any ranks in any order, but each at most once; two meshes may overlap. By
 * convention of the papers axis 0 runs over hosts and axis 1 over the devices of a host; nothing
 * here depends on that.
 *
 * @code
 *     // Ranks 8 … 15, four a row: the mesh on which the second stage of a pipeline runs.
 *     xm_status_t second_stage(xm_mesh_t **mesh)
 *     {
 *         return xm_mesh_parse("2x4", "8-15", 0, mesh);
 *     }
 * @endcode
 *
 * Ownership: a mesh is freed by xm_mesh_destroy(); layouts made on it keep what they need of it.
 * Threads: immutable after creation, so shared freely. Errors: status.h; the sentence names the
 * axis or rank. Source: MLSys'23 ("On Optimizing the Communication of Model Parallelism"), section
 * 2.1 (device mesh); Alpa (OSDI'22), section 3.
 */
#ifndef CROSSMESH_MESH_H
#define CROSSMESH_MESH_H

#include <crossmesh/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Most axes a mesh may have (axes are named by one digit in a sharding spec). */
enum { XM_MAX_AXES = 8 };

/** An array of ranks. */
typedef struct xm_mesh xm_mesh_t;

/**
 * Makes a mesh of @p axes axes (0: a single device) from product(sizes) ranks, row-major. @p sizes
 * may be NULL without axes; @p ranks NULL means 0, 1, 2, … Both are copied. Fails when an axis is
 * not positive, a rank is negative, or a rank is named twice.
 */
XM_API xm_status_t xm_mesh_create(int axes, const int *sizes, const int *ranks, xm_mesh_t **mesh);

/**
 * Parses "2x4" (axis sizes) and a rank list such as "8-15" or "0,2,4-7". @p ranks NULL means the
 * ranks from @p first_rank on.
 */
XM_API xm_status_t xm_mesh_parse(const char *shape, const char *ranks, int first_rank,
                                 xm_mesh_t **mesh);

/** Frees the mesh. NULL is accepted. */
XM_API void xm_mesh_destroy(xm_mesh_t *mesh);

/** Number of axes. */
XM_API int xm_mesh_axes(const xm_mesh_t *mesh);
/** Extent of axis @p axis, 0 … axes − 1; 0 for one that does not exist. */
XM_API int xm_mesh_axis_size(const xm_mesh_t *mesh, int axis);
/** Number of devices. */
XM_API int xm_mesh_size(const xm_mesh_t *mesh);
/** Rank at a row-major position 0 … size − 1; −1 for one that does not exist. */
XM_API int xm_mesh_rank(const xm_mesh_t *mesh, int position);
/** Row-major position of a rank, or −1 when it is not in the mesh. O(1) on average. */
XM_API int xm_mesh_position(const xm_mesh_t *mesh, int rank);

#ifdef __cplusplus
}
#endif

#endif
