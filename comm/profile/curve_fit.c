/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of measured curves: medians, how sure they are, and how to make a curve from
 * noise. Medians are used throughout, since a measurement on a busy machine is disturbed in one
 * direction only. Smoothing is isotonic regression (pool adjacent violators): the rising curve
 * that is nearest to the points, without a model of the network. */
#include "comm/profile/curve_fit.h"

#include <math.h>
#include <stdlib.h>

/* Bytes per second. */
#define FASTEST_LINK 1e12

/* Sizes grow by a factor of four: enough points for a curve, few enough for a short probe. */
int xm_curve_sizes(uint64_t max_bytes, uint64_t sizes[XM_CURVE_MAX_POINTS])
{
    int count = 0;

    sizes[count++] = 8;
    for (uint64_t size = 64; size <= max_bytes && count < XM_CURVE_MAX_POINTS; size *= 4) {
        sizes[count++] = size;
    }
    return count;
}

/* Half the width of a 95 % confidence interval of the median, relative to it. It comes from
 * order statistics alone and assumes no distribution. With fewer than two values nothing is
 * known, which is 1. */
double xm_curve_spread(const double *sorted, int count)
{
    double median = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
    double part = pow(0.5, count), below = part; /* P(Binomial(count, 1/2) <= skipped) */
    int skipped = 0;

    if (count < 2 || median <= 0) {
        return 1;
    }
    /* The interval from value `skipped` to its mirror image misses the median with probability
     * 2 P(Binomial < skipped + 1). */
    while (skipped + 1 < (count + 1) / 2) {
        part *= (double)(count - skipped) / (skipped + 1);
        if (below + part > 0.025) {
            break;
        }
        below += part;
        ++skipped;
    }
    return fmin(1, fmax(median - sorted[skipped], sorted[count - 1 - skipped] - median) / median);
}

/* Makes the times rise. A point that is not above the pool before it is merged with that pool,
 * by the mean, until the pools rise; then each point gets its pool's mean. Points of the last
 * pool are reduced to one, so that the last slope is positive. Returns the number of points
 * left. */
int xm_curve_smooth(xm_curve_point_t *curve, double *spread, int points)
{
    struct {
        double mean;
        int first, count;
    } pool[XM_PROBE_MAX_SMOOTH];
    int pools = 0;

    for (int i = 0; i < points; ++i) {
        pool[pools].mean = curve[i].seconds;
        pool[pools].first = i;
        pool[pools].count = 1;
        ++pools;
        while (pools > 1 && pool[pools - 1].mean <= pool[pools - 2].mean) {
            int both = pool[pools - 2].count + pool[pools - 1].count;

            pool[pools - 2].mean = (pool[pools - 2].mean * pool[pools - 2].count +
                                    pool[pools - 1].mean * pool[pools - 1].count) /
                                   both;
            pool[pools - 2].count = both;
            --pools;
        }
    }
    for (int p = 0; p < pools; ++p) {
        for (int i = 0; i < pool[p].count; ++i) {
            curve[pool[p].first + i].seconds = pool[p].mean;
        }
    }
    if (pools == 1 && points > 1) {
        /* Noise hides the slope altogether. A curve needs one, so it gets that of the fastest link
         * imaginable. */
        curve[1] = curve[points - 1];
        spread[1] = spread[points - 1];
        curve[1].seconds += (double)(curve[1].bytes - curve[0].bytes) / FASTEST_LINK;
        return 2;
    }
    curve[pool[pools - 1].first] = curve[points - 1];
    spread[pool[pools - 1].first] = spread[points - 1];
    return pool[pools - 1].first + 1;
}
