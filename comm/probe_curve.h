/**
 * @file probe_curve.h
 * From single times to a curve: sizes, median, monotone smoothing. Internal to the probe.
 */
#ifndef XM_COMM_PROBE_CURVE_H
#define XM_COMM_PROBE_CURVE_H

#include "comm/cluster_profile.h"

enum { XM_PROBE_MAX_POINTS = 24 };

/** Sizes 8, 64, 256, … × 4 up to @p max_bytes (at least 64); returns how many. */
int xm_probe_sizes(uint64_t max_bytes, uint64_t sizes[XM_PROBE_MAX_POINTS]);

/** Median (mean of the middle two); sorts @p values. */
double xm_probe_median(double *values, int count);

/**
 * Makes the times of a curve non-decreasing, as near as possible in the sense of least squares
 * (isotonic regression, pool adjacent violators). If the last times come out equal only the
 * largest size of them is kept, so that the curve ends rising. Returns the new number of points.
 */
int xm_probe_smooth(xm_curve_point_t *curve, int points);

#endif
