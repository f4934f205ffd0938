/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A concave function of a few prices, seen from above: the least of the linear functions that are
 * known to be above it. Private to the planner.
 *
 * Where a plan is cheapest at some prices, its own cost at other prices is such a function; the
 * prices at which the least of them is largest are the next to be tried (cutting planes: Kelley,
 * "The cutting-plane method for solving convex programs", 1960).
 */
#pragma once

enum { AP_CUT_PRICES = 16, AP_CUT_PLANES = 64 };

typedef struct ap_cut_model {
    int prices, planes;
    double constant[AP_CUT_PLANES];
    double slope[AP_CUT_PLANES][AP_CUT_PRICES];
} ap_cut_model_t;

/* The model's largest value where every price is between 0 and its ceiling (above 0), and prices
 * that attain it. There must be a plane. */
double ap_cut_model_maximise(const ap_cut_model_t *model, const double *ceiling, double *price);
