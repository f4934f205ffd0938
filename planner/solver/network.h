/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file network.h
 * The face of planner/solver/network/: other rooms include this header and none of the folder. Cost
 * function networks: variables, unary and pair costs, limits of memory over time; their readers.
 */
#pragma once

#include "planner/solver/network/core.h"
#include "planner/solver/network/network.h"
#include "planner/solver/network/random.h"
#include "planner/solver/network/read.h"
#include "planner/solver/network/shared.h"
