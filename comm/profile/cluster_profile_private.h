/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cluster_profile_private.h
 * What the files that make profiles of profiles share. Not installed.
 */
#pragma once

#include "comm/profile/cluster_profile.h"

/** Everything of a profile, borrowed. */
xm_cluster_profile_params_t xm_cluster_profile_params_of(const xm_cluster_profile_t *profile);
