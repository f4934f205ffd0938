/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file flow.h
 * The face of resharding/flow/: other rooms include this header and none of the folder. Maximum
 * flow, and the bound on a distribution that a cut of its network gives.
 */
#pragma once

#include "resharding/flow/flow.h"
#include "resharding/flow/cut_bound.h"
