/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes as texts, and a layout from texts, for who has no mesh or spec yet. */
#include <crossmesh/reshard.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "comm/base.h"
#include "resharding/layout/layout.h"

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

/* Parses what xm_shape_format() writes; an extent may be 0. */
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
            return XM_MALFORMED("shape '%s': '%s' is not an extent", text, rest);
        }
        if (count == XM_MAX_DIMS) {
            return XM_INVALID("shape '%s' has more than %d dimensions", text, XM_MAX_DIMS);
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

xm_status_t xm_layout_parse(const char *shape, const char *mesh, const char *ranks,
                            const char *spec, xm_partition_t partition, xm_layout_t **layout)
{
    int64_t extents[XM_MAX_DIMS];
    int dims;
    xm_mesh_t *parsed_mesh;
    xm_spec_t parsed_spec;
    xm_status_t status;

    XM_NEED_ARGUMENTS(shape, mesh, spec, layout);
    XM_TRY(xm_shape_parse(shape, &dims, extents));
    XM_TRY(xm_spec_parse(spec, &parsed_spec));
    if (parsed_spec.dims != dims) {
        return XM_INVALID("shape %s has %d dimensions, spec %s has %d", shape, dims, spec,
                          parsed_spec.dims);
    }
    XM_TRY(xm_mesh_parse(mesh, ranks, 0, &parsed_mesh));
    status = xm_layout_create(parsed_mesh, &parsed_spec, partition, extents, layout);
    xm_mesh_destroy(parsed_mesh);
    return status;
}
