#include "planner/cfn_solve.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cfn_branch.h"
#include "planner/cfn_dive.h"
#include "planner/cfn_dual.h"
#include "planner/cfn_reduce.h"
#include "planner/cfn_search.h"

enum { THREADS_MAX = 64, PUBLISH_EVERY = 10, CONVERGED_STEPS = 150 };

/* The dual has converged when this part of the gap was not closed in the last CONVERGED_STEPS. */
static const double worthwhile = 0.01;
/* Branch and bound is tried when the gap is at most this part of the cost. */
static const double provable = 0.03;
enum { PROVABLE_VARIABLES = 1500, DIVES = 4 };
/* Nanoseconds of a search after a dive: at most, and per variable. */
#define SEARCH_TIME      INT64_C(200000000)
#define SEARCH_TIME_EACH INT64_C(400000)

typedef struct solve {
    ap_cfn_shared_t shared;
    const ap_cfn_options_t *options;
    int64_t begin;
    int64_t nodes; /* written by the bounding thread */
    atomic_int failed;
    char sentence[256];
    pthread_t thread[THREADS_MAX];
    int threads;
    atomic_int next;
} solve_t;

static int core_count(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;

    return count < THREADS_MAX ? count : THREADS_MAX;
}

static void note_failure(solve_t *solve, xm_status_t status)
{
    int none = XM_OK;

    if (atomic_compare_exchange_strong(&solve->failed, &none, (int)status)) {
        (void)snprintf(solve->sentence, sizeof(solve->sentence), "%s", xm_last_error());
        atomic_store(&solve->shared.stop, true);
    }
}

/* What the dual aims at: the best solution, or a guess above the bound. */
static double aim(solve_t *solve, double bound)
{
    double cost = ap_cfn_shared_cost(&solve->shared), guess = bound + 0.05 * fabs(bound) + 1.0;

    return cost < guess ? cost : guess;
}

static void raise_bound(solve_t *solve, ap_cfn_dual_t *dual, int *value)
{
    double before = -HUGE_VAL;

    for (int step = 0; !ap_cfn_shared_is_over(&solve->shared); ++step) {
        (void)ap_cfn_dual_sweep(dual);
        ap_cfn_shared_raise(&solve->shared, dual->best);
        if (step % PUBLISH_EVERY == 0) {
            ap_cfn_dual_decode(dual, value);
            ap_cfn_shared_publish(&solve->shared, dual->best_price, value);
        }
        if (step % CONVERGED_STEPS == CONVERGED_STEPS - 1) {
            if (dual->best - before < worthwhile * (aim(solve, dual->best) - dual->best)) {
                break;
            }
            before = dual->best;
        }
        ap_cfn_dual_move_prices(dual, aim(solve, dual->best));
    }
}

/*
 * Dives, each followed by a search around the best solution; then branch and bound when that is
 * near enough to the bound or nothing else helped, unless the problem is too large for it.
 */
static xm_status_t dive_and_prove(solve_t *solve, const ap_cfn_dual_t *dual,
                                  ap_cfn_search_t *search)
{
    ap_cfn_shared_t *shared = &solve->shared;
    int64_t search_time = dual->core->variables * SEARCH_TIME_EACH;
    xm_status_t status = XM_OK;

    search_time = search_time < SEARCH_TIME ? search_time : SEARCH_TIME;
    for (uint64_t dive = 0; status == XM_OK && !ap_cfn_shared_is_over(shared); ++dive) {
        double cost;

        status = ap_cfn_dive(dual, shared, dive * (2 * solve->options->seed + 1));
        if (status == XM_OK) {
            status = ap_cfn_search_run(search, ap_cfn_now() + search_time);
        }
        cost = ap_cfn_shared_cost(shared);
        if (status == XM_OK && dual->core->variables <= PROVABLE_VARIABLES &&
            (cost - dual->best <= provable * fabs(cost) || dive + 1 >= DIVES)) {
            return ap_cfn_branch(dual, shared, &solve->nodes);
        }
    }
    return status;
}

static xm_status_t bound_and_prove(solve_t *solve, ap_cfn_search_t *search)
{
    ap_cfn_dual_t *dual;
    int *value = malloc(((size_t)solve->shared.core->variables + 1) * sizeof(*value));
    xm_status_t status;

    if (value == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a solution");
    }
    status = ap_cfn_dual_create(solve->shared.core, &dual);
    if (status == XM_OK) {
        raise_bound(solve, dual, value);
        memcpy(dual->price, dual->best_price, (size_t)dual->core->times * sizeof(double));
        ap_cfn_dual_prices_changed(dual);
        status = dive_and_prove(solve, dual, search);
        ap_cfn_dual_destroy(dual);
    }
    free(value);
    return status;
}

static void *work(void *argument)
{
    solve_t *solve = argument;
    int number = atomic_fetch_add(&solve->next, 1);
    ap_cfn_search_t *search;
    xm_status_t status =
        ap_cfn_search_create(&solve->shared, solve->options->seed + (uint64_t)number + 1, &search);

    if (status == XM_OK) {
        if (number == 0) {
            status = bound_and_prove(solve, search);
        }
        if (status == XM_OK) {
            status = ap_cfn_search_run(search, INT64_MAX);
        }
        ap_cfn_search_destroy(search);
    }
    if (status != XM_OK) {
        note_failure(solve, status);
    }
    return NULL;
}

static void report(solve_t *solve)
{
    ap_cfn_progress_t progress = {.seconds = 1e-9 * (double)(ap_cfn_now() - solve->begin),
                                  .variables = solve->shared.core->variables};

    (void)pthread_mutex_lock(&solve->shared.mutex);
    progress.cost = solve->shared.cost;
    progress.bound = solve->shared.bound;
    (void)pthread_mutex_unlock(&solve->shared.mutex);
    progress.nodes = solve->nodes;
    solve->options->progress(solve->options->context, &progress);
}

static xm_status_t run_threads(solve_t *solve, int count)
{
    bool here = count == 1 && solve->options->progress == NULL; /* no thread is needed */
    int64_t reported = ap_cfn_now();

    if (here) {
        (void)work(solve);
    }
    for (; !here && solve->threads < count; ++solve->threads) {
        if (pthread_create(&solve->thread[solve->threads], NULL, work, solve) != 0) {
            break;
        }
    }
    if (!here && solve->threads == 0) {
        return xm_error_set(XM_ERR_NO_MEMORY, "cannot start a thread");
    }
    while (!here && !ap_cfn_shared_is_over(&solve->shared)) {
        struct timespec pause = {.tv_nsec = 5000000};

        (void)nanosleep(&pause, NULL);
        if (solve->options->progress != NULL && ap_cfn_now() - reported > 1000000000) {
            reported = ap_cfn_now();
            report(solve);
        }
    }
    for (int k = 0; k < solve->threads; ++k) {
        (void)pthread_join(solve->thread[k], NULL);
    }
    if (atomic_load(&solve->failed) != XM_OK) {
        return xm_error_set((xm_status_t)atomic_load(&solve->failed), "%s", solve->sentence);
    }
    return XM_OK;
}

static xm_status_t solve_core(solve_t *solve, int threads)
{
    const ap_cfn_core_t *core = solve->shared.core;
    xm_status_t status = XM_OK;

    if (core->variables == 0) {
        (void)ap_cfn_shared_offer(&solve->shared, solve->shared.best, core->constant);
        ap_cfn_shared_raise(&solve->shared, core->constant);
        return XM_OK;
    }
    status = run_threads(solve, threads);
    if (status == XM_OK && !(solve->shared.cost < HUGE_VAL)) {
        return xm_error_set(XM_ERR_TIMEOUT, "no choice within the limit was found in time");
    }
    return status;
}

xm_status_t ap_cfn_solve(const ap_cfn_t *cfn, const ap_cfn_options_t *options, int *choice,
                         ap_cfn_result_t *result)
{
    double seconds = options->seconds > 0.0 ? options->seconds : 60.0;
    solve_t *solve = calloc(1, sizeof(*solve));
    ap_cfn_reduction_t *reduction;
    xm_status_t status;

    if (solve == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a solution");
    }
    solve->options = options;
    solve->begin = ap_cfn_now();
    status = ap_cfn_reduce(cfn, &reduction);
    if (status != XM_OK) {
        free(solve);
        return status;
    }
    status = ap_cfn_shared_create(ap_cfn_reduction_core(reduction),
                                  solve->begin + (int64_t)(1e9 * seconds), &solve->shared);
    if (status == XM_OK) {
        status = solve_core(solve, options->threads > 0 && options->threads <= THREADS_MAX
                                       ? options->threads
                                       : core_count());
    }
    if (status == XM_OK) {
        const ap_cfn_core_t *core = solve->shared.core;

        *result = (ap_cfn_result_t){.bound = solve->shared.bound,
                                    .variables = core->variables,
                                    .links = core->links,
                                    .times = core->times,
                                    .nodes = solve->nodes};
        ap_cfn_restore(reduction, solve->shared.best, choice);
        status = ap_cfn_evaluate(cfn, choice, &result->value);
    }
    if (status == XM_OK) {
        result->optimal = result->bound > (double)result->value.cost - 1.0 +
                                              ap_cfn_rounding((double)result->value.cost);
        result->bound = result->optimal ? (double)result->value.cost : result->bound;
        result->seconds = 1e-9 * (double)(ap_cfn_now() - solve->begin);
    }
    ap_cfn_shared_destroy(&solve->shared);
    ap_cfn_reduction_destroy(reduction);
    free(solve);
    return status;
}
