/* SPDX-License-Identifier: Apache-2.0 */
/* Lists mappings by going through the parts cell by cell, with what is left of axes and dimensions.
 */
#include "resharding/collective/mapping.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct {
    int axes, dimensions;
    int axis[XM_INTERCONNECT_MOST], dimension[XM_INTERCONNECT_MOST]; /* left */
    xm_mapping_t now, *list;
    int count;
    size_t room;
    bool failed;
} search_t;

static void keep(search_t *search)
{
    search->failed = search->failed || !XM_ARRAY_ROOM(search->list, search->room, search->count);
    if (!search->failed) {
        search->list[search->count++] = search->now;
    }
}

/* The last axis takes what is left of a dimension, and in the last dimension every axis what is
 * left of itself. */
static void fill(search_t *search, int cell)
{
    int a = cell % search->axes, k = cell / search->axes;
    int *axis = &search->axis[a], *dimension = &search->dimension[k];

    if (k == search->dimensions) {
        keep(search);
        return;
    }
    for (int part = 1; part <= *axis && part <= *dimension; ++part) {
        if (*axis % part != 0 || *dimension % part != 0 ||
            (a + 1 == search->axes && part != *dimension) ||
            (k + 1 == search->dimensions && part != *axis)) {
            continue;
        }
        search->now.part[a][k] = part;
        *axis /= part;
        *dimension /= part;
        fill(search, cell + 1);
        *axis *= part;
        *dimension *= part;
    }
}

xm_status_t xm_mappings_list(const xm_interconnect_t *interconnect, const int *size, int axes,
                             xm_mapping_t **mappings, int *count)
{
    search_t search = {.axes = axes, .dimensions = interconnect->dimensions, .now = {.axes = axes}};
    int64_t product = 1;

    for (int a = 0; a < axes; ++a) {
        search.axis[a] = size[a];
        product *= size[a];
    }
    if (axes < 1 || axes > XM_INTERCONNECT_MOST || product != interconnect->devices) {
        return XM_INVALID("1 to %d axes multiply to the %d devices, not to %" PRId64,
                          XM_INTERCONNECT_MOST, interconnect->devices, product);
    }
    for (int k = 0; k < search.dimensions; ++k) {
        search.dimension[k] = interconnect->dimension[k].extent;
    }
    fill(&search, 0);
    if (search.failed) {
        free(search.list);
        return XM_NO_MEMORY("%d mappings", search.count);
    }
    *mappings = search.list;
    *count = search.count;
    return XM_OK;
}

int xm_mapping_factors(const xm_interconnect_t *interconnect, const xm_mapping_t *mapping, int axis,
                       xm_factor_t *factors, int *dimension)
{
    int count = 0, stride = 1;

    for (int k = 0; k < interconnect->dimensions; ++k) {
        int inner = stride;

        for (int a = mapping->axes - 1; a > axis; --a) {
            inner *= mapping->part[a][k];
        }
        if (mapping->part[axis][k] > 1) {
            factors[count] = (xm_factor_t){inner, mapping->part[axis][k], false};
            dimension[count++] = k;
        }
        stride *= interconnect->dimension[k].extent;
    }
    return count;
}
