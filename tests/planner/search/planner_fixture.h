/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner_fixture.h
 * A cluster profile with round numbers for the planner's tests.
 */
#pragma once

#include "comm/profile/cluster_profile.h"
#include "planner/plan/schedule.h"

/** hosts x devices, 50 GFLOP/s and @p memory bytes each; 5 GB/s inside a host, 1 GB/s across. */
xm_cluster_profile_t *planner_fixture_profile(int hosts, int devices, double memory);

/** The same with devices of two kinds: those of the last host do half as much in half the memory.
 */
xm_cluster_profile_t *planner_fixture_two_kinds(int hosts, int devices, double memory);

/** The same with NICs of two rates, 1 GB/s and half of it in turn, in racks of two hosts that share
 * an uplink of 1 GB/s. */
xm_cluster_profile_t *planner_fixture_two_rates(int hosts, int devices, double memory);

/** Hosts that differ: each does @p shares[h] as much as above in as much of the memory, and has a
 * NIC of @p nics[h] bytes/s, in racks of @p hosts_per_rack that share an uplink of 1 GB/s. NULL, or
 * 0 for no racks: all are alike. */
xm_cluster_profile_t *planner_fixture_unequal(int hosts, int devices, double memory,
                                              const double *shares, const double *nics,
                                              int hosts_per_rack);

/** The step of a plan under a schedule, simulated; @p profile as in ap_plan_simulation_t. */
int64_t planner_fixture_step_ns(const ap_plan_t *plan, ap_schedule_kind_t kind,
                                const xm_cluster_profile_t *profile);
