/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plan_lists.h
 * The lists of a plan that is not regular (resharding/plan/regular/regular.h), for tests that go
 * through them.
 */
#pragma once

#include "resharding/plan/plan_private.h"

static inline const xm_unit_task_t *plan_tasks(const xm_plan_t *plan, int64_t *count)
{
    *count = xm_plan_task_count(plan);
    return plan->tasks;
}

static inline const xm_transfer_t *plan_transfers(const xm_plan_t *plan, int64_t *count)
{
    *count = xm_plan_transfer_count(plan);
    return plan->builder.transfers;
}
