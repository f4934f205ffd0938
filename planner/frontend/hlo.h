/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file hlo.h
 * The face of planner/frontend/hlo/: other rooms include this header and none of the folder. Reads
 * XLA's HLO text.
 */
#pragma once

#include "planner/frontend/hlo/attribute.h"
#include "planner/frontend/hlo/hlo.h"
#include "planner/frontend/hlo/source.h"
