/* SPDX-License-Identifier: Apache-2.0 */
/* All front ends behind one function: the public header, and what the tools ask besides. */
#pragma once

#include <autopar/frontend.h>

#include "planner/frontend/common.h"
#include "planner/graph.h"

/** Whether a model is a file, or was meant to be one, rather than the name of a built-in model. */
bool ap_frontend_is_file(const char *model);
