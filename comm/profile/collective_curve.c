/* SPDX-License-Identifier: Apache-2.0 */
/* A measured collective: its kind, the shape of its group and its times. Two curves are about
 * the same thing when kind and shape agree, whatever library was measured; that is how planners
 * look them up. Copies are deep, since curves move between probes, files and profiles that live
 * for different times. */
#include "comm/profile/collective_curve.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 1 << 24 };

const char *xm_collective_name(xm_collective_t kind)
{
    static const char *const names[XM_COLLECTIVE_COUNT] = {"all-gather", "all-reduce",
                                                           "reduce-scatter", "all-to-all"};

    return names[kind];
}

/* Bounded by the check, so the product fits. */
int xm_collective_curve_devices(const xm_collective_curve_t *curve)
{
    return curve->hosts * curve->devices_per_host;
}

bool xm_collective_curve_same(const xm_collective_curve_t *a, const xm_collective_curve_t *b)
{
    return a->kind == b->kind && a->hosts == b->hosts &&
           a->devices_per_host == b->devices_per_host && a->groups_per_host == b->groups_per_host;
}

/* A group has at least two devices, and a name for what was measured, because times of
 * different libraries must not be mixed unawares. */
xm_status_t xm_collective_curve_check(const char *name, const xm_collective_curve_t *curve)
{
    const int sizes[] = {curve->hosts, curve->devices_per_host, curve->groups_per_host};
    static const char *const keys[] = {"hosts", "devices_per_host", "groups_per_host"};

    for (int i = 0; i < 3; ++i) {
        if (sizes[i] < 1 || sizes[i] > MAX_DEVICES) {
            return XM_INVALID("%s.%s is %d; it must be 1 to %d", name, keys[i], sizes[i],
                              MAX_DEVICES);
        }
    }
    if (curve->hosts > MAX_DEVICES / curve->devices_per_host ||
        xm_collective_curve_devices(curve) < 2) {
        return XM_INVALID("%s has a group of %d x %d devices; a collective has 2 to %d", name,
                          curve->hosts, curve->devices_per_host, MAX_DEVICES);
    }
    if (curve->library == NULL || curve->library[0] == '\0') {
        return XM_INVALID("%s.library is empty; it must say what was measured", name);
    }
    return xm_curve_check(name, curve->points, curve->spread, curve->count);
}

void xm_collective_curve_release(xm_collective_curve_t *copy)
{
    free((void *)copy->library);
    free((void *)copy->points);
    free((void *)copy->spread);
    *copy = (xm_collective_curve_t){0};
}

/* Copies all or nothing; times are rounded as in files. */
xm_status_t xm_collective_curve_copy(const xm_collective_curve_t *from, xm_collective_curve_t *to)
{
    xm_curve_point_t *points = calloc(from->count, sizeof(*points));
    double *spread = from->spread != NULL ? calloc(from->count, sizeof(*spread)) : NULL;
    char *library = strdup(from->library);

    if (points == NULL || library == NULL || (from->spread != NULL && spread == NULL)) {
        free(library);
        free(spread);
        free(points);
        return XM_NO_MEMORY("a curve of %zu points", from->count);
    }
    for (size_t i = 0; i < from->count; ++i) {
        points[i].bytes = from->points[i].bytes;
        points[i].seconds = xm_curve_rounded(from->points[i].seconds);
        if (spread != NULL) {
            spread[i] = xm_curve_rounded(from->spread[i]);
        }
    }
    *to = *from;
    to->library = library;
    to->points = points;
    to->spread = spread;
    return XM_OK;
}

void xm_collective_curves_free(xm_collective_curve_t *curves, size_t count)
{
    for (size_t i = 0; i < count; ++i) {
        xm_collective_curve_release(&curves[i]);
    }
    free(curves);
}
