/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file passes.h
 * The face of planner/passes/: other rooms include this header and none of the folder. What makes
 * one graph of another: training step, forward pass, fusion of elementwise operators, layers.
 */
#pragma once

#include "planner/passes/elementwise_fusion.h"
#include "planner/passes/forward_pass.h"
#include "planner/passes/layering.h"
#include "planner/passes/training.h"
