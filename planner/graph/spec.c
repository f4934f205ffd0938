/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sharding specs as single words: byte d is the set of mesh axes that cut dimension d. Searches
 * compare, hash and store millions of specs, so a word that compares with == is worth more than a
 * structure that could say more.
 *
 * A set has no order, so axes of a dimension are always ascending (S01, never S10). That halves the
 * space, and what is lost are layouts that differ from an ascending one by a permutation of
 * devices.
 */

#include "planner/graph/spec.h"

#include <stdio.h>

unsigned ap_spec_axes(ap_spec_t spec, int dim)
{
    return (unsigned)(spec >> (8 * dim)) & 0xffU;
}

ap_spec_t ap_spec_with(ap_spec_t spec, int dim, unsigned axes)
{
    return (spec & ~((ap_spec_t)0xff << (8 * dim))) | ((ap_spec_t)(axes & 0xffU) << (8 * dim));
}

unsigned ap_spec_used_axes(ap_spec_t spec)
{
    unsigned used = 0;

    for (int dim = 0; dim < AP_MAX_RANK; ++dim) {
        used |= ap_spec_axes(spec, dim);
    }
    return used;
}

char *ap_spec_format(ap_spec_t spec, int rank, char *buffer, size_t size)
{
    size_t length = 0;

    if (size == 0) {
        return buffer;
    }
    for (int dim = 0; dim < rank; ++dim) {
        unsigned axes = ap_spec_axes(spec, dim);

        /* A token needs at most one letter and one digit per axis; a text that does not fit ends
         * before it. */
        if (length + 2 + AP_MAX_MESH_RANK > size) {
            break;
        }
        buffer[length++] = axes != 0 ? 'S' : 'R';
        for (int axis = 0; axis < AP_MAX_MESH_RANK; ++axis) {
            if ((axes >> axis & 1U) != 0) {
                buffer[length++] = (char)('0' + axis);
            }
        }
    }
    buffer[length] = '\0';
    return buffer;
}

void ap_spec_list(const ap_spec_t *specs, const int *ranks, int count, char *text, size_t size)
{
    size_t length = 0;

    text[0] = '\0';
    for (int i = 0; i < count && length < size; ++i) {
        char spec[AP_SPEC_TEXT];

        length += (size_t)snprintf(text + length, size - length, "%s%s", i > 0 ? "," : "",
                                   ap_spec_format(specs[i], ranks[i], spec, sizeof(spec)));
    }
}

/* Reads the axes behind an S at *cursor, which moves past them. The checks are what the word form
 * cannot say: an axis twice, or axes out of order, would be read as another spec. */
static xm_status_t parse_axes(const char *text, const char **cursor, int dim, int mesh_rank,
                              unsigned used, unsigned *axes)
{
    int last = -1;

    *axes = 0;
    for (; **cursor >= '0' && **cursor <= '9'; ++*cursor) {
        int axis = **cursor - '0';

        if (axis >= mesh_rank) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "spec '%s': dimension %d is cut over axis %d, the mesh has %d",
                                text, dim, axis, mesh_rank);
        }
        if (((used | *axes) >> axis & 1U) != 0) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "spec '%s': dimension %d uses axis %d a second time", text, dim,
                                axis);
        }
        if (axis < last) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "spec '%s': the axes of dimension %d do not ascend", text, dim);
        }
        *axes |= 1U << axis;
        last = axis;
    }
    if (*axes == 0) {
        return xm_error_set(XM_ERR_PARSE, "spec '%s': dimension %d has an S without an axis", text,
                            dim);
    }
    return XM_OK;
}

/* *spec is written only when the whole text is sound. */
xm_status_t ap_spec_parse(const char *text, int rank, int mesh_rank, ap_spec_t *spec)
{
    ap_spec_t parsed = AP_SPEC_REPLICATED;
    const char *cursor = text;
    int dim = 0;

    for (; *cursor != '\0'; ++dim) {
        char token = *cursor++;
        unsigned axes = 0;

        if (dim == rank) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "spec '%s' has more than the tensor's %d dimensions", text, rank);
        }
        if (token == 'S') {
            xm_status_t status =
                parse_axes(text, &cursor, dim, mesh_rank, ap_spec_used_axes(parsed), &axes);

            if (status != XM_OK) {
                return status;
            }
        } else if (token != 'R') {
            return xm_error_set(XM_ERR_PARSE, "spec '%s': dimension %d is '%c', expected R or S…",
                                text, dim, token);
        }
        parsed = ap_spec_with(parsed, dim, axes);
    }
    if (dim != rank) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "spec '%s' has %d dimensions, the tensor has %d", text, dim, rank);
    }
    *spec = parsed;
    return XM_OK;
}

ap_spec_t ap_spec_resting(int rank, const int64_t *dims, const int mesh[2])
{
    unsigned axes = 0;
    int64_t left = rank > 1 ? dims[0] : 1;

    for (unsigned a = 0; a < 2; ++a) {
        if (mesh[a] > 1 && left % mesh[a] == 0) {
            axes |= 1U << a;
            left /= mesh[a];
        }
    }
    return axes != 0 ? ap_spec_with(AP_SPEC_REPLICATED, 0, axes) : AP_SPEC_REPLICATED;
}
