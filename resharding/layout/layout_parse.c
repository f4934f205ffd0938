/* SPDX-License-Identifier: Apache-2.0 */
/* A layout from texts, for who has no mesh or spec yet. */
#include <crossmesh/reshard.h>

#include "comm/base.h"
#include "resharding/layout/layout.h"

xm_status_t xm_layout_parse(const char *shape, const char *mesh, const char *ranks,
                            const char *spec, xm_partition_t partition, xm_layout_t **layout)
{
    int64_t extents[XM_MAX_DIMS];
    int dims;
    xm_mesh_t *parsed_mesh;
    xm_spec_t parsed_spec;
    xm_status_t status;

    if (XM_IS_NULL(shape) || XM_IS_NULL(mesh) || XM_IS_NULL(spec) || XM_IS_NULL(layout)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    status = xm_shape_parse(shape, &dims, extents);
    if (status == XM_OK) {
        status = xm_spec_parse(spec, &parsed_spec);
    }
    if (status == XM_OK && parsed_spec.dims != dims) {
        status = xm_error_set(XM_ERR_INVALID_ARGUMENT, "shape %s has %d dimensions, spec %s has %d",
                              shape, dims, spec, parsed_spec.dims);
    }
    if (status == XM_OK) {
        status = xm_mesh_parse(mesh, ranks, 0, &parsed_mesh);
    }
    if (status < 0) {
        return status;
    }
    status = xm_layout_create(parsed_mesh, &parsed_spec, partition, extents, layout);
    xm_mesh_destroy(parsed_mesh);
    return status;
}
