/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans within a memory limit by prices on memory. Private.
 *
 * Without its limit a network is easy: like nodes merge and most of it is eliminated. A price per
 * byte at the moments at which plans exceeded the limit keeps it easy, makes plans that use less
 * there, and gives a bound for all plans within the limit: the priced optimum less what the limit
 * would pay. The best prices are found by cutting planes (cut_model.h): what the plans so far would
 * cost at other prices tells which to try next.
 */
#pragma once

#include "planner/solver.h"
#include "planner/intra_op/network.h"

enum { AP_SHARD_MOMENTS = 16 };

/* A price per byte while an operator runs. */
typedef struct ap_shard_moment {
    int op;
    double price, best; /* now, and of the best bound */
    double ceiling;     /* that it does not rise above next */
} ap_shard_moment_t;

/* Prices to begin with, and then those of the best bound; of another network of the same problem
 * they are near the best ones already. */
typedef struct ap_shard_prices {
    int moments;
    ap_shard_moment_t moment[AP_SHARD_MOMENTS];
} ap_shard_prices_t;

/*
 * Spends about `seconds`. XM_OK: `choice` fits, `result` says what it costs. XM_ERR_TIMEOUT: none
 * was found that does. `bound` is raised to the best found (in the network's unit) either way.
 */
xm_status_t ap_shard_price_solve(const ap_shard_network_t *network,
                                 const ap_shard_options_t *options, double seconds,
                                 ap_shard_prices_t *prices, int *choice, ap_cfn_result_t *result,
                                 double *bound);

/*
 * The plan of the least memory that prices find: prices stand for nothing but memory, and go where
 * the plans so far have their peaks. It is one sequence of plans whatever the limit, which only
 * ends it; so where one fits a limit, one fits every larger limit. At least one is made, and none
 * after `end`. XM_ERR_TIMEOUT: none fits.
 */
xm_status_t ap_shard_price_least(const ap_shard_network_t *network,
                                 const ap_shard_options_t *options, double end, int *choice,
                                 ap_cfn_result_t *result);
