/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file boundary.h
 * The resharding between two stages of a parallel plan, as a case.
 */
#pragma once

#include "bench/cases/case.h"

/**
 * Reads boundary @p index (between stages index and index + 1) of the parallel plan in @p path
 * (docs/plan.md). Ranks, mesh shapes, specs, tensor, strategy and scheduler are the plan's.
 */
xm_status_t rb_boundary_load(const char *path, int index, rb_case_t *result);
