/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file mesh.h
 * What else the rooms ask a mesh (crossmesh/mesh.h). Meshes are counted by reference, so cheap to
 * keep.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <crossmesh/mesh.h>

#include "comm/base.h"

/**
 * One more handle on the same mesh, to be destroyed like the first. O(1), nothing is copied; any
 * thread may clone and destroy while others use the mesh.
 */
xm_status_t xm_mesh_clone(const xm_mesh_t *mesh, xm_mesh_t **clone);

/** All ranks by position; they live as long as the mesh. */
const int *xm_mesh_ranks(const xm_mesh_t *mesh);
/** Coordinate of a position on an axis. */
int xm_mesh_coordinate(const xm_mesh_t *mesh, int position, int axis);
/** Largest rank. */
int xm_mesh_max_rank(const xm_mesh_t *mesh);

/** "2x4" ("1" for a mesh without axes). Returns @p buffer. */
char *xm_mesh_format_shape(const xm_mesh_t *mesh, char *buffer, size_t size);
/** "0-3,8" in mesh order with runs folded; cut at @p size. Returns @p buffer. */
char *xm_mesh_format_ranks(const xm_mesh_t *mesh, char *buffer, size_t size);

/**
 * Parses a rank list ("0,2,4-7"; runs may fall, "3-0") into a malloc'ed array the caller frees.
 * @p what names the option in failure sentences.
 */
xm_status_t xm_rank_list_parse(const char *what, const char *text, int **ranks, int *count);
