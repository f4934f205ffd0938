/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file curve.h
 * A measured curve bytes → seconds: points, and what lies between and beyond them.
 *
 * Bytes rise from point to point, seconds never fall, and the last time is longer than the one
 * before, because its slope prices larger messages. A *spread* may stand beside every point: half
 * the width of the 95 % confidence interval of the measured time, as a part of it (0.02 is ± 2 %).
 *
 * Threads: no shared state.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"

/** One point of a curve: a message (or a collective) of @p bytes takes @p seconds. */
typedef struct xm_curve_point {
    uint64_t bytes;
    double seconds;
} xm_curve_point_t;

/** Refuses a curve that is not as said above; the sentence starts with @p name. @p spread may be
 * NULL. Times are compared as a file holds them, with 12 significant digits. */
xm_status_t xm_curve_check(const char *name, const xm_curve_point_t *points, const double *spread,
                           size_t count);

/** Seconds at @p bytes: linear interpolation between points, the first point's time below the
 * first, the last segment's slope above the last. */
double xm_curve_seconds(const xm_curve_point_t *points, size_t count, double bytes);

/** @p value as a file holds it: 12 significant digits. */
double xm_curve_rounded(double value);
