/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file elimination.h
 * The face of planner/solver/elimination/: other rooms include this header and none of the folder.
 * Exact minimisation over a network, by eliminating its variables: the one kernel of all exact
 * searches.
 */
#pragma once

#include "planner/solver/elimination/elimination.h"
