/* SPDX-License-Identifier: Apache-2.0 */
/* Curves of time over bytes. They rise strictly at the end and never fall, which is checked
 * when a curve is made, so that no caller has to handle infinite rates or times that shrink.
 * Times are rounded to 12 digits where they are compared, because they are written to files
 * with as many: what passes before writing must pass after reading. */
#include "comm/profile/curve.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_POINTS = 1 << 16 };

double xm_curve_rounded(double value)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%.12g", value);
    return strtod(text, NULL);
}

/* Checks a curve point by point; the sentence has the first point that is wrong. */
xm_status_t xm_curve_check(const char *name, const xm_curve_point_t *points, const double *spread,
                           size_t count)
{
    double last = 0;

    if (points == NULL || count < 2 || count > MAX_POINTS) {
        return XM_INVALID("%s has %zu points; it needs 2 to %d", name,
                          points == NULL ? (size_t)0 : count, MAX_POINTS);
    }
    for (size_t i = 0; i < count; ++i) {
        double seconds = xm_curve_rounded(points[i].seconds);

        if (!isfinite(seconds) || seconds <= 0) {
            return XM_INVALID("%s[%zu]: %g seconds; a time must be positive", name, i,
                              points[i].seconds);
        }
        if (points[i].bytes > INT64_MAX) {
            return XM_INVALID("%s[%zu]: %" PRIu64 " bytes; the most is %" PRId64, name, i,
                              points[i].bytes, INT64_MAX);
        }
        if (i > 0 && points[i].bytes <= points[i - 1].bytes) {
            return XM_INVALID("%s[%zu]: %" PRIu64 " bytes after %" PRIu64 "; bytes must rise", name,
                              i, points[i].bytes, points[i - 1].bytes);
        }
        if (seconds < last) {
            return XM_INVALID("%s[%zu]: %g seconds after %g; times must not fall", name, i, seconds,
                              last);
        }
        if (i == count - 1 && seconds <= last) {
            return XM_INVALID("%s: the last two times are equal; the last must be longer, because "
                              "its slope prices larger messages",
                              name);
        }
        if (spread != NULL && (!isfinite(spread[i]) || spread[i] < 0)) {
            return XM_INVALID("%s[%zu]: a spread of %g; it must not be negative", name, i,
                              spread[i]);
        }
        last = seconds;
    }
    return XM_OK;
}

/* The time of a size: linear between points, constant below the first, and beyond the last with
 * the last slope. A binary search finds the segment. */
double xm_curve_seconds(const xm_curve_point_t *points, size_t count, double bytes)
{
    size_t low = 1;
    double span, slope;

    if (bytes <= (double)points[0].bytes) {
        return points[0].seconds;
    }
    /* Finds the segment low … low + 1 that holds the size, or the last one. */
    XM_BISECT(size_t, i, low, count - 1, (double)points[i].bytes <= bytes);
    --low;
    span = (double)(points[low + 1].bytes - points[low].bytes);
    slope = (points[low + 1].seconds - points[low].seconds) / span;
    return points[low].seconds + (bytes - (double)points[low].bytes) * slope;
}
