/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A case from a parallel plan: what one pipeline stage hands to the next becomes a
 * resharding that can be measured by itself. The plan's own meshes, specs, strategy and
 * scheduler are taken over, so the bench moves exactly what a training step would.
 */
#include "bench/cases/boundary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/plan.h"
#include "resharding/plan.h"

/* A plan's meshes have two axes, and its devices are ranks of the job by number. */
static xm_status_t take_side(const ap_plan_side_t *side, rb_side_t *taken)
{
    taken->axes = 2;
    taken->sizes[0] = side->shape[0];
    taken->sizes[1] = side->shape[1];
    taken->ranks = malloc((size_t)side->device_count * sizeof(int));
    XM_NEED_MEMORY(taken->ranks, "%d ranks", side->device_count);
    memcpy(taken->ranks, side->devices, (size_t)side->device_count * sizeof(int));
    return xm_spec_parse(side->spec, &taken->spec);
}

/* Fills a case from one boundary. On failure the caller clears what was filled so far. */
static xm_status_t take(const ap_plan_t *plan, int index, rb_case_t *result)
{
    const ap_plan_boundary_t *boundary = ap_plan_boundary(plan, index);
    xm_strategy_t strategy;
    xm_scheduler_t scheduler;
    xm_status_t status = rb_case_set_dtype(result, boundary->dtype);

    if (boundary->more_count > 0) {
        return XM_UNSUPPORTED(
            "%d tensors pass there together, and a case is of one; pipeline-bench runs them",
            boundary->more_count + 1);
    }
    (void)snprintf(result->name, sizeof(result->name), "%s:%d", ap_plan_info(plan)->model, index);
    result->ranks_per_host = ap_plan_info(plan)->devices_per_host;
    result->dims = boundary->rank;
    for (int d = 0; d < boundary->rank; ++d) {
        result->shape[d] = boundary->shape[d];
    }
    XM_THEN(status, xm_strategy_parse(boundary->strategy, &strategy));
    XM_THEN(status, xm_scheduler_parse(boundary->scheduler, &scheduler));
    XM_TRY(status);
    result->strategy = (int)strategy;
    result->scheduler = (int)scheduler;
    XM_TRY(take_side(&boundary->src, &result->src));
    return take_side(&boundary->dst, &result->dst);
}

/* The plan is closed again before the case is used; the case owns copies of all it needs. */
xm_status_t rb_boundary_load(const char *path, int index, rb_case_t *result)
{
    ap_plan_t *plan;
    rb_case_t taken = {0};
    xm_status_t status = XM_OK;

    XM_TRY(ap_plan_load(path, &plan));
    if (index >= ap_plan_boundaries(plan)) {
        status = XM_INVALID("%s has %d stages and %d boundaries; there is no boundary %d", path,
                            ap_plan_stages(plan), ap_plan_boundaries(plan), index);
        goto destroy_plan;
    }
    status = take(plan, index, &taken);
    if (status < 0) {
        rb_case_clear(&taken);
        status = xm_error_prefix(status, "%s: boundary %d", path, index);
        goto destroy_plan;
    }
    *result = taken;

destroy_plan:
    ap_plan_destroy(plan);
    return status;
}
