/* SPDX-License-Identifier: Apache-2.0 */
/* Verification: the public header, with the profile of the inside. */
#pragma once

#include "planner/plan.h"
#include "planner/search.h"

#include <autopar/verify.h>
