/* SPDX-License-Identifier: Apache-2.0 */
/* Verification: the public header, with the profile of the inside. */
#ifndef AP_PLANNER_EXPLAIN_VERIFY_H
#define AP_PLANNER_EXPLAIN_VERIFY_H

#include "planner/plan.h"
#include "planner/search.h"

#include <autopar/verify.h>

#endif
