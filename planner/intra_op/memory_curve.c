/*
 * A memory curve as a value: its sums and its peak, for figures. The command fills it in from what
 * planner/intra_op/network.c counts for the solver.
 */

#include "planner/intra_op/memory_curve.h"

#include <stdlib.h>

double ap_memory_curve_sum(const ap_memory_curve_t *curve, int point, int parts)
{
    double sum = 0;

    for (int part = 0; part < parts; ++part) {
        sum += curve->bytes[part][point];
    }
    return sum;
}

/* The first one, if several points have the most. */
int ap_memory_curve_peak(const ap_memory_curve_t *curve)
{
    double most = -1;
    int peak = 0;

    for (int o = 0; o < curve->points; ++o) {
        double bytes = ap_memory_curve_sum(curve, o, curve->parts);

        if (bytes > most) {
            most = bytes;
            peak = o;
        }
    }
    return peak;
}

void ap_memory_curve_destroy(ap_memory_curve_t *curve)
{
    if (curve != NULL) {
        for (int part = 0; part < curve->parts; ++part) {
            free(curve->bytes[part]);
        }
        free(curve);
    }
}
