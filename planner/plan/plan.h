/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plan.h
 * How a plan comes into being. What it holds is in the public header.
 */
#pragma once

#include <autopar/plan.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"
#include "planner/pipeline.h"
#include "planner/graph.h"

/** Everything a plan holds, to create one. Copied. There is one boundary less than stages, and then
 * those over stages; `from` and `to` of the others need not be set. */
typedef struct ap_plan_params {
    ap_plan_info_t info;
    const ap_plan_stage_t *stages;
    int stage_count;
    const ap_plan_boundary_t *boundaries;
    int skip_count; /**< boundaries over stages */
} ap_plan_params_t;

#define AP_PLAN_PARAMS_INIT                                                                        \
    {                                                                                              \
        0                                                                                          \
    }

xm_status_t ap_plan_create(const ap_plan_params_t *params, ap_plan_t **plan);

/** What a plan holds, to create another one that differs in something. Borrows the plan's arrays.
 */
ap_plan_params_t ap_plan_params(const ap_plan_t *plan);

/** Seconds a stage takes per micro-batch as the optimiser counts them: forward + backward +
 * (sync + update) / micro-batches. */
double ap_plan_stage_seconds(const ap_plan_t *plan, int index);

/** Bytes that the plan takes of its fullest device. */
double ap_plan_memory(const ap_plan_t *plan);

/** Tensor @p index of those that pass a boundary together: 0 is its first, more_count the last. */
ap_plan_tensor_t ap_plan_boundary_tensor(const ap_plan_boundary_t *boundary, int index);

/** Bytes of all of them. */
int64_t ap_plan_boundary_bytes(const ap_plan_boundary_t *boundary);

/** Which stages recompute: "on", "off", or "in stages 0-3" as far as @p size allows. */
const char *ap_plan_recompute_text(const ap_plan_t *plan, char *text, size_t size);

/** Whether a plan can say how a schedule of this kind places its layers: one stage on a device. */
bool ap_plan_can_have(ap_schedule_kind_t kind);

/** Whether it is one of those that are compared where none is asked for: synchronous, and of an
 * order that is known before it runs. */
bool ap_plan_may_choose(ap_schedule_kind_t kind);
