/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cross_mesh_bound.h
 * What the resharding between two stages takes at least, without planning it: a microsecond where a
 * plan takes milliseconds. Not installed.
 */
#pragma once

#include <stdbool.h>

#include "planner/boundary.h"

/**
 * Seconds that ap_cross_mesh_cost() says at least for one direction of one tensor of a transfer, of
 * its gradient with @p back: what the NICs of the hosts must take in and give out, and what the
 * messages of the average device take by the measured curves. Conditions on the sides are not
 * checked.
 */
double ap_cross_mesh_bound(const xm_cluster_profile_t *profile,
                           const ap_cross_mesh_transfer_t *transfer, int tensor, bool back);
