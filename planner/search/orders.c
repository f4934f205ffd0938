/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One case of a planner run with its hosts in every order. Orders are bounded first and planned in
 * the order of their bounds, each only if it can still beat what was found; where there are too
 * many to list, a climb from the best one over neighbouring orders looks for better ones.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/search/trial.h"

/* The bounds of all orders of the hosts, and the least of each kind. Where only NICs differ, which
 * the bounds do not see, the bounds of the order before hold. */
xm_status_t ap_planner_bound_orders(ap_planner_run_t *run, ap_planner_work_t *work,
                                    ap_stage_table_t *table, ap_planner_bounds_t *least)
{
    const ap_host_permutations_t *host_permutations = &run->host_permutations;
    size_t runs = 0;
    ap_planner_bounds_t bounds = {0};
    xm_status_t status = XM_OK;

    *least = (ap_planner_bounds_t){INFINITY, INFINITY};
    for (int i = 0; i < host_permutations->count && status == XM_OK; ++i) {
        const ap_host_permutation_t *host_permutation = &host_permutations->items[i];

        runs = (size_t)host_permutation->classes->hosts * (size_t)host_permutation->classes->hosts;
        if (ap_planner_out_of_time(run)) {
            return xm_error_set(XM_ERR_TIMEOUT, "time is up");
        }
        if (i == 0 || memcmp(host_permutation->classes->of, host_permutation[-1].classes->of,
                             runs * sizeof(int)) != 0) {
            ap_stage_table_arrange(table, host_permutation->classes, host_permutation->cross_mesh);
            status = ap_planner_find_bounds(run, table, &bounds);
        }
        work->order_estimate[i] = bounds.objective;
        work->order_bound[i] = bounds.step;
        least->objective = fmin(least->objective, bounds.objective);
        least->step = fmin(least->step, bounds.step);
    }
    return status;
}

/* What an order of hosts must stay below: moving hosts must pay, so that
 * equal orders leave them where they are. */
static double order_limit(const ap_planner_candidate_t *attempt)
{
    static const double MOVING = 1e-6;
    const ap_planner_run_t *run = attempt->run;
    const ap_planner_trial_t *trial = attempt->work->trial;
    double limit = run->best;

    if (trial->solved) {
        limit = fmin(limit, trial->step * (1.0 - MOVING));
    }
    return limit;
}

/* Plans with the hosts in an order if that may pay. XM_ERR_NO_SOLUTION says that it does not. */
static xm_status_t try_order(ap_planner_candidate_t *attempt,
                             const ap_host_permutation_t *host_permutation, double estimate,
                             double *bound, bool *better)
{
    double limit = order_limit(attempt), found = 0.0;
    xm_status_t status;

    *better = false;
    if (AP_STAGE_TABLE_ESTIMATED * estimate >= limit) {
        return XM_ERR_NO_SOLUTION;
    }
    if (ap_planner_out_of_time(attempt->run)) {
        return xm_error_set(XM_ERR_TIMEOUT, "time is up");
    }
    ap_stage_table_arrange(attempt->one.table, host_permutation->classes,
                           host_permutation->cross_mesh);
    ap_stage_table_beat(attempt->one.table, limit < INFINITY ? limit : 0.0);
    status = ap_planner_slice(attempt, host_permutation, &found, better);
    *bound = fmax(*bound, found);
    return status;
}

/* An order of hosts that is a step away from another. */
typedef struct neighbour {
    ap_host_permutation_t host_permutation;
    double bound;
    bool done;
} neighbour_t;

/* A walk from order to order. */
typedef struct climb {
    ap_planner_candidate_t *attempt;
    int hosts, most; /* orders it may look at */
    int *seen, count;
    int *near;  /* scratch */
    int *here;  /* the best order so far */
    int solves; /* that it may still plan */
    neighbour_t *neighbours;
    int neighbour_count;
} climb_t;

/* Orders that differ only in hosts that are alike are the same. */
static bool is_seen(const climb_t *climb, const int *order)
{
    const ap_host_permutations_t *host_permutations = &climb->attempt->run->host_permutations;
    bool seen = false;

    for (int i = 0; i < host_permutations->count && !seen; ++i) {
        seen = ap_host_orders_same(host_permutations->orders, order,
                                   host_permutations->items[i].order);
    }
    for (int i = 0; i < climb->count && !seen; ++i) {
        seen =
            ap_host_orders_same(host_permutations->orders, order, climb->seen + i * climb->hosts);
    }
    return seen;
}

/* Bounds the orders near the best one that were not yet looked at. The number of orders looked at
 * is limited over the whole walk, which is why it ends. */
static xm_status_t look_around(climb_t *climb)
{
    ap_planner_run_t *run = climb->attempt->run;
    ap_stage_table_t *table = climb->attempt->one.table;
    int count =
        ap_host_orders_near(run->host_permutations.orders, climb->here, climb->most, climb->near);
    xm_status_t status = XM_OK;

    climb->neighbour_count = 0;
    for (int i = 0; i < count && climb->count < climb->most && status == XM_OK; ++i) {
        const int *order = climb->near + i * climb->hosts;
        neighbour_t *neighbour = &climb->neighbours[climb->neighbour_count];
        ap_planner_bounds_t bounds;

        if (is_seen(climb, order)) {
            continue;
        }
        if (ap_planner_out_of_time(run)) {
            return xm_error_set(XM_ERR_TIMEOUT, "time is up");
        }
        memcpy(climb->seen + climb->count++ * climb->hosts, order,
               (size_t)climb->hosts * sizeof(*order));
        *neighbour = (neighbour_t){0};
        status = ap_host_permutation_open(&run->setup, order, &neighbour->host_permutation);
        if (status == XM_ERR_NOT_FOUND) { /* the stage table has no such stages */
            status = XM_OK;
            continue;
        }
        if (status == XM_OK) {
            ++climb->neighbour_count;
            ap_stage_table_arrange(table, neighbour->host_permutation.classes,
                                   neighbour->host_permutation.cross_mesh);
            status = ap_planner_find_bounds(run, table, &bounds);
            neighbour->bound = bounds.objective;
        }
    }
    return status;
}

/* Plans with the neighbours in the order of their bounds, until one pays. */
static xm_status_t take_step(climb_t *climb, bool *better)
{
    double proved = 0.0; /* of an order that is not one of the run's */
    xm_status_t status = XM_OK;

    *better = false;
    for (int turn = 0; turn < climb->neighbour_count && status == XM_OK && !*better; ++turn) {
        neighbour_t *best = NULL;

        for (int i = 0; i < climb->neighbour_count; ++i) {
            neighbour_t *neighbour = &climb->neighbours[i];

            best = !neighbour->done && (best == NULL || neighbour->bound < best->bound) ? neighbour
                                                                                        : best;
        }
        best->done = true;
        if (climb->solves == 0 ||
            AP_STAGE_TABLE_ESTIMATED * best->bound >= order_limit(climb->attempt)) {
            break;
        }
        --climb->solves;
        status = try_order(climb->attempt, &best->host_permutation, best->bound, &proved, better);
        status = status == XM_ERR_NO_SOLUTION ? XM_OK : status;
        if (*better) {
            memcpy(climb->here, best->host_permutation.order,
                   (size_t)climb->hosts * sizeof(*climb->here));
        }
    }
    return status;
}

/* Goes from the best order so far to one near it, as long as that pays. */
static xm_status_t climb(ap_planner_candidate_t *attempt)
{
    enum { MOST_SOLVES = 16 };
    const ap_planner_run_t *run = attempt->run;
    int hosts = xm_cluster_profile_hosts(run->params->profile);
    climb_t climb = {.attempt = attempt,
                     .hosts = hosts,
                     .most = ap_host_permutations_most(&run->setup, run->layers),
                     .solves = MOST_SOLVES};
    size_t size = (size_t)climb.most * (size_t)hosts;
    const int *order =
        attempt->work->plan != NULL ? ap_plan_info(attempt->work->plan)->host_order : NULL;
    bool better = true;
    xm_arena_t arena = {0};
    xm_status_t status = XM_OK;

    climb.seen = xm_arena_take(&arena, size * sizeof(int));
    climb.near = xm_arena_take(&arena, size * sizeof(int));
    climb.here = xm_arena_take(&arena, (size_t)hosts * sizeof(int));
    climb.neighbours = xm_arena_get(&arena, (size_t)climb.most, sizeof(*climb.neighbours));
    if (arena.failed) {
        status = XM_NO_MEMORY("orders of %d hosts", hosts);
    } else {
        memcpy(climb.here, order != NULL ? order : run->host_permutations.items[0].order,
               (size_t)hosts * sizeof(int));
    }
    while (status == XM_OK && better) {
        status = look_around(&climb);
        XM_THEN(status, take_step(&climb, &better));
        ap_stage_table_arrange(attempt->one.table, run->host_permutations.items[0].classes,
                               run->host_permutations.items[0].cross_mesh); /* these stay */
        for (int i = 0; i < climb.neighbour_count; ++i) {
            ap_host_permutation_close(&run->setup, &climb.neighbours[i].host_permutation);
        }
    }
    xm_arena_clear(&arena);
    return status;
}

/* The profile's order, then the others by their bounds; each must pay. Beginning with the profile's
 * makes it the one that stays where nothing is better. */
xm_status_t ap_planner_try_orders(ap_planner_candidate_t *attempt)
{
    const ap_host_permutations_t *host_permutations = &attempt->run->host_permutations;
    const double *estimate = attempt->work->order_estimate;
    double least = INFINITY;
    bool *done = calloc((size_t)host_permutations->count, sizeof(*done)), any = false;
    xm_status_t status = XM_OK;

    XM_NEED_MEMORY(done, "%d orders of hosts", host_permutations->count);
    for (int turn = 0; turn < host_permutations->count && status == XM_OK; ++turn) {
        int best = turn == 0 ? 0 : -1;
        bool better;

        for (int i = 0; turn > 0 && i < host_permutations->count; ++i) {
            best = !done[i] && (best < 0 || estimate[i] < estimate[best]) ? i : best;
        }
        done[best] = true;
        status = try_order(attempt, &host_permutations->items[best], estimate[best],
                           &attempt->work->order_bound[best], &better);
        any = any || status == XM_OK;
        status = status == XM_ERR_NO_SOLUTION ? XM_OK : status;
    }
    for (int i = 0; i < host_permutations->count; ++i) {
        least = fmin(least, attempt->work->order_bound[i]);
    }
    if (attempt->stages == 0) { /* of all numbers of stages */
        attempt->work->trial->bound = fmax(attempt->work->trial->bound, least);
    }
    if (status == XM_OK && any && !host_permutations->all) {
        status = climb(attempt);
    }
    status = status == XM_OK && !any ? XM_ERR_NO_SOLUTION : status;
    free(done);
    return status;
}
