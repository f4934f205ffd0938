/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `dfs` scheduler: the paper's depth-first search with pruning (MLSys'23, section
 * 3.2), put together from greedy, the lower bound and the search of exclusive_search.c.
 * It never returns anything worse than greedy, since the search only replaces a schedule
 * by a shorter one.
 */
#include "resharding/solve/exclusive.h"

#include <stdlib.h>
#include <string.h>

/* Starts from greedy, whose schedule is proved optimal without a search when it meets the
 * bound. What has too many demands to search (exclusive.h) keeps greedy's schedule. */
xm_status_t xm_schedule_dfs(const xm_problem_t *problem, uint64_t seed, int64_t node_budget,
                            xm_step_t *steps, bool *optimal)
{
    xm_step_t *best = malloc(((size_t)problem->count + 1) * sizeof(*best));
    xm_exclusive_t *x = NULL;
    int64_t bound, makespan;
    bool proved = false;
    xm_status_t status;

    /* The search works on a list of its own, so that a failure leaves the caller's steps
     * as they were. */
    XM_NEED_MEMORY(best, "scheduling %lld demands", (long long)problem->count);
    status = xm_schedule_greedy(problem, seed, best);
    XM_THEN(status, xm_steps_makespan(problem, best, &makespan));
    XM_THEN(status, xm_exclusive_create(problem, &x));
    XM_THEN(status, xm_exclusive_bound(x, &bound));
    if (status == XM_OK) {
        proved = makespan <= bound;
    }
    if (status == XM_OK && !proved) {
        status = xm_exclusive_search(x, node_budget, bound, best, makespan, &proved);
    }
    if (status == XM_OK) {
        memcpy(steps, best, (size_t)problem->count * sizeof(*steps));
        *optimal = proved;
    }
    xm_exclusive_destroy(x);
    free(best);
    return status;
}
