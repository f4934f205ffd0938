/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cross_mesh_bound.h
 * What the resharding between two stages takes at least, without planning it: a microsecond where a
 * plan takes milliseconds. Not installed.
 */
#pragma once

#include "planner/boundary.h"

/**
 * Seconds that ap_cross_mesh_cost() says at least for one direction, @p from to @p to: what the
 * NICs of the hosts must take in and give out, and what the messages of the average device take by
 * the measured curves. Conditions on the sides are not checked.
 */
double ap_cross_mesh_bound(const xm_cluster_profile_t *profile, const ap_shape_t *shape,
                           int element_size, const ap_cross_mesh_side_t *from,
                           const ap_cross_mesh_side_t *to);
