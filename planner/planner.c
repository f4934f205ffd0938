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

/* Simulated steps are below their estimates by a few hundredths at most. */
static const double ESTIMATED = 0.97;

/* A trial at work. Bounds are of the objective, with boundaries for free. */
typedef struct work {
    ap_planner_trial_t *trial;
    bool surveyed;       /* trial->bound is its own; before, that of a faster case */
    double slower_bound; /* of the same case with recomputation */
    double estimate;     /* of a simulated step: as the search counts, boundaries for free */
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
    ap_schedule_kind_t schedules[AP_SCHEDULE_KINDS];
    int schedule_count;
    bool automatic;    /* whichever schedule is fastest */
    char refused[256]; /* why the last plan did not fit under its schedule */
} run_t;

/* The schedules to search. Of those that fill the pipeline alike the one with the least memory is
 * enough: its plans are simulated under the others as well. */
static xm_status_t list_schedules(run_t *run)
{
    static const ap_schedule_kind_t distinct[] = {AP_SCHEDULE_1F1B, AP_SCHEDULE_EAGER_1F1B_W,
                                                  AP_SCHEDULE_ZB_H1};
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

/* Whether steps come from the simulation; 1f1b alone has its objective for a step. */
static bool is_simulated(const run_t *run, const work_t *work)
{
    return run->automatic || work->trial->schedule != AP_SCHEDULE_1F1B;
}

/* The plan under its schedule, or under the fastest if it may choose. A plan whose memory that
 * exceeds is none: *plan is NULL then. `refused`: the schedule that it was made for is exceeded. */
static xm_status_t apply_schedule(const run_t *run, work_t *work, ap_plan_t **plan)
{
    ap_plan_t *own = NULL, *scheduled = NULL;
    xm_status_t status;

    if (!is_simulated(run, work)) {
        return XM_OK;
    }
    status = ap_plan_reschedule(*plan, work->trial->schedule, &own);
    if (status == XM_ERR_NO_SOLUTION) {
        work->refused = true;
        (void)snprintf(work->error, sizeof(work->error), "%s", xm_last_error());
        status = XM_OK;
    }
    if (status == XM_OK && run->automatic) {
        status = ap_plan_reschedule_best(*plan, &scheduled);
        status = status == XM_ERR_NO_SOLUTION ? XM_OK : status;
        ap_plan_destroy(own);
        own = scheduled;
    }
    ap_plan_destroy(*plan);
    *plan = own;
    return status;
}

/* Makes a plan of what was found and keeps it if it is the trial's best. */
static xm_status_t build_plan(const run_t *run, work_t *work, ap_planner_case_t *one,
                              const ap_inter_op_result_t *found)
{
    const ap_plan_info_t info = ap_planner_info(&run->setup);
    ap_planner_trial_t *trial = work->trial;
    ap_plan_t *plan;
    double step;
    xm_status_t status = ap_plan_build(one->table, found, &info, &plan);

    if (status == XM_OK) {
        status = apply_schedule(run, work, &plan);
    }
    if (status != XM_OK || plan == NULL) {
        return status;
    }
    step = is_simulated(run, work) ? ap_plan_info(plan)->step : found->objective;
    if (!trial->solved || step < trial->step) {
        ap_plan_t *worse = work->plan;

        trial->solved = true;
        trial->step = step;
        trial->stage_count = found->stage_count;
        work->plan = plan;
        plan = worse;
    }
    ap_plan_destroy(plan);
    return XM_OK;
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

static xm_status_t open_trial(run_t *run, const work_t *work, int stages, ap_planner_case_t *one)
{
    ap_planner_case_options_t options = {.micro_batches = work->trial->micro_batches,
                                         .recompute = work->trial->recompute,
                                         .schedule = work->trial->schedule,
                                         .stages = stages,
                                         .stop = out_of_time,
                                         .stop_arg = run};

    /* What a simulation gives is no objective to stay below. */
    if (run->best < INFINITY && !is_simulated(run, work)) {
        options.worth = fmax(run->best, cutoff(run));
    }
    return ap_planner_case_open(&run->setup, &options, one);
}

/* First a bound, with no configuration priced. */
static xm_status_t survey(run_t *run, work_t *work)
{
    const ap_planner_params_t *params = run->params;
    bool simulated = is_simulated(run, work);
    ap_planner_case_t one;
    xm_status_t status = open_trial(run, work, 0, &one);

    if (status != XM_OK) {
        work->trial->bound = 0.0;
        return status == XM_ERR_TIMEOUT ? XM_OK : status;
    }
    work->trial->bound = INFINITY;
    work->slower_bound = 0.0;
    status = ap_stage_table_bound(one.table, params->min_stages, params->max_stages,
                                  &work->trial->bound);
    if (status == XM_OK && simulated) {
        work->estimate = ESTIMATED * work->trial->bound;
        status = ap_stage_table_busy_bound(one.table, params->min_stages, params->max_stages,
                                           &work->trial->bound);
    }
    if ((status == XM_OK || status == XM_ERR_NO_SOLUTION) && !simulated &&
        work->trial->recompute == AP_RECOMPUTE_OFF) {
        work->slower_bound = INFINITY;
        status = ap_stage_table_bound_recomputing(one.table, params->min_stages, params->max_stages,
                                                  &work->slower_bound);
    }
    if (status == XM_ERR_TIMEOUT) { /* nothing is known */
        work->trial->bound = 0.0;
        work->slower_bound = 0.0;
    }
    work->priced = ap_stage_table_evaluated(one.table);
    ap_planner_case_close(&one);
    return status == XM_ERR_NO_SOLUTION || status == XM_ERR_TIMEOUT ? XM_OK : status;
}

/* Slices the case for at most so many stages, 0: for any. XM_ERR_NO_SOLUTION: there is no plan.
 * *count: the stages that came out. */
static xm_status_t solve_once(run_t *run, work_t *work, int stages, int *count)
{
    int most = run->params->max_stages;
    ap_inter_op_result_t found = {0};
    ap_planner_trial_t *trial = work->trial;
    ap_planner_case_t one;
    xm_status_t status = open_trial(run, work, stages, &one);

    if (status != XM_OK) {
        return status;
    }
    most = stages > 0 && (most == 0 || stages < most) ? stages : most;
    status = ap_stage_table_solve(one.table, run->params->min_stages, most, &found);
    *count = found.stage_count;
    if (status == XM_OK) {
        if (!is_simulated(run, work)) {
            trial->bound = fmax(trial->bound, fmin(found.bound, found.objective));
        }
        status = build_plan(run, work, &one, &found);
    }
    work->priced += ap_stage_table_evaluated(one.table);
    ap_inter_op_result_clear(&found);
    ap_planner_case_close(&one);
    return status;
}

/* Then its best plan. Finding none is not a failure here. Where a schedule's memory depends on the
 * number of all stages, the first search counts too few before a stage; if its plan does not fit,
 * others count as many as they allow, then half as many, and so on. */
static xm_status_t solve(run_t *run, work_t *work)
{
    int stages = 0;
    bool refused;
    xm_status_t status;

    work->priced = 0;
    status = solve_once(run, work, 0, &stages);
    if (status == XM_ERR_NO_SOLUTION && !is_simulated(run, work)) {
        work->trial->bound =
            fmax(work->trial->bound, run->best); /* none is better than what there was */
    }
    refused = work->refused;
    while (status == XM_OK && refused && stages > 1 && stages >= run->params->min_stages) {
        int unused;

        status = solve_once(run, work, stages, &unused);
        status = status == XM_ERR_NO_SOLUTION ? XM_OK : status;
        stages /= 2;
    }
    work->trial->exact = !out_of_time(run);
    return status == XM_ERR_NO_SOLUTION || status == XM_ERR_TIMEOUT ? XM_OK : status;
}

static void report(const run_t *run, double fraction, const ap_planner_trial_t *trial)
{
    char what[64];

    if (run->params->progress != NULL) {
        (void)snprintf(what, sizeof(what), "%" PRId64 " micro-batches%s, %s", trial->micro_batches,
                       trial->recompute == AP_RECOMPUTE_ON ? ", recomputing" : "",
                       ap_schedule_name(trial->schedule));
        run->params->progress(run->params->progress_arg, fraction, what);
    }
}

/* Ways to recompute that are searched apart. Stages that choose one by one are best for what the
 * search counts; a simulation may like it better if all do the same. */
static int list_ways(const run_t *run, ap_recompute_t *ways)
{
    ap_recompute_t asked = run->params->recompute;
    bool simulated = run->automatic || run->schedules[0] != AP_SCHEDULE_1F1B;

    if (asked == AP_RECOMPUTE_UNIFORM || (asked == AP_RECOMPUTE_AUTO && simulated)) {
        ways[0] = asked == AP_RECOMPUTE_UNIFORM ? AP_RECOMPUTE_OFF : asked;
        ways[1] = AP_RECOMPUTE_ON;
        return 2;
    }
    ways[0] = asked;
    return 1;
}

static xm_status_t list_trials(run_t *run)
{
    ap_recompute_t ways[2];
    int each = list_ways(run, ways), total = run->count * run->schedule_count * each;

    run->result.trials = calloc((size_t)total + 1, sizeof(*run->result.trials));
    if (run->result.trials == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d trials", total);
    }
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

        if (!run->work[i].surveyed && trial->recompute == AP_RECOMPUTE_ON &&
            trial->schedule == work->trial->schedule &&
            trial->micro_batches == work->trial->micro_batches &&
            work->trial->recompute == AP_RECOMPUTE_OFF) {
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

static double promise(const work_t *work)
{
    return fmax(work->trial->bound, work->estimate);
}

/* The trials that promise most, if they can still improve the plan enough: many to survey, or two
 * to solve. */
static void pick_wave(run_t *run, wave_t *wave)
{
    enum { MOST_SURVEYS = MOST_AT_ONCE, MOST_SOLVES = 2 };

    wave->count = wave->next = 0;
    for (;;) {
        work_t *best = NULL;

        for (int i = 0; i < run->result.trial_count; ++i) {
            work_t *work = &run->work[i];
            bool taken = false;

            for (int w = 0; w < wave->count; ++w) {
                taken = taken || wave->work[w] == work;
            }
            if (!taken && !work->trial->exact && promise(work) < cutoff(run) &&
                (wave->count == 0 || work->surveyed == wave->work[0]->surveyed) &&
                (best == NULL || promise(work) < promise(best))) {
                best = work;
            }
        }
        if (best == NULL ||
            wave->count == (best->surveyed ? (int)MOST_SOLVES : (int)MOST_SURVEYS)) {
            return;
        }
        wave->work[wave->count++] = best;
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

/* Of those to try: the smallest ones need the least memory. */
static int64_t most_micro_batches(const run_t *run)
{
    int64_t most = 0;

    for (int i = 0; i < run->count; ++i) {
        most = run->micro_batches[i] > most ? run->micro_batches[i] : most;
    }
    return most;
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
        status = list_schedules(&run);
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
        status = xm_error_set(XM_ERR_NO_SOLUTION, "%s has no plan under that schedule; %s",
                              params->model, run.refused);
    } else if (status == XM_OK && run.result.plan == NULL) {
        status = ap_planner_explain_nothing(&run.setup, most_micro_batches(&run));
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
