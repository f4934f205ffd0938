/**
 * @file common.h
 * The face of planner/frontend/common/: other rooms include this header and none of the folder.
 * What the readers of several formats share: an arena, mapped files, and notes on what a model's
 * file left open.
 */
#ifndef AP_PLANNER_FRONTEND_COMMON_H
#define AP_PLANNER_FRONTEND_COMMON_H

#include "planner/frontend/common/arena.h"
#include "planner/frontend/common/file.h"
#include "planner/frontend/common/notes.h"

#endif
