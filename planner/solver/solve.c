/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The solver's outermost loop: presolve, threads, and the result. Thread 0 raises the bound, then
 * dives and proves; all others search neighbourhoods from the first moment, and thread 0 joins them
 * when it has nothing left to do. One thread alone does both in turn. This way the bound's prices
 * guide the searches, the searches' solutions let the bound drop values, and neither waits.
 *
 * Decisions of one thread alone, and what its presolve leaves undone, look at its work instead of a
 * clock, so that equal seeds take the same way. With several, which of several optima is found
 * depends on timing. After a proof, settle() therefore chooses one by a computation that no clock
 * has a part in.
 */

#include "planner/solver/solve.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/solver/certificate.h"
#include "planner/solver/raise.h"
#include "planner/solver/tree.h"
#include "planner/solver/bound.h"
#include "planner/solver/reduce.h"
#include "planner/solver/local.h"

enum { THREADS_MAX = 64, SWEEPS_OF_NODE = 30, NEIGHBOURS_WIDE = 3 };

/* What may go into finding the same optimum again, in cells looked at and in nodes of branch and
 * bound. These are counts and not seconds, so that the same problem gives up at the same place. */
static const double settling_cells = 4e9, settling_nodes = 2000, settling_work = 1e9;
#define SETTLING_MOST INT64_C(10000000000)
/* The first attempt of branch and bound looks for solutions within this part of the bound; every
 * further one looks twice as far. */
static const double first_reach = 1e-4, reach_growth = 2.0;
/* Of the gap, how far it looks after an attempt that had to be laid aside: the tree grows by a
 * factor with every step of the cap, so the next one would hardly end. */
static const double halfway = 0.5;
/* What attempts may take at once of the time there is, besides a part of the time that has passed.
 */
static const double attempt_part = 0.03, attempt_growth = 0.4;
/* The same for passes with labels, where the gap is at most this part of the bound. Those that
 * leave more than so much of the gap have less next time, as their tables will be too large again.
 */
static const double label_part = 0.03, label_growth = 0.25, label_gap = 0.1, label_gain = 0.99,
                    label_less = 0.25;
/* Of the variables, which are free in the first large neighbourhood. */
static const double first_part = 0.3;
/* Nanoseconds of the search that follows a dive: at most, and per variable. */
#define SEARCH_TIME      INT64_C(200000000)
#define SEARCH_TIME_EACH INT64_C(400000)
typedef struct solve {
    ap_cfn_shared_t shared;
    const ap_cfn_t *cfn;
    const ap_cfn_options_t *options;
    int64_t begin;
    int64_t searching;         /* since when, as ap_cfn_shared_now() tells it */
    atomic_int_fast64_t nodes; /* written by the bounding thread */
    bool settled;              /* the solution depends on the problem alone */
    atomic_int failed;
    char sentence[256];
    pthread_t thread[THREADS_MAX];
    int wanted, threads; /* the latter were started */
    atomic_int next;
} solve_t;

/* Attempts of branch and bound, and what they leave to the next. */
typedef struct attempts {
    ap_cfn_branch_t *branch; /* NULL: none is laid aside */
    double reach;
    bool slow; /* the last one had to be laid aside */
    ap_cfn_pseudo_costs_t *costs;
} attempts_t;

/* Cores that the process may use, which in a container are fewer than the machine has. */
static int core_count(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;

    return count < THREADS_MAX ? count : THREADS_MAX;
}

/* The first failure wins and stops the others; its sentence is copied, since the last error belongs
 * to the thread that met it. */
static void note_failure(solve_t *solve, xm_status_t status)
{
    int none = XM_OK;

    if (atomic_compare_exchange_strong(&solve->failed, &none, (int)status)) {
        (void)snprintf(solve->sentence, sizeof(solve->sentence), "%s", xm_last_error());
        atomic_store(&solve->shared.stop, true);
    }
}

/* Attempts of branch and bound, until the time for this is up; the one that is not done then goes
 * on next time. Near the bound few values are left, so nodes are small there: what is more than
 * the reach above it does not count at first. A gap that is really that small then closes soon, and
 * otherwise the bound rises to where the search did not look. Each attempt starts anew, with the
 * cost that is known by then, since values that it rules out at the root are ruled out in the whole
 * tree; only what branches do to the bound is known from the attempts before. */
static xm_status_t attempt(solve_t *solve, const ap_cfn_dual_t *dual, attempts_t *attempts)
{
    ap_cfn_shared_t *shared = &solve->shared;
    int64_t now = ap_cfn_shared_now(shared);
    double left = (double)(ap_cfn_shared_end(shared) - now);
    double passed = (double)(now - solve->searching);
    int64_t until = now + (int64_t)(attempt_part * left + attempt_growth * passed);
    xm_status_t status = XM_OK;

    while (status == XM_OK && !ap_cfn_shared_is_over(shared) && ap_cfn_shared_now(shared) < until) {
        bool done;

        if (attempts->branch == NULL) {
            double bound = ap_cfn_shared_bound(shared), gap = ap_cfn_shared_cost(shared) - bound;
            double most = attempts->slow ? halfway * gap : HUGE_VAL;
            double near = fmin(attempts->reach * fabs(bound), most) + 1.0;
            bool capped = attempts->reach < 1.0 && near < gap;
            const ap_cfn_branch_params_t params = {.cap = capped ? bound + near : HUGE_VAL,
                                                   .costs = attempts->costs};

            status = ap_cfn_branch_create(dual, shared, &params, &attempts->branch);
            attempts->reach *= reach_growth;
            attempts->slow = false;
        }
        if (status == XM_OK) {
            status =
                ap_cfn_branch_run(attempts->branch, INT64_MAX / 2, until, &solve->nodes, &done);
        }
        if (status == XM_OK && done) {
            ap_cfn_branch_destroy(attempts->branch);
            attempts->branch = NULL;
        } else {
            attempts->slow = true;
        }
    }
    return status;
}

/* Passes with labels, unless the gap is so wide that searching gains more than proving. *share is
 * the part of the work that they get. */
static xm_status_t close_gap(solve_t *solve, const ap_cfn_dual_t *dual, ap_cfn_labels_t *labels,
                             double *share)
{
    ap_cfn_shared_t *shared = &solve->shared;
    double bound = ap_cfn_shared_bound(shared), gap = ap_cfn_shared_cost(shared) - bound;
    int64_t now = ap_cfn_shared_now(shared);
    double work = label_part * (double)(ap_cfn_shared_end(shared) - now) +
                  label_growth * (double)(now - solve->searching);
    xm_status_t status;

    if (ap_cfn_shared_is_over(shared) || !(gap <= label_gap * fabs(bound))) {
        return XM_OK;
    }
    status = ap_cfn_labels(dual, shared, labels, *share * work);
    if (ap_cfn_shared_cost(shared) - ap_cfn_shared_bound(shared) > label_gain * gap) {
        *share *= label_less;
    }
    return status;
}

/* Searches near the best solution, with branch and bound in large neighbourhoods; longer where the
 * gap is so wide that passes with labels are not tried, as solutions are then far from the optimum.
 */
static xm_status_t search_neighbours(solve_t *solve, const ap_cfn_dual_t *dual,
                                     ap_cfn_neighbours_t *neighbours, int64_t time)
{
    ap_cfn_shared_t *shared = &solve->shared;
    double bound = ap_cfn_shared_bound(shared), gap = ap_cfn_shared_cost(shared) - bound;
    int64_t most = gap <= label_gap * fabs(bound) ? time : NEIGHBOURS_WIDE * time;

    return ap_cfn_search_neighbours(dual, shared, neighbours, ap_cfn_shared_now(shared) + most);
}

/* Where one thread does all, a dive of a large problem can take most of the time that there is: of
 * the contest's S ten seconds. So searches come first, for as long as all else has taken. */
static xm_status_t search_as_long(solve_t *solve, ap_cfn_search_t *search, int64_t *searched)
{
    int64_t now = ap_cfn_shared_now(&solve->shared), more = now - solve->searching - 2 * *searched;

    if (more <= 0) {
        return XM_OK;
    }
    *searched += more;
    return ap_cfn_search_run(search, now + more);
}

/* Attempts of branch and bound, unless the problem is too large for it, and dives, each followed by
 * searches around the best solution. Dives differ by their seeds; the first one is without
 * noise, and in large problems the bound is raised to its end after it. */
static xm_status_t dive_and_prove(solve_t *solve, ap_cfn_dual_t *dual, ap_cfn_search_t *search)
{
    ap_cfn_shared_t *shared = &solve->shared;
    bool large = dual->core->variables > AP_CFN_PROVABLE;
    int64_t searched = 0;
    int64_t search_time = dual->core->variables * SEARCH_TIME_EACH;
    double label_share = 1.0;
    attempts_t attempts = {.reach = first_reach};
    ap_cfn_neighbours_t neighbours = {.part = first_part,
                                      .random = xm_hash_spread(solve->options->seed) | 1};
    ap_cfn_labels_t labels = AP_CFN_LABELS_INIT;
    xm_status_t status = ap_cfn_pseudo_costs_create(dual->core->variables, &attempts.costs);

    search_time = search_time < SEARCH_TIME ? search_time : SEARCH_TIME;
    for (uint64_t dive = 0; status == XM_OK && !ap_cfn_shared_is_over(shared); ++dive) {
        if (!large) {
            status = attempt(solve, dual, &attempts);
            status = status == XM_OK ? close_gap(solve, dual, &labels, &label_share) : status;
        }
        if (status == XM_OK && large && solve->wanted == 1) {
            status = search_as_long(solve, search, &searched);
        }
        if (status == XM_OK && !ap_cfn_shared_is_over(shared)) {
            status = ap_cfn_dive(dual, shared, dive * (2 * solve->options->seed + 1));
        }
        if (status == XM_OK && !ap_cfn_shared_is_over(shared)) {
            status = ap_cfn_search_run(search, ap_cfn_shared_now(shared) + search_time);
        }
        if (status == XM_OK && !large) {
            status = search_neighbours(solve, dual, &neighbours, search_time);
        }
        if (status == XM_OK && dive == 0 && large) {
            status = ap_cfn_raise_bound(shared, dual, NULL);
        }
    }
    ap_cfn_branch_destroy(attempts.branch);
    ap_cfn_pseudo_costs_destroy(attempts.costs);
    return status;
}

/* What thread 0 does: the bound, solutions from it, and the proof. */
static xm_status_t bound_and_prove(solve_t *solve, ap_cfn_search_t *search)
{
    ap_cfn_dual_t *dual;
    xm_status_t status = ap_cfn_make_dual(&solve->shared, solve->options->cells,
                                          solve->wanted == 1 ? search : NULL, &dual);

    if (status == XM_OK) {
        status = dual->exact != NULL ? ap_cfn_scale_prices(&solve->shared, dual) : XM_OK;
        if (status == XM_OK) {
            status = dive_and_prove(solve, dual, search);
        }
        ap_cfn_dual_destroy(dual);
    }
    return status;
}

/* Nodes of branch and bound that look at no more cells than may go into settling. */
static int64_t nodes_to_settle(const ap_cfn_dual_t *dual)
{
    double cells = 1.0;

    for (int k = 0; k < dual->core->links; ++k) {
        const ap_cfn_link_t *link = &dual->core->link[k];

        cells += (double)dual->core->variable[link->a].size * dual->core->variable[link->b].size;
    }
    cells = dual->exact != NULL ? dual->exact->work : cells;
    return (int64_t)fmin(settling_nodes, 1.0 + settling_cells / (SWEEPS_OF_NODE * cells));
}

/* Chooses among the optima, whose cost is known by now; which of them was found depends on what the
 * threads did when. Branch and bound that knows nothing but the cost finds the same one every time,
 * as it has a shared state of its own, one thread, and limits that count work. Where it does not
 * get there, the solution stays and the result is marked as not repeatable. */
static xm_status_t settle(solve_t *solve)
{
    const ap_cfn_core_t *core = solve->shared.core;
    ap_cfn_shared_t alone;
    ap_cfn_dual_t *dual;
    atomic_int_fast64_t nodes = 0;
    xm_status_t status = ap_cfn_shared_create(core, solve->shared.deadline, &alone);

    if (status != XM_OK) {
        return status;
    }
    alone.bound = solve->shared.cost; /* the first solution of that cost ends it */
    alone.cost = solve->shared.cost + 1.0;
    alone.counted = true;
    alone.most = SETTLING_MOST;
    status = ap_cfn_make_dual(&alone, solve->options->cells, NULL, &dual);
    if (status == XM_OK) {
        ap_cfn_labels_t labels = AP_CFN_LABELS_INIT;
        ap_cfn_branch_t *branch;
        bool done;

        /* Raising the bound alone may have found a solution of that cost already. What labels have
         * proved may have more nodes than branch and bound can visit. */
        if (alone.cost > solve->shared.cost) {
            const ap_cfn_branch_params_t params = {.cap = HUGE_VAL, .depth_first = true};

            status = ap_cfn_branch_create(dual, &alone, &params, &branch);
            if (status == XM_OK) {
                status = ap_cfn_branch_run(branch, nodes_to_settle(dual), INT64_MAX, &nodes, &done);
                ap_cfn_branch_destroy(branch);
            }
        }
        if (status == XM_OK && alone.cost > solve->shared.cost &&
            dual->core->variables <= AP_CFN_PROVABLE) {
            status = ap_cfn_labels(dual, &alone, &labels, settling_work);
        }
        ap_cfn_dual_destroy(dual);
    }
    if (status == XM_OK && alone.cost <= solve->shared.cost) {
        memcpy(solve->shared.best, alone.best, (size_t)core->variables * sizeof(int));
        solve->settled = true;
    }
    ap_cfn_shared_destroy(&alone);
    return status;
}

/* The body of every thread. The first to come gets number 0 and with it the bound; errors stop all
 * threads. */
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

/* Tells the caller where the solve stands; called from the waiting thread only. */
static void report(solve_t *solve)
{
    ap_cfn_progress_t progress = {.seconds = 1e-9 * (double)(xm_clock_ns() - solve->begin),
                                  .variables = solve->shared.core->variables};

    (void)pthread_mutex_lock(&solve->shared.mutex);
    progress.cost = solve->shared.cost;
    progress.bound = solve->shared.bound;
    (void)pthread_mutex_unlock(&solve->shared.mutex);
    progress.nodes = solve->nodes;
    solve->options->progress(solve->options->context, &progress);
}

/* Starts the threads and waits for them. With one thread and no reports the work is done in the
 * calling thread, so that small problems, of which the planner solves thousands, start none. Fewer
 * threads than asked for are enough; none at all is an error. */
static xm_status_t run_threads(solve_t *solve, int count)
{
    bool here = count == 1 && solve->options->progress == NULL; /* no thread is needed */
    int64_t reported = xm_clock_ns();

    solve->wanted = count;
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
    /* The waiting thread also watches the deadline, in case all others are inside a long step. */
    while (!here && !ap_cfn_shared_is_over(&solve->shared)) {
        struct timespec pause = {.tv_nsec = 5000000};

        (void)nanosleep(&pause, NULL);
        if (solve->options->progress != NULL && xm_clock_ns() - reported > 1000000000) {
            reported = xm_clock_ns();
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

/* Begins with a given choice, if that is a solution of what is left after the presolve. The
 * presolve may have replaced parts of it by something as good, or dropped them. */
static xm_status_t begin_with(solve_t *solve, const ap_cfn_reduction_t *reduction,
                              const int *choice)
{
    const ap_cfn_core_t *core = solve->shared.core;
    xm_arena_t *pool = &solve->shared.pool;
    int *value = xm_arena_take(pool, (size_t)core->variables * sizeof(*value));
    double *load = xm_arena_take(pool, ((size_t)core->times + 1) * sizeof(*load));

    if (pool->failed) {
        return XM_NO_MEMORY("a solution");
    }
    ap_cfn_adopt(reduction, choice, value);
    ap_cfn_try(&solve->shared, value, load);
    solve->shared.warm = solve->shared.cost < HUGE_VAL;
    return XM_OK;
}

/* Solves the core, or says why there is no solution: none exists, or none was found in time. The
 * sentences differ by whether the limit or forbidden costs are in the way. */
static xm_status_t solve_core(solve_t *solve, int threads)
{
    const ap_cfn_core_t *core = solve->shared.core;
    bool limited = core->times > 0;
    double passed;
    xm_status_t status;

    /* The presolve has solved it: the constant is the optimum. */
    if (core->variables == 0) {
        (void)ap_cfn_shared_offer(&solve->shared, solve->shared.best, core->constant);
        ap_cfn_shared_raise(&solve->shared, core->constant);
        solve->settled = true;
        return XM_OK;
    }
    solve->searching = ap_cfn_shared_now(&solve->shared);
    status = run_threads(solve, threads);
    passed = 1e-9 * (double)(xm_clock_ns() - solve->begin);
    /* Nothing was found, and the bound says that nothing exists; without the bound, it is a matter
     * of time. */
    if (status == XM_OK && !(solve->shared.cost < HUGE_VAL)) {
        return ap_cfn_shared_is_proved(&solve->shared)
                   ? XM_NO_SOLUTION("no choice of finite cost fits%s",
                                    limited ? " the usage limit: all were ruled out" : "")
               : limited
                   ? xm_error_set(XM_ERR_TIMEOUT,
                                  "no choice within the usage limit %lld was found in %.3g s, at "
                                  "%d times it could be exceeded",
                                  (long long)solve->cfn->limit, passed, core->times)
                   : xm_error_set(XM_ERR_TIMEOUT,
                                  "no choice without a forbidden cost was found in %.3g s", passed);
    }
    return status == XM_OK && !solve->options->any && ap_cfn_shared_is_proved(&solve->shared)
               ? settle(solve)
               : status;
}

/* Solves, and then evaluates the answer on the original problem in integers: the reported cost is
 * exact, and `optimal` compares it with the bound, not with what the threads believed. */
xm_status_t ap_cfn_solve(const ap_cfn_t *cfn, const ap_cfn_options_t *options, int *choice,
                         ap_cfn_result_t *result)
{
    double seconds = options->seconds > 0.0 ? options->seconds : 60.0;
    double spent, counted = options->work > 0.0 ? 1e9 * options->work : HUGE_VAL;
    solve_t *solve = calloc(1, sizeof(*solve));
    ap_cfn_reduction_t *reduction;
    ap_cfn_cut_t cut;
    xm_status_t status = options->certificate != NULL ? ap_cfn_check_certifiable(cfn) : XM_OK;

    if (status != XM_OK || solve == NULL) {
        free(solve);
        return status != XM_OK ? status : XM_NO_MEMORY("a solution");
    }
    solve->cfn = cfn;
    solve->options = options;
    solve->begin = xm_clock_ns();
    status = ap_cfn_reduce(cfn, AP_CFN_PRESOLVE_PART * counted,
                           solve->begin + (int64_t)(1e9 * AP_CFN_PRESOLVE_PART * seconds), false,
                           &reduction);
    if (status != XM_OK) {
        free(solve);
        return status;
    }
    status = ap_cfn_shared_create(ap_cfn_reduction_core(reduction),
                                  solve->begin + (int64_t)(1e9 * seconds), &solve->shared);
    solve->shared.gap = options->gap;
    solve->shared.counted = options->threads == 1;
    cut = ap_cfn_reduction_cut(reduction, &spent);
    solve->shared.most = counted < HUGE_VAL ? 1 + (int64_t)counted : INT64_MAX;
    ap_cfn_shared_spend(&solve->shared, spent);
    if (status == XM_OK && options->start != NULL) {
        status = begin_with(solve, reduction, options->start);
    }
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
        /* Costs are integers, so a bound within 1 of the cost is a proof; the bound is then
         * reported as the cost. */
        result->optimal = result->bound > (double)result->value.cost - 1.0 +
                                              ap_cfn_rounding((double)result->value.cost);
        result->bound = result->optimal ? (double)result->value.cost : result->bound;
        result->repeatable = result->optimal && solve->settled && cut == AP_CFN_CUT_NOT;
        result->counted = solve->shared.counted && cut != AP_CFN_CUT_BY_CLOCK &&
                          xm_clock_ns() < solve->shared.deadline;
        result->seconds = 1e-9 * (double)(xm_clock_ns() - solve->begin);
    }
    ap_cfn_shared_destroy(&solve->shared);
    ap_cfn_reduction_destroy(reduction);
    free(solve);
    if (status == XM_OK && options->certificate != NULL) {
        status = ap_cfn_certify(options->certificate, cfn, choice, seconds, result);
    }
    return status;
}
