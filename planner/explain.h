/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file explain.h
 * The face of planner/explain/: other rooms include this header and none of the folder. Why a plan
 * is what it is, what came second; and an independent check that a plan is one.
 */
#pragma once

#include "planner/explain/explain.h"
#include "planner/explain/verify.h"
