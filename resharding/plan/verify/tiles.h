/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tiles.h
 * What the verifier checks of tasks before it looks at transfers. Not installed.
 */
#pragma once

#include "resharding/plan/plan.h"

/* Checks tiles, elements and chunks of all tasks, and that they fill the destination tiles. */
xm_status_t xm_verify_tasks(const xm_plan_t *plan);
/* The same for the formula of a regular plan, all but the transfers between its first hosts. `seen`
 * is scratch by rank. */
xm_status_t xm_verify_formula(const xm_plan_t *plan, int *seen);
