/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tiles.h
 * What the verifier checks of tasks before it looks at transfers. Not installed.
 */
#pragma once

#include "resharding/plan/plan.h"

/* Checks tiles, elements and chunks of all tasks, and that they fill the destination tiles. */
xm_status_t xm_verify_tasks(const xm_plan_t *plan);
