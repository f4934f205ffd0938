/* What planner plug-ins and their hosts see: the public header. */
#ifndef AP_PLANNER_PLANNER_PLUGIN_H
#define AP_PLANNER_PLANNER_PLUGIN_H

#include <autopar/planner_plugin.h>

#endif
