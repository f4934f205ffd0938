/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sharding specs as text: "S01R" says that dimension 0 is split over mesh axes 0 and 1,
 * the first outermost, and dimension 1 is whole. This is Alpa's notation. Parsing needs
 * no mesh; whether the axes exist and are used once is checked against one afterwards.
 */
#include "resharding/layout/spec.h"

#include <string.h>

#include "comm/base.h"

/* The caller's spec is written only when the whole text is good. */
xm_status_t xm_spec_parse(const char *text, xm_spec_t *spec)
{
    XM_NEED_ARGUMENTS(text, spec);
    xm_spec_t parsed;
    const char *c = text;

    memset(&parsed, 0, sizeof(parsed));
    while (*c != '\0') {
        int dim = parsed.dims;

        if (dim == XM_MAX_DIMS) {
            return XM_INVALID("sharding spec '%s' has more than %d dimensions", text, XM_MAX_DIMS);
        }
        if (*c != 'R' && *c != 'S') {
            return XM_MALFORMED("sharding spec '%s': character %d is '%.*s', expected R or S", text,
                                (int)(c - text) + 1, (int)xm_text_character(c), c);
        }
        if (*c++ == 'S') {
            while (*c >= '0' && *c <= '9') {
                if (parsed.axis_count[dim] == XM_MAX_AXES) {
                    return XM_INVALID("sharding spec '%s': dimension %d names more than %d axes",
                                      text, dim, XM_MAX_AXES);
                }
                parsed.axes[dim][parsed.axis_count[dim]++] = (uint8_t)(*c++ - '0');
            }
            if (parsed.axis_count[dim] == 0) {
                return XM_MALFORMED("sharding spec '%s': the S of dimension %d names no mesh axis",
                                    text, dim);
            }
        }
        ++parsed.dims;
    }
    *spec = parsed;
    return XM_OK;
}

/* An axis may split one dimension only: used twice, a device would lack data that no
 * device holds. */
xm_status_t xm_spec_check(const xm_spec_t *spec, const xm_mesh_t *mesh)
{
    int used_by[10]; /* dimension that uses an axis digit */
    char text[XM_SPEC_TEXT], shape[64];

    memset(used_by, -1, sizeof(used_by));
    for (int d = 0; d < spec->dims; ++d) {
        for (int i = 0; i < spec->axis_count[d]; ++i) {
            int axis = spec->axes[d][i];

            if (axis >= xm_mesh_axes(mesh)) {
                return XM_INVALID("sharding spec '%s': dimension %d is split over mesh axis %d, "
                                  "but mesh %s has %d axes",
                                  xm_spec_format(spec, text), d, axis,
                                  xm_mesh_format_shape(mesh, shape, sizeof(shape)),
                                  xm_mesh_axes(mesh));
            }
            if (used_by[axis] >= 0) {
                return XM_INVALID(
                    "sharding spec '%s' uses mesh axis %d twice (dimensions %d and %d)",
                    xm_spec_format(spec, text), axis, used_by[axis], d);
            }
            used_by[axis] = d;
        }
    }
    return XM_OK;
}

/* The product of the axes' sizes; 1 for a dimension that is whole. */
int xm_spec_parts(const xm_spec_t *spec, const xm_mesh_t *mesh, int dim)
{
    int parts = 1;

    for (int i = 0; i < spec->axis_count[dim]; ++i) {
        parts *= xm_mesh_axis_size(mesh, spec->axes[dim][i]);
    }
    return parts;
}

/* Writes the text that xm_spec_parse() accepts; it stops at the buffer's end. */
char *xm_spec_format(const xm_spec_t *spec, char *buffer)
{
    char *c = buffer, *end = buffer + XM_SPEC_TEXT - 1;

    for (int d = 0; d < spec->dims && c < end; ++d) {
        *c++ = spec->axis_count[d] > 0 ? 'S' : 'R';
        for (int i = 0; i < spec->axis_count[d] && c < end; ++i) {
            *c++ = (char)('0' + spec->axes[d][i]);
        }
    }
    *c = '\0';
    return buffer;
}
