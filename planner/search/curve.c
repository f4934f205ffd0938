/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The curve of step time against memory: the search for the fastest plan, again and again with less
 * memory. Each is a whole search, because a smaller limit changes which stages, meshes and numbers
 * of micro-batches are worth a look.
 */

#include "planner/search/curve.h"

#include <math.h>

#include "comm/base.h"

typedef struct walk {
    ap_planner_params_t params;
    double deadline; /* of the monotonic clock; INFINITY: none */
    bool stopped;    /* the first search has ended early */
} walk_t;

static xm_status_t fastest(void *arg, double cap, ap_pareto_point_t *point)
{
    walk_t *walk = arg;
    ap_planner_result_t result;
    xm_status_t status;

    /* The first search has a plan whatever its time. */
    if (walk->deadline < INFINITY) {
        walk->params.time_limit = fmax(walk->deadline - xm_clock_seconds(), 1e-9);
    }
    status = ap_planner_run_within(&walk->params, cap, &result);
    if (status != XM_OK) {
        return status;
    }
    if (result.stopped && cap > 0.0) { /* its plan may be far from the fastest */
        ap_planner_result_clear(&result);
        return xm_error_set(XM_ERR_TIMEOUT, "time is up");
    }
    walk->stopped = result.stopped;
    *point = (ap_pareto_point_t){ap_plan_memory(result.plan), ap_plan_info(result.plan)->step,
                                 result.plan};
    result.plan = NULL;
    ap_planner_result_clear(&result);
    return XM_OK;
}

static void release(void *of)
{
    ap_plan_destroy(of);
}

xm_status_t ap_planner_curve(const ap_planner_params_t *params, ap_pareto_t *curve)
{
    walk_t walk = {.params = *params, .deadline = INFINITY};
    const ap_pareto_search_t search = {fastest, release, &walk};
    xm_status_t status;

    if (params->time_limit > 0.0) {
        walk.deadline = xm_clock_seconds() + params->time_limit;
    }
    status = ap_pareto_walk(&search, curve);
    curve->stopped = curve->stopped || walk.stopped;
    return status;
}

void ap_planner_curve_clear(ap_pareto_t *curve)
{
    const ap_pareto_search_t search = {.release = release};

    ap_pareto_clear(&search, curve);
}
