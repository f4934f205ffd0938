/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file memory_curve.h
 * How many bytes of one device are in use while each operator runs, by what they are used for.
 *
 * The caller fills a curve in. Threads: values.
 */
#pragma once

#include "planner/intra_op/report.h"

enum { AP_MEMORY_PARTS = 6 };

typedef struct ap_memory_curve {
    int points; /**< operators */
    int parts;
    const char *name[AP_MEMORY_PARTS]; /**< of each part; static */
    double *bytes[AP_MEMORY_PARTS];    /**< per point */
} ap_memory_curve_t;

/** Bytes of the parts up to @p parts at one point; all of them with curve->parts. */
double ap_memory_curve_sum(const ap_memory_curve_t *curve, int point, int parts);

/** The point with the most bytes. */
int ap_memory_curve_peak(const ap_memory_curve_t *curve);

/** Draws the curve as SVG. @p title is the model, @p graph names the operators. */
xm_status_t ap_memory_curve_plot(const ap_memory_curve_t *curve, const ap_graph_t *graph,
                                 const char *title, const char *path);

void ap_memory_curve_destroy(ap_memory_curve_t *curve);
