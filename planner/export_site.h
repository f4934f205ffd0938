/* Solutions looked at from a place in HLO text. Private to the exports. */
#ifndef AP_PLANNER_EXPORT_SITE_H
#define AP_PLANNER_EXPORT_SITE_H

#include "planner/hlo_source.h"
#include "planner/shard_solution.h"

/* Spec in which an instruction uses one of its operands. False when that operand needs no data, or
 * the instruction is not one operator. */
bool ap_export_site_used(const ap_shard_solution_t *solution, const hlo_site_t *site, int operand,
                         ap_spec_t *spec);

#endif
