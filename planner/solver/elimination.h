/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file elimination.h
 * The face of planner/solver/elimination/: other rooms include this header and none of the folder.
 * Bucket elimination of variables, row by row.
 */
#pragma once

#include "planner/solver/elimination/elimination.h"
