/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner's outer search, over cases: numbers of micro-batches, schedules, ways to recompute.
 * Bounding a case is much cheaper than solving it; so all are bounded, the most promising are
 * solved, and a case whose bound exceeds the best plan by then is never solved.
 *
 * Cases are taken up in batches whose size is fixed and does not follow the number of cores;
 * results are taken in by the order of cases, not by who finished first. So the plan is the same on
 * any machine, unless a time limit cuts the search short.
 */

#include "planner/search/planner.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/base.h"
#include "planner/plan.h"
#include "planner/search/search_private.h"
#include "planner/search/trial.h"

enum { MOST_AT_ONCE = 8 /* trials */ };

/* The schedules to search. Of those that fill the pipeline alike, the one with the least memory is
 * enough: its plans are simulated under the others as well. */
static xm_status_t list_schedules(ap_planner_run_t *run)
{
    static const ap_schedule_kind_t distinct[] = {AP_SCHEDULE_1F1B, AP_SCHEDULE_EAGER_1F1B_W,
                                                  AP_SCHEDULE_ZB_H1, AP_SCHEDULE_ZB_H2};
    const char *name = run->params->schedule;
    ap_schedule_kind_t kind = AP_SCHEDULE_1F1B;
    xm_status_t status = XM_OK;

    if (name != NULL && strcmp(name, "auto") == 0) {
        run->automatic = true;
        run->schedule_count = (int)(sizeof(distinct) / sizeof(distinct[0]));
        memcpy(run->schedules, distinct, sizeof(distinct));
        return XM_OK;
    }
    if (name != NULL) {
        status = ap_schedule_find(name, &kind);
    }
    run->schedules[run->schedule_count++] = kind;
    return status == XM_OK ? ap_plan_check_schedule(kind) : status;
}

static void report(const ap_planner_run_t *run, double fraction, const ap_planner_trial_t *trial)
{
    char what[64];

    if (run->params->progress != NULL) {
        (void)snprintf(what, sizeof(what), "%" PRId64 " micro-batches%s, %s", trial->micro_batches,
                       trial->recompute == AP_RECOMPUTE_ON ? ", recomputing" : "",
                       ap_schedule_name(trial->schedule));
        run->params->progress(run->params->progress_arg, fraction, what);
    }
}

/* The ways to recompute that are searched apart. */
static int list_ways(const ap_planner_run_t *run, ap_recompute_t *ways)
{
    ap_recompute_t asked = ap_planner_recompute(&run->setup);
    bool uniform = asked == AP_RECOMPUTE_UNIFORM;

    ways[0] = uniform ? AP_RECOMPUTE_OFF : asked;
    ways[1] = AP_RECOMPUTE_ON;
    return uniform ? 2 : 1;
}

static xm_status_t list_trials(ap_planner_run_t *run)
{
    ap_recompute_t ways[2];
    int each = list_ways(run, ways), total = run->count * run->schedule_count * each;

    run->result.trials = calloc((size_t)total + 1, sizeof(*run->result.trials));
    XM_NEED_MEMORY(run->result.trials, "%d trials", total);
    run->result.trial_count = total;
    for (int i = 0; i < total; ++i) {
        run->result.trials[i] =
            (ap_planner_trial_t){.micro_batches = run->micro_batches[i / each % run->count],
                                 .recompute = ways[i % each],
                                 .schedule = run->schedules[i / each / run->count],
                                 .step = INFINITY};
    }
    return XM_OK;
}

/* A batch of cases that are worked on at the same time, whatever the number of cores: what is done
 * does not depend on it. */
typedef struct batch {
    ap_planner_run_t *run;
    ap_planner_work_t *work[MOST_AT_ONCE];
    int count, next;
    pthread_mutex_t mutex;
} batch_t;

/* Threads take cases by number until none is left. A case writes into its own work only; its
 * sentence is copied, because the last error belongs to the thread. */
static void *work_on(void *arg)
{
    batch_t *batch = arg;

    for (;;) {
        ap_planner_work_t *work;
        int next;

        (void)pthread_mutex_lock(&batch->mutex);
        next = batch->next++;
        (void)pthread_mutex_unlock(&batch->mutex);
        if (next >= batch->count) {
            return NULL;
        }
        work = batch->work[next];
        work->status = work->bounded ? ap_planner_solve(batch->run, work)
                                     : ap_planner_bounding_pass(batch->run, work);
        if (work->status != XM_OK) {
            (void)snprintf(work->error, sizeof(work->error), "%s", xm_last_error());
        }
    }
}

/* The calling thread works as well, so a batch is done even if no thread can be started. */
static void run_batch(batch_t *batch)
{
    enum { MOST_THREADS = 16 };
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_t threads[MOST_THREADS];
    int count = 0;

    while (count < MOST_THREADS && count + 1 < batch->count && count + 1 < cores &&
           pthread_create(&threads[count], NULL, work_on, batch) == 0) {
        ++count;
    }
    (void)work_on(batch);
    while (count > 0) {
        (void)pthread_join(threads[--count], NULL);
    }
}

/* Takes in the results of a batch in the order of its cases. The first failure counts; plans that
 * are not better are freed. */
static xm_status_t take_in(ap_planner_run_t *run, batch_t *batch)
{
    xm_status_t status = XM_OK;

    for (int i = 0; i < batch->count; ++i) {
        ap_planner_work_t *work = batch->work[i];
        ap_plan_t *best = run->result.plan;

        run->result.stages_priced += work->priced;
        run->stopped = run->stopped || work->cut;
        if (work->status != XM_OK && status == XM_OK) {
            status = xm_error_set(work->status, "%s", work->error);
        }
        if (!work->bounded) {
            work->bounded = true;
            work->trial->exact = !(work->trial->bound < INFINITY);
            continue;
        }
        if (work->refused) { /* by its schedule: no bound for the others */
            (void)snprintf(run->refused, sizeof(run->refused), "%.255s", work->error);
        }
        if (work->plan == NULL) {
            continue;
        }
        run->best = fmin(run->best, work->trial->step);
        if (best == NULL || ap_plan_info(work->plan)->step < ap_plan_info(best)->step) {
            run->result.plan = work->plan;
            work->plan = best;
        }
        ap_plan_destroy(work->plan);
        work->plan = NULL;
    }
    return status;
}

/* A bound if there is one, or what a simulated step is estimated to be, whichever is higher. */
static double promise(const ap_planner_work_t *work)
{
    return fmax(work->trial->bound, work->estimate);
}

/* Whether a case still has to be bounded or solved, and no bound says that it cannot be worth
 * it. */
static bool is_open(const ap_planner_run_t *run, const ap_planner_work_t *work)
{
    return !work->trial->exact && promise(work) < ap_planner_cutoff(run);
}

/* Adds the most promising cases of those bounded or not yet, up to so many and below a bound. Cases
 * of which nothing is known are put in a batch by themselves. */
static void fill_batch(ap_planner_run_t *run, batch_t *batch, bool bounded, int most, double below)
{
    while (batch->count < most) {
        ap_planner_work_t *best = NULL;

        for (int i = 0; i < run->result.trial_count; ++i) {
            ap_planner_work_t *work = &run->work[i];
            bool taken =
                batch->count > 0 && (promise(work) > 0.0) != (promise(batch->work[0]) > 0.0);

            for (int w = 0; w < batch->count; ++w) {
                taken = taken || batch->work[w] == work;
            }
            if (!taken && is_open(run, work) && work->bounded == bounded && promise(work) < below &&
                (best == NULL || promise(work) < promise(best))) {
                best = work;
            }
        }
        if (best == NULL) {
            return;
        }
        batch->work[batch->count++] = best;
    }
}

/* Chooses the next batch: many cases to bound; or two to solve, once no other can be more promising
 * than these. */
static void pick_batch(ap_planner_run_t *run, batch_t *batch)
{
    enum { MOST_BOUNDING_PASSES = MOST_AT_ONCE, MOST_SOLVES = 2 };
    /* The first plan of all tells the other cases what to stay below. */
    int most = run->best < INFINITY ? MOST_SOLVES : 1;
    double below = INFINITY;

    batch->count = batch->next = 0;
    fill_batch(run, batch, true, most, INFINITY);
    if (batch->count == most) {
        below = promise(batch->work[most - 1]);
    }
    batch->count = 0;
    fill_batch(run, batch, false, MOST_BOUNDING_PASSES, below);
    if (batch->count == 0) {
        fill_batch(run, batch, true, most, INFINITY);
    }
}

/* No plan of the space is faster than this: neither the best found nor any that a case's bound
 * allows. */
static double proved_bound(const ap_planner_run_t *run)
{
    double bound = run->best;

    for (int i = 0; i < run->result.trial_count; ++i) {
        bound = fmin(bound, run->result.trials[i].bound);
    }
    return bound;
}

static xm_status_t open_work(ap_planner_run_t *run)
{
    int orders = run->host_permutations.count;

    for (int i = 0; i < run->result.trial_count; ++i) {
        run->work[i].trial = &run->result.trials[i];
        run->work[i].order_estimate =
            orders > 0 ? calloc(2 * (size_t)orders, sizeof(*run->work[i].order_estimate)) : NULL;
        if (orders > 0 && run->work[i].order_estimate == NULL) {
            return XM_NO_MEMORY("%d orders of hosts", orders);
        }
        if (orders > 0) { /* they share a block */
            run->work[i].order_bound = run->work[i].order_estimate + orders;
        }
    }
    return XM_OK;
}

static void close_work(ap_planner_run_t *run)
{
    for (int i = 0; run->work != NULL && i < run->result.trial_count; ++i) {
        free(run->work[i].order_estimate);
    }
    free(run->work);
}

/* Lists the orders of hosts, where there is a choice: hosts that are all alike have one. */
static xm_status_t list_orders(ap_planner_run_t *run)
{
    const xm_cluster_profile_t *profile = run->params->profile;
    const ap_graph_t *graph;
    ap_graph_t *made;

    run->host_permutations.all = true;
    if (!xm_cluster_profile_hosts_differ(profile) && !xm_cluster_profile_devices_differ(profile)) {
        return XM_OK;
    }
    XM_TRY(ap_planner_graph_open(&run->setup, run->micro_batches[0], &graph, &made));
    run->layers = ap_graph_layers(graph);
    ap_graph_destroy(made);
    return ap_host_permutations_open(&run->setup, run->layers, &run->host_permutations);
}

/* Says in the plan how near the best it is, and whether another order of the hosts could be
 * better. */
static xm_status_t note_search(ap_planner_run_t *run)
{
    const ap_host_permutations_t *host_permutations = &run->host_permutations;
    bool all = host_permutations->all && (host_permutations->count == 0 || !run->stopped);
    const char *optimiser = ap_plan_info(run->result.plan)->optimiser;
    ap_plan_t *noted;
    char text[256];

    run->result.host_orders = !all                           ? 0
                              : host_permutations->count > 0 ? host_permutations->count
                                                             : 1;
    if (host_permutations->count == 0) {
        (void)snprintf(text, sizeof(text), "%.250s", optimiser);
    } else if (all) {
        (void)snprintf(text, sizeof(text), "%.160s; hosts in the best found of all %d orders",
                       optimiser, host_permutations->count);
    } else {
        (void)snprintf(text, sizeof(text), "%.160s; hosts in the best of the orders tried",
                       optimiser);
    }
    XM_TRY(ap_plan_note(run->result.plan, text, run->result.bound, &noted));
    ap_plan_destroy(run->result.plan);
    run->result.plan = noted;
    return XM_OK;
}

/* The most micro-batches of those to try: the smallest ones need the least memory. */
static int64_t most_micro_batches(const ap_planner_run_t *run)
{
    int64_t most = 0;

    for (int i = 0; i < run->count; ++i) {
        most = run->micro_batches[i] > most ? run->micro_batches[i] : most;
    }
    return most;
}

/* Every batch solves or bounds at least one case for good, so the loop ends. The time limit is
 * looked at between batches here, and within them by the searches themselves. */
static xm_status_t try_all(ap_planner_run_t *run)
{
    xm_status_t status = list_trials(run);
    int done = 0;
    batch_t batch = {.run = run};

    XM_TRY(status);
    run->work = calloc((size_t)run->result.trial_count + 1, sizeof(*run->work));
    if (run->work == NULL || pthread_mutex_init(&batch.mutex, NULL) != 0) {
        return XM_NO_MEMORY("%d trials", run->result.trial_count);
    }
    status = open_work(run);
    if (status == XM_OK && run->params->time_limit > 0.0) {
        status = ap_planner_try_first(run, most_micro_batches(run));
    }
    for (;;) {
        pick_batch(run, &batch);
        if (batch.count == 0 || status != XM_OK) {
            break;
        }
        run->stopped = run->stopped || ap_planner_out_of_time(run);
        if (run->stopped) {
            break;
        }
        report(run, (double)done / (2.0 * run->result.trial_count), batch.work[0]->trial);
        run_batch(&batch);
        done += batch.count;
        status = take_in(run, &batch);
    }
    (void)pthread_mutex_destroy(&batch.mutex);
    run->result.objective = run->best;
    run->result.bound = proved_bound(run);
    run->result.stopped = run->stopped;
    return status;
}

/* When nothing was found, the reason is told in the order time, schedule, memory: the first that
 * applies explains the others. */
xm_status_t ap_planner_run_within(const ap_planner_params_t *params, double cap,
                                  ap_planner_result_t *result)
{
    ap_planner_run_t run = {.params = params, .best = INFINITY, .deadline = INFINITY};
    double begin = xm_clock_seconds(); /* reading a model is part of the time */
    xm_status_t status = ap_planner_setup_open(params, cap, &run.setup);

    if (status == XM_OK && params->time_limit > 0.0) {
        run.deadline = begin + params->time_limit;
        run.first_deadline = begin + 0.1 * params->time_limit;
    }
    XM_THEN(status, list_schedules(&run));
    XM_THEN(status, ap_planner_micro_batches(&run.setup, run.micro_batches, &run.count));
    XM_THEN(status, list_orders(&run));
    XM_THEN(status, try_all(&run));
    if (status == XM_OK && run.result.plan == NULL && run.stopped) {
        status = xm_error_set(XM_ERR_TIMEOUT, "no plan for %s was found within %g s", params->model,
                              params->time_limit);
    } else if (status == XM_OK && run.result.plan == NULL && run.refused[0] != '\0') {
        status =
            XM_NO_SOLUTION("%s has no plan under that schedule; %s", params->model, run.refused);
    } else if (status == XM_OK && run.result.plan == NULL && cap > 0.0) {
        status = XM_NO_SOLUTION("no plan of %s within %.0f bytes", params->model, cap);
    } else if (status == XM_OK && run.result.plan == NULL) {
        status = ap_planner_explain_infeasible(&run.setup, most_micro_batches(&run));
    }
    XM_THEN(status, note_search(&run));
    close_work(&run);
    if (status == XM_OK) {
        run.result.boundaries_simulated =
            (int64_t)ap_cross_mesh_simulated(run.setup.cross_mesh) +
            ap_host_permutations_simulated(&run.setup, &run.host_permutations);
        run.result.read = run.setup.read;
        run.setup.read = (ap_planner_model_t){0};
        *result = run.result;
    } else {
        ap_planner_result_clear(&run.result);
    }
    ap_host_permutations_close(&run.setup, &run.host_permutations);
    ap_planner_setup_close(&run.setup);
    return status;
}

xm_status_t ap_planner_run(const ap_planner_params_t *params, ap_planner_result_t *result)
{
    return ap_planner_run_within(params, 0.0, result);
}

void ap_planner_result_clear(ap_planner_result_t *result)
{
    if (result != NULL) {
        ap_plan_destroy(result->plan);
        ap_planner_model_clear(&result->read);
        free(result->trials);
        *result = (ap_planner_result_t){0};
    }
}
