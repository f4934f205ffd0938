/*
 * Plans within a memory limit by prices on memory. Private.
 *
 * Without its limit a network is easy: like nodes merge and most of it is eliminated. A price per
 * byte at the moments at which plans exceeded the limit keeps it easy, makes plans that use less
 * there, and gives a bound for all plans within the limit: the priced optimum less what the limit
 * would pay. The best prices are found by cutting planes (cut_model.h): what the plans so far would
 * cost at other prices tells which to try next.
 */
#ifndef AP_PLANNER_SHARD_PRICE_H
#define AP_PLANNER_SHARD_PRICE_H

#include "planner/cfn_solve.h"
#include "planner/shard_network.h"

/*
 * Spends about `seconds`. XM_OK: `choice` fits, `result` says what it costs. XM_ERR_TIMEOUT: none
 * was found that does. `bound` is raised to the best found (in the network's unit) either way.
 */
xm_status_t ap_shard_price_solve(const ap_shard_network_t *network,
                                 const ap_shard_options_t *options, double seconds, int *choice,
                                 ap_cfn_result_t *result, double *bound);

#endif
