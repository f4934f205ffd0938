/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The curve of step time against memory: the search for the fastest plan, again and again with less
 * memory. Each is a whole search, because a smaller limit changes which stages, meshes and numbers
 * of micro-batches are worth a look. That its plan is no faster follows from the search before, up
 * to what a search leaves open, so plans that turn out to be beaten are dropped.
 */

#include "planner/search/curve.h"

#include <math.h>
#include <stdlib.h>

#include "comm/base.h"

/* Less memory by this part is less. */
static const double APART = 1e-3;

/* Takes a plan with less memory than all others over; those that are no faster are beaten by it. */
static xm_status_t take_over(ap_planner_curve_t *curve, ap_plan_t *plan)
{
    ap_plan_t **grown = realloc(curve->plans, ((size_t)curve->count + 1) * sizeof(ap_plan_t *));

    if (grown == NULL) {
        ap_plan_destroy(plan);
        return XM_NO_MEMORY("%d plans", curve->count + 1);
    }
    curve->plans = grown;
    while (curve->count > 0 &&
           ap_plan_info(grown[curve->count - 1])->step >= ap_plan_info(plan)->step) {
        ap_plan_destroy(grown[--curve->count]);
    }
    grown[curve->count++] = plan;
    return XM_OK;
}

/* Adds the fastest plan within so many bytes and lowers them below what it takes, so the walk ends.
 * A later search that time has ended proves nothing, and its plan is left out. */
static xm_status_t add_fastest(const ap_planner_params_t *params, double *cap,
                               ap_planner_curve_t *curve)
{
    ap_planner_result_t result;
    xm_status_t status = XM_OK;

    XM_TRY(ap_planner_run_within(params, *cap, &result));
    curve->stopped = result.stopped;
    if (!result.stopped || *cap == 0.0) {
        *cap = fmin(*cap > 0.0 ? *cap : INFINITY, ap_plan_memory(result.plan)) * (1.0 - APART);
        status = take_over(curve, result.plan);
        result.plan = NULL;
    }
    ap_planner_result_clear(&result);
    return status;
}

xm_status_t ap_planner_curve(const ap_planner_params_t *params, ap_planner_curve_t *curve)
{
    ap_planner_params_t within = *params;
    double begin = xm_clock_seconds(), cap = 0.0;
    xm_status_t status = XM_OK;

    *curve = (ap_planner_curve_t){0};
    while (status == XM_OK && !curve->stopped) {
        status = add_fastest(&within, &cap, curve);
        if (params->time_limit > 0.0) {
            within.time_limit = fmax(begin + params->time_limit - xm_clock_seconds(), 1e-9);
        }
    }
    curve->stopped = curve->stopped || status == XM_ERR_TIMEOUT;
    if (curve->count > 0 && (status == XM_ERR_NO_SOLUTION || status == XM_ERR_TIMEOUT)) {
        return XM_OK;
    }
    if (status != XM_OK) {
        ap_planner_curve_clear(curve);
    }
    return status;
}

void ap_planner_curve_clear(ap_planner_curve_t *curve)
{
    for (int i = 0; i < curve->count; ++i) {
        ap_plan_destroy(curve->plans[i]);
    }
    free(curve->plans);
    *curve = (ap_planner_curve_t){0};
}
