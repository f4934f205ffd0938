/* SPDX-License-Identifier: Apache-2.0 */
/* The host's side of planner plug-ins: the public header. The library is loaded by a child process,
 * a fork, and all its functions run there. */
#pragma once

#include "planner/search.h"

#include <autopar/planner_library.h>
