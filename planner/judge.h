/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file judge.h
 * The face of planner/judge/: other rooms include this header and none of the folder. Plans beside
 * what training under them really took, and what a runtime adds to prices, fitted to that.
 */
#pragma once

#include "planner/judge/fit.h"
#include "planner/judge/measured.h"
