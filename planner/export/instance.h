/* SPDX-License-Identifier: Apache-2.0 */
/* Solutions looked at from a place in HLO text. Private to the exports. */
#pragma once

#include "planner/frontend/hlo.h"
#include "planner/intra_op.h"

/* Spec in which an instruction uses one of its operands. False when that operand needs no data, or
 * the instruction is not one operator. */
bool ap_export_instance_used(const ap_shard_solution_t *solution, const hlo_instance_t *instance,
                             int operand, ap_spec_t *spec);

/*
 * The spec in which a loop carries an array of its state. What comes from outside and is not
 * changed is resharded on the way in, to the one spec that all of the body wants.
 */
ap_spec_t ap_export_instance_carried(const ap_shard_solution_t *solution, const hlo_loop_t *loop,
                                     int array);

/*
 * The way of an array into a loop's state, from the spec it is found in to the one it is carried
 * in: on the way in, or with `round` from the end of the body to its beginning. As below.
 */
int ap_export_instance_way(const ap_shard_solution_t *solution, const hlo_source_t *source,
                           const hlo_loop_t *loop, int array, bool round, ap_spec_t *path);

/* The spec in which the instructions of a context find a tensor: as it is made, or as the loop that
 * they stand in carries it. */
ap_spec_t ap_export_instance_found(const ap_shard_solution_t *solution, const hlo_source_t *source,
                                   int context, int tensor);

/*
 * The specs that a tensor goes through from the one it is found in, which comes first, to `used`,
 * which comes last: one more than the steps of its resharding. Needs AP_MAX_RESHARD_STEPS + 1
 * entries; returns their number.
 */
int ap_export_instance_path(const ap_shard_solution_t *solution, int tensor, ap_spec_t found,
                            ap_spec_t used, ap_spec_t *path);
