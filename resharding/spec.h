/**
 * @file spec.h
 * Sharding spec: for every tensor dimension the mesh axes that split it, first axis outermost.
 *
 * Written as Alpa and the MLSys'23 paper do, one token per dimension: `R` (not split), `S` followed
 * by the axes' digits: `S0`, `S1`, `S01`. "S01RR" splits dimension 0 over axes 0 and 1 and keeps
 * dimensions 1 and 2 whole. `S01` and `S10` differ in which device gets which part. A mesh axis
 * that appears nowhere replicates. The empty text is the spec of a scalar. Plain values; nothing to
 * free.
 */
#ifndef XM_RESHARDING_SPEC_H
#define XM_RESHARDING_SPEC_H

#include <stdint.h>

#include "resharding/box.h"
#include "resharding/mesh.h"

typedef struct xm_spec {
    int dims;
    int axis_count[XM_MAX_DIMS];            /**< 0: the dimension is not split */
    uint8_t axes[XM_MAX_DIMS][XM_MAX_AXES]; /**< outermost first */
} xm_spec_t;

/** Longest text xm_spec_format() writes, with the terminator; also of a spec that
 * xm_spec_check() will refuse for naming an axis in every dimension. */
enum { XM_SPEC_TEXT = XM_MAX_DIMS * (XM_MAX_AXES + 1) + 1 };

/** Parses e.g. "S01RR". Fails with the position of the offending character. */
XM_API xm_status_t xm_spec_parse(const char *text, xm_spec_t *spec);

/** Fails when an axis does not exist on @p mesh or is used twice, naming dimension and axis. */
XM_API xm_status_t xm_spec_check(const xm_spec_t *spec, const xm_mesh_t *mesh);

/** Number of parts dimension @p dim is cut into on @p mesh. */
XM_API int xm_spec_parts(const xm_spec_t *spec, const xm_mesh_t *mesh, int dim);

/** Writes the text form into @p buffer (XM_SPEC_TEXT bytes) and returns it. */
XM_API char *xm_spec_format(const xm_spec_t *spec, char *buffer);

#endif
