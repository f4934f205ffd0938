/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/search/rent.h
 * The plan that costs least, not the one that is fastest: which hosts of a cluster to pay for, by
 * the prices of their devices, and the best plan on these.
 *
 * Every part of the cluster is planned for: so many hosts of each kind, or so many devices of one
 * host. Of hosts that are alike the first are taken. All devices of a part are paid for as long as
 * a step takes and all are used, so the cheapest plan of a part is its fastest, and the answer is
 * as exact as the planner's for each part. With a lowest throughput, parts that do not reach it are
 * out.
 */
#pragma once

#include "planner/search/planner.h"

typedef struct ap_planner_goal {
    bool cost;             /**< of a step; otherwise its time */
    double min_throughput; /**< samples per second; 0: any */
} ap_planner_goal_t;

/** What is paid for. */
typedef struct ap_planner_rent {
    int hosts, devices; /**< of each host */
    int *host;          /**< [hosts] of the profile, which the plan numbers from 0 on; free() */
    double price;       /**< per hour, of all; 0: the profile has no prices */
    double cost;        /**< of a step */
} ap_planner_rent_t;

/** Plans. XM_ERR_NO_SOLUTION also where no plan is fast enough. After a failure nothing is owned.
 */
xm_status_t ap_planner_run_goal(const ap_planner_params_t *params, const ap_planner_goal_t *goal,
                                ap_planner_result_t *result, ap_planner_rent_t *rent);
