/* The host's side of planner plug-ins: the public header. The library is loaded by a child process,
 * a fork, and all its functions run there. */
#ifndef AP_PLANNER_PLANNER_LIBRARY_H
#define AP_PLANNER_PLANNER_LIBRARY_H

#include "planner/planner.h"

#include <autopar/planner_library.h>

#endif
