/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stage.h
 * The face of planner/stage/: other rooms include this header and none of the folder. What a range
 * of layers costs as a pipeline stage on a submesh.
 */
#pragma once

#include "planner/stage/layers.h"
#include "planner/stage/space.h"
#include "planner/stage/stage.h"
