/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file common.h
 * The face of planner/frontend/common/: other rooms include this header and none of the folder.
 * What the readers of several formats share: mapped files, and notes on what a model's file left
 * open.
 */
#pragma once

#include "planner/frontend/common/file.h"
#include "planner/frontend/common/notes.h"
