/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/choice/mcmc.h
 * Metropolis-Hastings over assignments (FlexFlow, Jia, SysML'19): a random variable is proposed a
 * random value, one time in sixteen together with what then suits the variables around it, as far
 * as that goes on changing (its authors propagate an operator's configuration, too); a better
 * assignment is always taken, a worse one with probability exp(-beta * difference / seconds of the
 * best). What exceeds the memory limit is charged with a penalty per byte. The walk returns to the
 * best assignment when the second half of its budget has seen no better one for a tenth of the
 * budget.
 *
 * Deterministic by seed; never worse than the start. Threads: no shared state.
 */
#pragma once

#include "planner/published/choice/network.h"

typedef struct ap_mcmc_params {
    uint64_t seed;       /**< not 0 */
    int64_t proposals;   /**< the budget */
    double beta;         /**< how unwilling it is to get worse */
    double memory_limit; /**< bytes; 0: none */
    double byte_penalty; /**< seconds per byte beyond the limit */
} ap_mcmc_params_t;

#define AP_MCMC_PARAMS_INIT                                                                        \
    {                                                                                              \
        .seed = 1, .proposals = 20000, .beta = 1000, .byte_penalty = 1e-9                          \
    }

/** @p assignment holds the start, then the best found. */
xm_status_t ap_search_mcmc(const ap_cfn_core_t *network, const ap_mcmc_params_t *params,
                           int *assignment);
