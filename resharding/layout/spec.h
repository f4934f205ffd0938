/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file spec.h
 * What is done with sharding specs (crossmesh/layout.h).
 */
#pragma once

#include <stdint.h>

#include "resharding/layout/box.h"
#include "resharding/layout/mesh.h"

/** Longest text xm_spec_format() writes, with the terminator; also of a spec that
 * xm_spec_check() will refuse for naming an axis in every dimension. */
enum { XM_SPEC_TEXT = XM_MAX_DIMS * (XM_MAX_AXES + 1) + 1 };

/** Fails when an axis does not exist on @p mesh or is used twice, naming dimension and axis. */
xm_status_t xm_spec_check(const xm_spec_t *spec, const xm_mesh_t *mesh);

/** Number of parts dimension @p dim is cut into on @p mesh. */
int xm_spec_parts(const xm_spec_t *spec, const xm_mesh_t *mesh, int dim);

/** Writes the text form into @p buffer (XM_SPEC_TEXT bytes) and returns it. */
char *xm_spec_format(const xm_spec_t *spec, char *buffer);
