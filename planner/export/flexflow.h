/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/export/flexflow.h
 * A plan's operators as FlexFlow's strategy file has them: their number, then of each its name, the
 * type of its devices (0: GPU), the number of dimensions of its output, their degrees with the last
 * dimension first, the number of parts and the device of each, the first degree fastest. Separated
 * by white space. A name begins with the
 * number of the layer and of the operator in it: 3.4.block3.qkv.
 */
#pragma once

#include <stdio.h>

#include <autopar/plan.h>

/** Parts that are repeated on several devices have the first of them. */
xm_status_t ap_export_flexflow(const ap_plan_t *plan, FILE *stream);
