/* Link loads are part of a plan: the public header. */
#ifndef AP_PLANNER_LINK_LOAD_H
#define AP_PLANNER_LINK_LOAD_H

#include <autopar/plan.h>

#endif
