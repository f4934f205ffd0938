/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file choice.h
 * The face of planner/published/choice/: other rooms include this header and none of the folder.
 * Searches over networks of choices: frontier, random walk, tree, ordering, recursion; completion.
 */
#pragma once

#include "planner/published/choice/completion.h"
#include "planner/published/choice/frontier.h"
#include "planner/published/choice/mcmc.h"
#include "planner/published/choice/mcts.h"
#include "planner/published/choice/network.h"
#include "planner/published/choice/ordering.h"
#include "planner/published/choice/recursive.h"
#include "planner/published/choice/substitution.h"
