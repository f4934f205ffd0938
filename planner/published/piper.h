/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file piper.h
 * The face of planner/published/piper/: other rooms include this header and none of the folder.
 * Piper's two-level search and its input files.
 */
#pragma once

#include "planner/published/piper/import.h"
#include "planner/published/piper/piper.h"
