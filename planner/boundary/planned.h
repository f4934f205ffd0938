/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planned.h
 * What the resharding between two stages takes, planned and simulated: some milliseconds of work.
 * Not installed.
 */
#pragma once

#include "planner/boundary.h"

/** Costs of both directions, and the links that they occupy: an array that the caller frees.
 * Something passes. Threads: no shared state. */
xm_status_t ap_cross_mesh_plan(const xm_cluster_profile_t *profile,
                               const ap_cross_mesh_transfer_t *transfer, ap_cross_mesh_cost_t *cost,
                               ap_link_load_t **links, int *link_count);
