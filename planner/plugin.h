/* SPDX-License-Identifier: Apache-2.0 */
/* Planners as commands, both ways: asking one is in the public header, and what ours answers is a
 * request. */
#pragma once

#include "planner/plugin/request.h"

#include <autopar/planner_command.h>
