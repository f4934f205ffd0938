/* Solutions looked at from a place in HLO text. Private to the exports. */
#ifndef AP_PLANNER_EXPORT_SITE_H
#define AP_PLANNER_EXPORT_SITE_H

#include "planner/hlo_source.h"
#include "planner/shard_solution.h"

/* Spec in which an instruction uses one of its operands. False when that operand needs no data, or
 * the instruction is not one operator. */
bool ap_export_site_used(const ap_shard_solution_t *solution, const hlo_site_t *site, int operand,
                         ap_spec_t *spec);

/*
 * The specs that a tensor goes through from the one it is made in, which comes first, to `used`,
 * which comes last: one more than the steps of its resharding. Needs AP_MAX_RESHARD_STEPS + 1
 * entries; returns their number.
 */
int ap_export_site_path(const ap_shard_solution_t *solution, int tensor, ap_spec_t used,
                        ap_spec_t *path);

#endif
