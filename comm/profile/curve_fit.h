/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file curve_fit.h
 * From single times to a curve: sizes, median and its confidence, monotone smoothing. Internal.
 */
#pragma once

#include "comm/profile/curve.h"

/* Points of a curve that the probe measures, and of one that can be smoothed. */
enum { XM_CURVE_MAX_POINTS = 24, XM_PROBE_MAX_SMOOTH = 256 };

/** Sizes 8, 64, 256, … × 4 up to @p max_bytes (at least 64); returns how many. */
int xm_curve_sizes(uint64_t max_bytes, uint64_t sizes[XM_CURVE_MAX_POINTS]);

/**
 * How well @p count values (sorted, as xm_array_median() leaves them) tell their median: half the
 * width of the distribution-free 95 % confidence interval (order statistics), as a part of the
 * median, at most 1. Fewer than 6 values cannot give 95 %; their whole range counts, and of one
 * value nothing is known: 1.
 */
double xm_curve_spread(const double *sorted, int count);

/** A median counts as known when its interval is within ± this part of it. */
#define XM_PROBE_TIGHT 0.02
/** Beyond ± this part a figure is named wherever it is told. */
#define XM_PROBE_LOOSE 0.10

/**
 * Makes the times of a curve non-decreasing, as near as possible in the sense of least squares
 * (isotonic regression, pool adjacent violators). If the last times come out equal only the
 * largest size of them is kept, so that the curve ends rising. @p spread, of each point, follows
 * what is dropped. Returns the new number of points.
 */
int xm_curve_smooth(xm_curve_point_t *curve, double *spread, int points);
