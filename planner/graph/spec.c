/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sharding specs packed into words: byte d is the set of mesh axes that cut dimension d. Searches
 * compare, hash and store millions of specs, so a word that compares with == is worth more than the
 * structure of resharding/layout/, which can say more. Text is read and written there alone.
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

xm_spec_t ap_spec_unpack(ap_spec_t spec, int rank)
{
    xm_spec_t made = {.dims = rank};

    for (int dim = 0; dim < rank; ++dim) {
        for (int axis = 0; axis < AP_MAX_MESH_RANK; ++axis) {
            if ((ap_spec_axes(spec, dim) >> axis & 1U) != 0) {
                made.axes[dim][made.axis_count[dim]++] = (uint8_t)axis;
            }
        }
    }
    return made;
}

char *ap_spec_format(ap_spec_t spec, int rank, char *buffer, size_t size)
{
    const xm_spec_t unpacked = ap_spec_unpack(spec, rank);
    char text[XM_SPEC_TEXT];

    (void)snprintf(buffer, size, "%s", xm_spec_format(&unpacked, text));
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

/* Packs a dimension. The checks are what the word cannot say: an axis twice, or axes out of order,
 * would be read as another spec. */
static xm_status_t pack_dim(const char *text, const xm_spec_t *parsed, int dim, int mesh_rank,
                            ap_spec_t *spec)
{
    unsigned axes = 0;

    for (int i = 0; i < parsed->axis_count[dim]; ++i) {
        int axis = parsed->axes[dim][i];

        if (axis >= mesh_rank) {
            return XM_INVALID("spec '%s': dimension %d is cut over axis %d, the mesh has %d", text,
                              dim, axis, mesh_rank);
        }
        if (((ap_spec_used_axes(*spec) | axes) >> axis & 1U) != 0) {
            return XM_INVALID("spec '%s': dimension %d uses axis %d a second time", text, dim,
                              axis);
        }
        if (axes >> axis != 0) {
            return XM_INVALID("spec '%s': the axes of dimension %d do not ascend", text, dim);
        }
        axes |= 1U << axis;
    }
    *spec = ap_spec_with(*spec, dim, axes);
    return XM_OK;
}

/* *spec is written only when the whole text is sound. */
xm_status_t ap_spec_parse(const char *text, int rank, int mesh_rank, ap_spec_t *spec)
{
    ap_spec_t packed = AP_SPEC_REPLICATED;
    xm_spec_t parsed;
    XM_TRY(xm_spec_parse(text, &parsed));

    if (parsed.dims != rank) {
        return XM_INVALID("spec '%s' has %d dimensions, the tensor has %d", text, parsed.dims,
                          rank);
    }
    for (int dim = 0; dim < rank; ++dim) {
        XM_TRY(pack_dim(text, &parsed, dim, mesh_rank, &packed));
    }
    *spec = packed;
    return XM_OK;
}

ap_spec_t ap_spec_resting(int rank, const int64_t *dims, const int mesh[2], unsigned axes)
{
    unsigned cut = 0;
    int64_t left = rank > 1 ? dims[0] : 1;

    for (unsigned a = 0; a < 2; ++a) {
        if ((axes >> a & 1U) != 0 && mesh[a] > 1 && left % mesh[a] == 0) {
            cut |= 1U << a;
            left /= mesh[a];
        }
    }
    return cut != 0 ? ap_spec_with(AP_SPEC_REPLICATED, 0, cut) : AP_SPEC_REPLICATED;
}
