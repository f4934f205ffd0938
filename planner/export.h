/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file export.h
 * The face of planner/export/: other rooms include this header and none of the folder. Writes a
 * plan's shardings for JAX, XLA and PyTorch.
 */
#pragma once

#include "planner/export/flexflow.h"
#include "planner/export/hlo.h"
#include "planner/export/jax.h"
#include "planner/export/plan.h"
#include "planner/export/torch.h"
