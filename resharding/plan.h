/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plan.h
 * The face of resharding/plan/: other rooms include this header and none of the folder. Plans of
 * byte moves: strategies make transfers of tasks, a schedule orders them, a verifier checks them, a
 * simulator times them.
 */
#pragma once

#include "resharding/plan/plan.h"
#include "resharding/plan/simulate.h"
