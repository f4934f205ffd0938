/* Verification: the public header, with the profile of the inside. */
#ifndef AP_PLANNER_PLAN_VERIFY_H
#define AP_PLANNER_PLAN_VERIFY_H

#include "planner/plan.h"
#include "planner/planner.h"

#include <autopar/verify.h>

#endif
