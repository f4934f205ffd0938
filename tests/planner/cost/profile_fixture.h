/* SPDX-License-Identifier: Apache-2.0 */
/* A small invented cluster for planner tests: 2 hosts of 4 devices, latencies and bandwidths in
 * round numbers. */
#pragma once

#include "comm/profile/cluster_profile.h"
#include "xm_test.h"

static const xm_curve_point_t fixture_self[] = {{1, 1e-7}, {1 << 20, 1e-4}};
static const xm_curve_point_t fixture_intra[] = {{1, 1e-6}, {1 << 20, 1e-4}, {1 << 24, 1.4e-3}};
static const xm_curve_point_t fixture_inter[] = {{1, 2e-5}, {1 << 20, 4e-4}, {1 << 24, 5.5e-3}};

static inline void fixture_params(xm_cluster_profile_params_t *params)
{
    params->name = "fixture";
    params->provenance = "assumed for a test";
    params->hosts = 2;
    params->devices_per_host = 4;
    params->device.flops = 1e13;
    params->device.memory_bytes = 16e9;
    params->device.memory_bandwidth = 5e11;
    params->nic_bandwidth = 3e9;
    params->curve[XM_LINK_SELF] = fixture_self;
    params->curve_points[XM_LINK_SELF] = 2;
    params->curve[XM_LINK_INTRA_HOST] = fixture_intra;
    params->curve_points[XM_LINK_INTRA_HOST] = 3;
    params->curve[XM_LINK_INTER_HOST] = fixture_inter;
    params->curve_points[XM_LINK_INTER_HOST] = 3;
}

static inline xm_cluster_profile_t *fixture_profile_with(double memory_bandwidth)
{
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;
    xm_cluster_profile_t *profile;

    fixture_params(&params);
    params.device.memory_bandwidth = memory_bandwidth;
    ck_assert_xm_ok(xm_cluster_profile_create(&params, &profile));
    return profile;
}

static inline xm_cluster_profile_t *fixture_profile(void)
{
    return fixture_profile_with(5e11);
}

/* A small generator, so that random tests repeat. */
static inline unsigned fixture_random(unsigned *state)
{
    *state = *state * 1664525U + 1013904223U;
    return *state >> 8;
}
