/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file placement.h
 * The face of planner/published/placement/: other rooms include this header and none of the folder.
 * Device placement of DAGs (Tarnawski and others) and its input files.
 */
#pragma once

#include "planner/published/placement/import.h"
#include "planner/published/placement/placement.h"
