/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/export/plan.h
 * A parallel plan (plan.h) in the words of JAX, PyTorch and XLA: per stage its mesh, its devices
 * and the shardings of its operators, and how tensors pass between stages.
 *
 * `jax` is a Python module with PartitionSpecs, `torch` JSON with DTensor placements, `hlo` the
 * same JSON with XLA's sharding attributes. Operators are told by layer and name, as in the plan.
 */
#pragma once

#include "planner/cost.h"

#include <autopar/export.h>

#include <stdio.h>

#include "planner/plan.h"

xm_status_t ap_export_plan(const ap_plan_t *plan, ap_export_form_t form, FILE *stream);
