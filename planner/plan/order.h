/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/plan/order.h
 * Plans whose stages take the cluster's hosts in an order of their own, and how those who read a
 * plan beside a cluster profile look at the two.
 *
 * Stages are found and priced on consecutive devices, so wherever a plan has a `host_order`, plan
 * and profile are seen with their hosts numbered in that order: a view. Nothing else has to know of
 * the order; what is printed and run has the cluster's own ranks. Threads: no shared state. Not
 * installed.
 */
#pragma once

#include "comm/profile.h"
#include "planner/plan/plan.h"

/** A plan and its profile with the plan's hosts in their order. Without a host_order these are the
 * caller's own, borrowed. */
typedef struct ap_plan_view {
    const ap_plan_t *plan;
    const xm_cluster_profile_t *profile;
    ap_plan_t *own_plan;
    xm_cluster_profile_t *own_profile;
} ap_plan_view_t;

/** XM_ERR_MISMATCH: the profile has another number of hosts, or devices of each, than the plan;
 * XM_ERR_INVALID_ARGUMENT: its racks cannot stand so. Close it also after a failed open. */
xm_status_t ap_plan_view_open(const ap_plan_t *plan, const xm_cluster_profile_t *profile,
                              ap_plan_view_t *view);
void ap_plan_view_close(ap_plan_view_t *view);

/**
 * A plan that was made on a view as one of the cluster: its host i is host @p order[i] there.
 * @p per_rack: hosts of a rack, 0 without racks. The order that the hosts stand in anyway is none.
 */
xm_status_t ap_plan_place(const ap_plan_t *plan, const int *order, int per_rack,
                          ap_plan_t **result);

/** The same plan with another line on how it was found. */
xm_status_t ap_plan_note(const ap_plan_t *plan, const char *optimiser, double bound,
                         ap_plan_t **result);
