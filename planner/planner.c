#include "planner/planner.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "planner/plan_schedule.h"
#include "planner/planner_private.h"

enum { MOST_AT_ONCE = 8 /* trials */ };

/* Share of the step that a case must be able to save to be taken up again. */
static const double WORTHWHILE = 1e-3;

/* A trial at work. Bounds are of the objective, with boundaries for free. */
typedef struct work {
    ap_planner_trial_t *trial;
    bool surveyed;       /* trial->bound is its own; before, that of a faster case */
    double slower_bound; /* of the same case with recomputation */
    ap_plan_t *plan;     /* of this wave, or NULL */
    int64_t priced;
    bool refused; /* its plan does not fit under its schedule */
    xm_status_t status;
    char error[512];
} work_t;

/* One run: what all trials share, and the best plan so far. */
typedef struct run {
    const ap_planner_params_t *params;
    ap_planner_setup_t setup;
    int64_t micro_batches[AP_PLANNER_MICRO_BATCHES];
    int count;
    ap_planner_result_t result;
    work_t *work;    /* per trial */
    double best;     /* smallest objective of a plan so far */
    double deadline; /* seconds of the monotonic clock; INFINITY: none */
    bool stopped;
    ap_schedule_kind_t schedule;
    bool automatic;    /* whichever schedule is fastest */
    char refused[256]; /* why the last plan did not fit under its schedule */
} run_t;

static xm_status_t find_schedule(run_t *run)
{
    const char *name = run->params->schedule;
    xm_status_t status;

    run->schedule = AP_SCHEDULE_1F1B;
    run->automatic = name != NULL && strcmp(name, "auto") == 0;
    if (name == NULL || run->automatic) {
        return XM_OK;
    }
    status = ap_schedule_find(name, &run->schedule);
    return status == XM_OK ? ap_plan_check_schedule(run->schedule) : status;
}

/* The plan under the schedule asked for. A plan whose memory that schedule exceeds is none: *plan
 * is NULL then. */
static xm_status_t apply_schedule(const run_t *run, work_t *work)
{
    ap_plan_t *scheduled = NULL;
    xm_status_t status;

    if (run->params->schedule == NULL || strcmp(run->params->schedule, "1f1b") == 0) {
        return XM_OK;
    }
    status = run->automatic ? ap_plan_reschedule_best(work->plan, &scheduled)
                            : ap_plan_reschedule(work->plan, run->schedule, &scheduled);
    ap_plan_destroy(work->plan);
    work->plan = scheduled;
    if (status == XM_ERR_NO_SOLUTION) {
        work->refused = true;
        (void)snprintf(work->error, sizeof(work->error), "%s", xm_last_error());
        status = XM_OK;
    }
    return status;
}

static xm_status_t build_plan(const run_t *run, work_t *work, ap_planner_case_t *one,
                              const ap_inter_op_result_t *found)
{
    const xm_cluster_profile_t *profile = run->params->profile;
    ap_plan_info_t info = {.model = run->params->model,
                           .global_batch = run->setup.global_batch,
                           .cluster = xm_cluster_profile_name(profile),
                           .cluster_provenance = xm_cluster_profile_provenance(profile)};
    xm_status_t status = ap_plan_build(one->table, found, &info, &work->plan);

    return status == XM_OK ? apply_schedule(run, work) : status;
}

static double now(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static bool out_of_time(void *arg)
{
    const run_t *run = arg;

    return now() >= run->deadline;
}

/* What a case must stay below to be of interest. */
static double cutoff(const run_t *run)
{
    return run->best * (1.0 + (run->params->margin > 0.0 ? run->params->margin : -WORTHWHILE));
}

static xm_status_t open_trial(run_t *run, const work_t *work, ap_planner_case_t *one)
{
    ap_planner_case_options_t options = {.micro_batches = work->trial->micro_batches,
                                         .recompute = work->trial->recompute,
                                         .stop = out_of_time,
                                         .stop_arg = run};

    if (run->best < INFINITY) {
        options.worth = fmax(run->best, cutoff(run));
    }
    return ap_planner_case_open(&run->setup, &options, one);
}

/* First a bound, with no configuration priced. */
static xm_status_t survey(run_t *run, work_t *work)
{
    const ap_planner_params_t *params = run->params;
    double known = work->trial->bound;
    ap_planner_case_t one;
    xm_status_t status = open_trial(run, work, &one);

    if (status != XM_OK) {
        return status;
    }
    work->trial->bound = INFINITY;
    work->slower_bound = INFINITY;
    status = ap_stage_table_bound(one.table, params->min_stages, params->max_stages,
                                  &work->trial->bound);
    if ((status == XM_OK || status == XM_ERR_NO_SOLUTION) && !work->trial->recompute) {
        status = ap_stage_table_bound_recomputing(one.table, params->min_stages, params->max_stages,
                                                  &work->slower_bound);
    }
    work->priced = ap_stage_table_evaluated(one.table);
    ap_planner_case_close(&one);
    if (status == XM_ERR_TIMEOUT) { /* no more is known than before */
        work->trial->bound = known;
        work->slower_bound = known;
    }
    return status == XM_ERR_NO_SOLUTION || status == XM_ERR_TIMEOUT ? XM_OK : status;
}

/* Then its best plan. Finding none is not a failure here. */
static xm_status_t solve(run_t *run, work_t *work)
{
    ap_inter_op_result_t found = {0};
    ap_planner_trial_t *trial = work->trial;
    ap_planner_case_t one;
    xm_status_t status = open_trial(run, work, &one);

    if (status != XM_OK) {
        return status;
    }
    status =
        ap_stage_table_solve(one.table, run->params->min_stages, run->params->max_stages, &found);
    if (status == XM_OK) {
        trial->solved = true;
        trial->step = found.objective;
        trial->stage_count = found.stage_count;
        trial->bound = fmax(trial->bound, fmin(found.bound, found.objective));
        status = build_plan(run, work, &one, &found);
    } else if (status == XM_ERR_NO_SOLUTION) {
        trial->bound = fmax(trial->bound, run->best); /* none is better than what there was */
        status = XM_OK;
    } else if (status == XM_ERR_TIMEOUT) {
        status = XM_OK;
    }
    trial->exact = !out_of_time(run);
    work->priced = ap_stage_table_evaluated(one.table);
    ap_inter_op_result_clear(&found);
    ap_planner_case_close(&one);
    return status;
}

static void report(const run_t *run, double fraction, const ap_planner_trial_t *trial)
{
    char what[64];

    if (run->params->progress != NULL) {
        (void)snprintf(what, sizeof(what), "%" PRId64 " micro-batches%s", trial->micro_batches,
                       trial->recompute ? ", recomputing" : "");
        run->params->progress(run->params->progress_arg, fraction, what);
    }
}

static xm_status_t list_trials(run_t *run)
{
    bool both = run->params->recompute == AP_RECOMPUTE_AUTO;
    int total = run->count * (both ? 2 : 1);

    run->result.trials = calloc((size_t)total + 1, sizeof(*run->result.trials));
    if (run->result.trials == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d trials", total);
    }
    run->result.trial_count = total;
    for (int i = 0; i < total; ++i) {
        run->result.trials[i] = (ap_planner_trial_t){
            .micro_batches = run->micro_batches[both ? i / 2 : i],
            .recompute = both ? i % 2 == 1 : run->params->recompute == AP_RECOMPUTE_ON,
            .step = INFINITY};
    }
    return XM_OK;
}

/* A wave of trials that are worked on at the same time, whatever the number of cores: what is done
 * does not depend on it. */
typedef struct wave {
    run_t *run;
    work_t *work[MOST_AT_ONCE];
    int count, next;
    pthread_mutex_t mutex;
} wave_t;

static void *work_on(void *arg)
{
    wave_t *wave = arg;

    for (;;) {
        work_t *work;
        int next;

        (void)pthread_mutex_lock(&wave->mutex);
        next = wave->next++;
        (void)pthread_mutex_unlock(&wave->mutex);
        if (next >= wave->count) {
            return NULL;
        }
        work = wave->work[next];
        work->status = work->surveyed ? solve(wave->run, work) : survey(wave->run, work);
        if (work->status != XM_OK) {
            (void)snprintf(work->error, sizeof(work->error), "%s", xm_last_error());
        }
    }
}

static void run_wave(wave_t *wave)
{
    enum { MOST_THREADS = 16 };
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_t threads[MOST_THREADS];
    int count = 0;

    while (count < MOST_THREADS && count + 1 < wave->count && count + 1 < cores &&
           pthread_create(&threads[count], NULL, work_on, wave) == 0) {
        ++count;
    }
    (void)work_on(wave);
    while (count > 0) {
        (void)pthread_join(threads[--count], NULL);
    }
}

/* What a survey found bounds the same case with recomputation. */
static void pass_on_bound(run_t *run, const work_t *work)
{
    for (int i = 0; i < run->result.trial_count; ++i) {
        ap_planner_trial_t *trial = &run->result.trials[i];

        if (!run->work[i].surveyed && trial->recompute &&
            trial->micro_batches == work->trial->micro_batches && !work->trial->recompute) {
            trial->bound = work->slower_bound;
        }
    }
}

/* Takes in what a wave found, in the order of its trials. */
static xm_status_t take_in(run_t *run, wave_t *wave)
{
    xm_status_t status = XM_OK;

    for (int i = 0; i < wave->count; ++i) {
        work_t *work = wave->work[i];
        ap_plan_t *best = run->result.plan;

        run->result.stages_priced += work->priced;
        if (work->status != XM_OK && status == XM_OK) {
            status = xm_error_set(work->status, "%s", work->error);
        }
        if (!work->surveyed) {
            work->surveyed = true;
            work->trial->exact = !(work->trial->bound < INFINITY);
            pass_on_bound(run, work);
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

/* A case that recomputes waits until the one that does not is surveyed, whose survey bounds it. */
static bool waits(const run_t *run, const work_t *work)
{
    for (int i = 0; i < run->result.trial_count && work->trial->recompute; ++i) {
        const ap_planner_trial_t *trial = &run->result.trials[i];

        if (!run->work[i].surveyed && !trial->recompute &&
            trial->micro_batches == work->trial->micro_batches) {
            return true;
        }
    }
    return false;
}

/* Whether a trial's survey or solution is on, and no bound says that it is not worth it. */
static bool is_open(const run_t *run, const work_t *work)
{
    return !work->trial->exact && work->trial->bound < cutoff(run) &&
           (work->surveyed || !waits(run, work));
}

/* Adds the trials that promise most of those surveyed or not yet, up to so many and below a bound;
 * those of which nothing is known alone. */
static void fill_wave(run_t *run, wave_t *wave, bool surveyed, int most, double below)
{
    while (wave->count < most) {
        work_t *best = NULL;

        for (int i = 0; i < run->result.trial_count; ++i) {
            work_t *work = &run->work[i];
            bool taken = wave->count > 0 &&
                         (work->trial->bound > 0.0) != (wave->work[0]->trial->bound > 0.0);

            for (int w = 0; w < wave->count; ++w) {
                taken = taken || wave->work[w] == work;
            }
            if (!taken && is_open(run, work) && work->surveyed == surveyed &&
                work->trial->bound < below &&
                (best == NULL || work->trial->bound < best->trial->bound)) {
                best = work;
            }
        }
        if (best == NULL) {
            return;
        }
        wave->work[wave->count++] = best;
    }
}

/* Many to survey; or two to solve, once no other can be more promising than these. */
static void pick_wave(run_t *run, wave_t *wave)
{
    enum { MOST_SURVEYS = MOST_AT_ONCE, MOST_SOLVES = 2 };
    double below = INFINITY;

    wave->count = wave->next = 0;
    fill_wave(run, wave, true, MOST_SOLVES, INFINITY);
    if (wave->count == (int)MOST_SOLVES) {
        below = wave->work[MOST_SOLVES - 1]->trial->bound;
    }
    wave->count = 0;
    fill_wave(run, wave, false, MOST_SURVEYS, below);
    if (wave->count == 0) {
        fill_wave(run, wave, true, MOST_SOLVES, INFINITY);
    }
}

/* No plan of the space is faster than this. */
static double proved_bound(const run_t *run)
{
    double bound = run->best;

    for (int i = 0; i < run->result.trial_count; ++i) {
        bound = fmin(bound, run->result.trials[i].bound);
    }
    return bound;
}

static xm_status_t try_all(run_t *run)
{
    xm_status_t status = list_trials(run);
    int done = 0;
    wave_t wave = {.run = run};

    if (status != XM_OK) {
        return status;
    }
    run->work = calloc((size_t)run->result.trial_count + 1, sizeof(*run->work));
    if (run->work == NULL || pthread_mutex_init(&wave.mutex, NULL) != 0) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d trials",
                            run->result.trial_count);
    }
    for (int i = 0; i < run->result.trial_count; ++i) {
        run->work[i].trial = &run->result.trials[i];
    }
    for (;;) {
        pick_wave(run, &wave);
        if (wave.count == 0 || status != XM_OK) {
            break;
        }
        run->stopped = out_of_time(run);
        if (run->stopped) {
            break;
        }
        report(run, (double)done / (2.0 * run->result.trial_count), wave.work[0]->trial);
        run_wave(&wave);
        done += wave.count;
        status = take_in(run, &wave);
    }
    (void)pthread_mutex_destroy(&wave.mutex);
    run->result.objective = run->best;
    run->result.bound = proved_bound(run);
    run->result.stopped = run->stopped;
    return status;
}

xm_status_t ap_planner_run(const ap_planner_params_t *params, ap_planner_result_t *result)
{
    run_t run = {.params = params, .best = INFINITY, .deadline = INFINITY};
    double begin = now(); /* reading a model is part of the time */
    xm_status_t status = ap_planner_setup_open(params, &run.setup);

    if (status == XM_OK && params->time_limit > 0.0) {
        run.deadline = begin + params->time_limit;
    }
    if (status == XM_OK) {
        status = find_schedule(&run);
    }
    if (status == XM_OK) {
        status = ap_planner_micro_batches(&run.setup, run.micro_batches, &run.count);
    }
    if (status == XM_OK) {
        status = try_all(&run);
    }
    if (status == XM_OK && run.result.plan == NULL && run.stopped) {
        status = xm_error_set(XM_ERR_TIMEOUT, "no plan for %s was found within %g s", params->model,
                              params->time_limit);
    } else if (status == XM_OK && run.result.plan == NULL && run.refused[0] != '\0') {
        status = xm_error_set(XM_ERR_NO_SOLUTION, "%s fits under 1f1b only; %s", params->model,
                              run.refused);
    } else if (status == XM_OK && run.result.plan == NULL) {
        status = ap_planner_explain_nothing(&run.setup, run.micro_batches[run.count - 1]);
    }
    if (status == XM_OK) {
        run.result.boundaries_simulated = (int64_t)ap_cross_mesh_simulated(run.setup.cross_mesh);
        run.result.read = run.setup.read;
        run.setup.read = (ap_planner_model_t){0};
        *result = run.result;
    } else {
        ap_planner_result_clear(&run.result);
    }
    free(run.work);
    ap_planner_setup_close(&run.setup);
    return status;
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
