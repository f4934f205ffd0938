/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Neighbourhoods of the best solution, as large as branch and bound can look through. Searches by
 * elimination at prices (planner/solver/local/search.c) are many and small; where the limit binds
 * at many times, what is better differs in more variables than they have, and prices alone do not
 * find what fits. Here the others keep their values, and all of the free ones are decided by a
 * search tree of their own.
 */

#include "planner/solver/tree/neighbours.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver/network.h"
#include "planner/solver/tree/branch.h"

/* Nodes of a tree; the free part grows where that many were enough, and shrinks where not. */
enum { NODES = 150 };
static const double more = 1.2, less = 0.85, least_part = 0.05, most_part = 0.95;
/* Of the values in the mixture that the bound is that of: what the best solution shares with it
 * stays. */
static const double agreed = 0.9;

/* Frees either a piece of the model, as neighbouring numbers are neighbouring operators, or what
 * is chosen otherwise in the mixture of the bound, and a random part of the rest. */
static void choose(const ap_cfn_dual_t *root, const int *best, ap_cfn_neighbours_t *self,
                   bool *keep)
{
    const ap_cfn_core_t *core = root->core;
    int count = (int)(self->part * core->variables) + 1;
    bool piece = ap_cfn_random_unit(&self->random) < 0.5;
    int first = (int)(ap_cfn_random_unit(&self->random) * (core->variables - count + 1));

    /* What the mixture agrees with the best solution in is likely to be right, and what it does not
     * is where the limit makes it choose: those are four times as likely to be free. */
    for (int v = 0; v < core->variables; ++v) {
        size_t at = root->at[v];
        double chance =
            root->share[at + (size_t)best[v]] < agreed ? 2.0 * self->part : 0.5 * self->part;
        bool is_free =
            piece ? v >= first && v < first + count : ap_cfn_random_unit(&self->random) < chance;

        for (int x = 0; x < core->variable[v].size; ++x) {
            keep[at + (size_t)x] = is_free || x == best[v];
        }
    }
}

/* One tree after the other, each around the best solution of the moment, which may be another
 * thread's. Trees share nothing, as their free variables differ; what they find is offered at once.
 * Work is counted as in all trees, so equal seeds take the same way. */
xm_status_t ap_cfn_search_neighbours(const ap_cfn_dual_t *root, ap_cfn_shared_t *shared,
                                     ap_cfn_neighbours_t *neighbours, int64_t until)
{
    size_t variables = (size_t)root->core->variables;
    int *best = malloc((variables + 1) * sizeof(*best));
    bool *keep = malloc(ap_cfn_core_values(root->core) + 1);
    xm_status_t status = best != NULL && keep != NULL ? XM_OK : XM_NO_MEMORY("a neighbourhood");

    while (status == XM_OK && ap_cfn_shared_now(shared) < until && !ap_cfn_shared_is_over(shared) &&
           ap_cfn_shared_cost(shared) < HUGE_VAL) {
        ap_cfn_branch_params_t params = {.cap = HUGE_VAL, .keep = keep};
        atomic_int_fast64_t nodes = 0;
        ap_cfn_branch_t *branch;
        bool done;

        (void)pthread_mutex_lock(&shared->mutex);
        memcpy(best, shared->best, variables * sizeof(*best));
        (void)pthread_mutex_unlock(&shared->mutex);
        choose(root, best, neighbours, keep);
        status = ap_cfn_branch_create(root, shared, &params, &branch);
        if (status != XM_OK) {
            break;
        }
        status = ap_cfn_branch_run(branch, NODES, until, &nodes, &done);
        ap_cfn_branch_destroy(branch);
        /* A tree that was done says that nothing better is there, or it has found it; more may be
         * free. One that was not has wasted most of its time on too many. */
        neighbours->part =
            fmin(fmax(neighbours->part * (done ? more : less), least_part), most_part);
    }
    free(best);
    free(keep);
    return status;
}
