/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file search.h
 * The face of planner/search/: other rooms include this header and none of the folder. The search
 * for the best plan: micro-batches, orders of hosts, cases in batches.
 */
#pragma once

#include "planner/search/case.h"
#include "planner/search/curve.h"
#include "planner/search/params.h"
#include "planner/search/planner.h"
#include "planner/search/rent.h"
