/**
 * @file hlo.h
 * The face of planner/frontend/hlo/: other rooms include this header and none of the folder. Reads
 * XLA's HLO text.
 */
#ifndef AP_PLANNER_FRONTEND_HLO_H
#define AP_PLANNER_FRONTEND_HLO_H

#include "planner/frontend/hlo/attribute.h"
#include "planner/frontend/hlo/hlo.h"
#include "planner/frontend/hlo/source.h"

#endif
