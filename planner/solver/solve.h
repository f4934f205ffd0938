/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/solver/solve.h
 * Solves a cost function network under a usage limit (planner/solver/network/network.h), anytime
 * and with a bound.
 *
 * The problem is first made smaller without losing its optimum (planner/solver/reduce.h).
 * One thread then improves a lower bound by message passing and prices on usage, and proves
 * optimality by branch and bound where that is in reach; the others, and it when it has done,
 * search neighbourhoods whose best values they find by elimination.
 *
 * Threads: no shared state between calls. The search is seeded, but what several threads find in a
 * given time differs from run to run; one thread takes the same way with the same seed, and comes
 * to the same end where its work is limited and the time suffices for that. Where the optimum is
 * proved, one of those that cost the same is chosen that depends on the problem alone, if it is
 * found soon.
 */
#pragma once

#include "planner/solver/network.h"

typedef struct ap_cfn_progress {
    double seconds; /**< since the start */
    int variables;  /**< after the presolve */
    double cost;    /**< of the best solution; HUGE_VAL: none yet */
    double bound;   /**< on the cost of every solution; -HUGE_VAL: none yet */
    int64_t nodes;  /**< of branch and bound */
} ap_cfn_progress_t;

typedef struct ap_cfn_options {
    double seconds; /**< for everything; 0 means 60 */
    double work; /**< with one thread: seconds of a usual core, counted in cells; 0: any number */
    double gap;  /**< a solution within this part of the bound ends the search; 0: a proof */
    bool any;    /**< any of the optima will do: nothing is done to return the same again */
    int threads; /**< 0 means one per core that the process may use */
    uint64_t seed;
    const int *start; /**< NULL, or a choice to begin with, a solution or not */
    /** NULL, or a file for a certificate, which takes up to as much time again */
    const char *certificate;
    size_t cells; /**< that a pass of elimination may look at; 0 means thirty million */
    /** NULL, or called about once a second from the calling thread. */
    void (*progress)(void *context, const ap_cfn_progress_t *progress);
    void *context;
} ap_cfn_options_t;

#define AP_CFN_OPTIONS_INIT                                                                        \
    {                                                                                              \
        0                                                                                          \
    }

typedef struct ap_cfn_result {
    ap_cfn_value_t value; /**< of the choice; exact */
    double bound;         /**< no choice that fits costs less */
    bool optimal;         /**< proved, up to rounding far below 1 */
    double certified;     /**< the bound in the certificate */
    bool certified_late;  /**< the clock has ended the certificate: another may prove more */
    bool counted;         /**< one thread, and no clock has ended it: its seed gives this again */
    bool repeatable;      /**< the same whatever the seed, the threads and the time */
    double seconds;
    int variables, links, times; /**< after the presolve */
    int64_t nodes;               /**< of branch and bound */
} ap_cfn_result_t;

/**
 * Writes one strategy per node into @p choice. XM_ERR_NO_SOLUTION when there is none of finite cost
 * within the limit; XM_ERR_TIMEOUT when none was found in time.
 */
xm_status_t ap_cfn_solve(const ap_cfn_t *cfn, const ap_cfn_options_t *options, int *choice,
                         ap_cfn_result_t *result);
