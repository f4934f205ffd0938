#include "planner/planner.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/frontend.h"
#include "planner/plan_schedule.h"
#include "planner/planner_private.h"

enum { DEFAULT_BATCH = 1024, MOST_SAMPLES = 1 << 30 };

/* Share of the step that a case must be able to save to be taken up again. */
static const double WORTHWHILE = 1e-3;

/* One run: what all trials share, and the best plan so far. */
typedef struct run {
    const ap_planner_params_t *params;
    ap_planner_setup_t setup;
    int64_t micro_batches[AP_PLANNER_MICRO_BATCHES];
    int count;
    ap_planner_result_t result;
    double best; /* smallest objective of a plan so far */
    ap_schedule_kind_t schedule;
    bool automatic;    /* whichever schedule is fastest */
    char refused[256]; /* why the last plan did not fit under its schedule */
} run_t;

static xm_status_t check_params(const ap_planner_params_t *params)
{
    if (params->struct_size < sizeof(*params) || params->model == NULL || params->profile == NULL) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "a model and a cluster profile are needed, and "
                            "AP_PLANNER_PARAMS_INIT to start from");
    }
    if (params->min_stages < 0 || params->max_stages < 0 ||
        (params->max_stages > 0 && params->min_stages > params->max_stages)) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "the stage limits %d to %d are not a range",
                            params->min_stages, params->max_stages);
    }
    if (params->global_batch < 0 || params->micro_batch_count > AP_PLANNER_MICRO_BATCHES) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "a batch of %" PRId64 " in one of %zu numbers of micro-batches: "
                            "positive, and at most %d numbers",
                            params->global_batch, params->micro_batch_count,
                            AP_PLANNER_MICRO_BATCHES);
    }
    return XM_OK;
}

/* Reads a file, once for all cases, and counts how many of its kind make a step. */
static xm_status_t open_graph(ap_planner_setup_t *setup)
{
    const ap_planner_params_t *params = setup->params;
    int64_t samples;
    xm_status_t status = XM_OK;

    setup->graph = params->graph;
    if (setup->graph == NULL && ap_frontend_is_file(params->model)) {
        status = ap_planner_model_read(params->model, params->dims, params->dim_count,
                                       &params->layering, &setup->read);
        setup->graph = setup->read.graph;
    } else if (params->dim_count > 0 || ap_planner_model_is_told(&params->layering)) {
        status = xm_error_set(XM_ERR_INVALID_ARGUMENT, "%s are told for files; %s has its own",
                              params->dim_count > 0 ? "dimensions" : "layers", params->model);
    }
    if (status != XM_OK || setup->graph == NULL) {
        return status;
    }
    samples = ap_planner_model_samples(setup->graph);
    if (params->global_batch > 0 && params->global_batch % samples != 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "%s is a micro-batch of %" PRId64 " samples: a batch of %" PRId64
                            " is not a number of them",
                            params->model, samples, params->global_batch);
    }
    setup->micro_batches = params->global_batch > 0 ? params->global_batch / samples
                           : params->micro_batch_count == 1 && params->micro_batches[0] > 0
                               ? params->micro_batches[0]
                           : samples < DEFAULT_BATCH ? DEFAULT_BATCH / samples
                                                     : 1;
    if (setup->micro_batches > MOST_SAMPLES / samples) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "%" PRId64 " micro-batches of %" PRId64
                            " samples: a step has at most %d samples",
                            setup->micro_batches, samples, MOST_SAMPLES);
    }
    setup->global_batch = setup->micro_batches * samples;
    return XM_OK;
}

xm_status_t ap_planner_setup_open(const ap_planner_params_t *params, ap_planner_setup_t *setup)
{
    xm_status_t status = check_params(params);

    *setup = (ap_planner_setup_t){.params = params};
    if (status != XM_OK) {
        return status;
    }
    setup->global_batch = params->global_batch > 0 ? params->global_batch : DEFAULT_BATCH;
    status = open_graph(setup);
    if (status != XM_OK) {
        return status;
    }
    setup->memory_limit = params->memory_limit > 0.0
                              ? params->memory_limit
                              : xm_cluster_profile_device_memory_bytes(params->profile);
    status = ap_cost_model_create_profile(params->profile, &setup->cost);
    if (status == XM_OK) {
        status = ap_cross_mesh_create(params->profile, &setup->cross_mesh);
    }
    return status;
}

void ap_planner_setup_close(ap_planner_setup_t *setup)
{
    ap_cross_mesh_destroy(setup->cross_mesh);
    ap_cost_model_destroy(setup->cost);
    ap_planner_model_clear(&setup->read);
}

xm_status_t ap_planner_graph_open(const ap_planner_setup_t *setup, int64_t micro_batches,
                                  const ap_graph_t **graph, ap_graph_t **made)
{
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    xm_status_t status;

    *made = NULL;
    *graph = setup->graph;
    if (setup->graph != NULL) {
        return XM_OK;
    }
    zoo.batch = setup->global_batch / micro_batches;
    status = ap_zoo_create(setup->params->model, &zoo, made);
    *graph = *made;
    return status;
}

xm_status_t ap_planner_case_open(const ap_planner_setup_t *setup, int64_t micro_batches,
                                 bool recompute, double memory_limit, bool lean_plans,
                                 ap_planner_case_t *one)
{
    ap_stage_table_params_t params = {0};
    xm_status_t status;

    *one = (ap_planner_case_t){0};
    status = ap_planner_graph_open(setup, micro_batches, &one->graph, &one->made);
    if (status != XM_OK) {
        return status;
    }
    params.graph = one->graph;
    params.cost = setup->cost;
    params.cross_mesh = setup->cross_mesh;
    params.hosts = xm_cluster_profile_hosts(setup->params->profile);
    params.devices_per_host = xm_cluster_profile_devices_per_host(setup->params->profile);
    params.micro_batches = (int)micro_batches;
    params.rematerialize = recompute;
    params.memory_limit = memory_limit;
    params.lean_plans = lean_plans;
    params.space = setup->params->space;
    params.free_boundaries = setup->params->free_boundaries;
    params.steady = setup->params->steady;
    status = ap_stage_table_create(&params, &one->table);
    if (status != XM_OK) {
        ap_graph_destroy(one->made);
        *one = (ap_planner_case_t){0};
    }
    return status;
}

void ap_planner_case_close(ap_planner_case_t *one)
{
    ap_stage_table_destroy(one->table);
    ap_graph_destroy(one->made);
    *one = (ap_planner_case_t){0};
}

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

xm_status_t ap_planner_check_counts(const ap_planner_setup_t *setup)
{
    const ap_planner_params_t *params = setup->params;
    int64_t batch = setup->global_batch, own = setup->micro_batches;

    for (size_t i = 0; i < params->micro_batch_count; ++i) {
        int64_t b = params->micro_batches[i];

        if (setup->graph != NULL && b != own) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "%s is a micro-batch of %" PRId64 " samples, so a batch of %" PRId64
                                " has %" PRId64 " micro-batches, not %" PRId64,
                                params->model, batch / own, batch, own, b);
        }
        if (b < 1 || batch % b != 0) {
            return xm_error_set(
                XM_ERR_INVALID_ARGUMENT,
                "a batch of %" PRId64 " does not divide into %" PRId64 " micro-batches", batch, b);
        }
    }
    return XM_OK;
}

xm_status_t ap_planner_micro_batches(const ap_planner_setup_t *setup, int64_t *values, int *count)
{
    const ap_planner_params_t *params = setup->params;
    int64_t batch = setup->global_batch;

    *count = 0;
    if (setup->graph != NULL) {
        values[(*count)++] = setup->micro_batches;
    } else if (params->micro_batch_count == 0) {
        for (int64_t b = 1; b <= AP_PLANNER_MOST_MICRO_BATCHES && batch % b == 0; b *= 2) {
            values[(*count)++] = b;
        }
    } else {
        for (size_t i = 0; i < params->micro_batch_count; ++i) {
            values[(*count)++] = params->micro_batches[i];
        }
    }
    return ap_planner_check_counts(setup);
}

/* The plan under the schedule asked for. A plan whose memory that schedule exceeds is none: *plan
 * is NULL then. */
static xm_status_t apply_schedule(run_t *run, ap_plan_t **plan)
{
    ap_plan_t *scheduled = NULL;
    xm_status_t status;

    if (run->params->schedule == NULL || strcmp(run->params->schedule, "1f1b") == 0) {
        return XM_OK;
    }
    status = run->automatic ? ap_plan_reschedule_best(*plan, &scheduled)
                            : ap_plan_reschedule(*plan, run->schedule, &scheduled);
    ap_plan_destroy(*plan);
    *plan = scheduled;
    if (status == XM_ERR_NO_SOLUTION) {
        (void)snprintf(run->refused, sizeof(run->refused), "%s", xm_last_error());
        status = XM_OK;
    }
    return status;
}

static xm_status_t build_plan(run_t *run, ap_planner_case_t *one, const ap_inter_op_result_t *found,
                              ap_plan_t **plan)
{
    const xm_cluster_profile_t *profile = run->params->profile;
    ap_plan_info_t info = {.model = run->params->model,
                           .global_batch = run->setup.global_batch,
                           .cluster = xm_cluster_profile_name(profile),
                           .cluster_provenance = xm_cluster_profile_provenance(profile)};
    xm_status_t status = ap_plan_build(one->table, found, &info, plan);

    return status == XM_OK ? apply_schedule(run, plan) : status;
}

/* Under 1f1b the objective is the step, so plans that are worse need not be built. */
static xm_status_t keep_if_best(run_t *run, ap_planner_case_t *one,
                                const ap_inter_op_result_t *found)
{
    bool simulated = run->params->schedule != NULL && strcmp(run->params->schedule, "1f1b") != 0;
    ap_plan_t *plan, *best = run->result.plan;
    xm_status_t status;

    if (!simulated && best != NULL && run->best <= found->objective) {
        return XM_OK;
    }
    status = build_plan(run, one, found, &plan);
    if (status != XM_OK) {
        return status;
    }
    if (plan == NULL) { /* refused by its schedule: no bound for the others */
        return XM_OK;
    }
    if (!simulated || best == NULL || ap_plan_info(plan)->step < ap_plan_info(best)->step) {
        run->result.plan = plan;
        plan = best;
    }
    run->best = found->objective < run->best ? found->objective : run->best;
    ap_plan_destroy(plan);
    return XM_OK;
}

/* Solves an open case. Finding no plan is not a failure here. */
static xm_status_t solve_case(run_t *run, ap_planner_trial_t *trial, ap_planner_case_t *one)
{
    ap_inter_op_result_t found = {0};
    xm_status_t status =
        ap_stage_table_solve(one->table, run->params->min_stages, run->params->max_stages, &found);

    if (status == XM_ERR_NO_SOLUTION) {
        return XM_OK;
    }
    if (status == XM_OK) {
        if (found.objective < trial->step) {
            trial->solved = true;
            trial->step = found.objective;
            trial->stage_count = found.stage_count;
        }
        status = keep_if_best(run, one, &found);
    }
    ap_inter_op_result_clear(&found);
    return status;
}

/* First round: plans that ignore memory give a bound, and a plan where they happen to fit. */
static xm_status_t survey_trial(run_t *run, ap_planner_trial_t *trial)
{
    ap_planner_case_t one;
    xm_status_t status = ap_planner_case_open(&run->setup, trial->micro_batches, trial->recompute,
                                              run->setup.memory_limit, false, &one);

    if (status != XM_OK) {
        return status;
    }
    status = ap_stage_table_bound(one.table, run->params->min_stages, run->params->max_stages,
                                  &trial->bound);
    if (status == XM_OK) {
        status = solve_case(run, trial, &one);
        trial->exact = !ap_stage_table_memory_binds(one.table) || trial->step <= trial->bound;
    } else if (status == XM_ERR_NO_SOLUTION) {
        trial->exact = true;
        status = XM_OK;
    }
    run->result.stages_priced += ap_stage_table_evaluated(one.table);
    ap_planner_case_close(&one);
    return status;
}

/* Second round: plans for less memory. */
static xm_status_t refine_trial(run_t *run, ap_planner_trial_t *trial)
{
    ap_planner_case_t one;
    xm_status_t status = ap_planner_case_open(&run->setup, trial->micro_batches, trial->recompute,
                                              run->setup.memory_limit, true, &one);

    if (status != XM_OK) {
        return status;
    }
    trial->exact = true;
    status = solve_case(run, trial, &one);
    run->result.stages_priced += ap_stage_table_evaluated(one.table);
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
            .step = INFINITY,
            .bound = INFINITY};
    }
    return XM_OK;
}

/* The case with the least bound that can still improve the plan enough, or NULL. */
static ap_planner_trial_t *most_promising(const run_t *run)
{
    ap_planner_trial_t *promising = NULL;

    for (int i = 0; i < run->result.trial_count; ++i) {
        ap_planner_trial_t *trial = &run->result.trials[i];

        if (!trial->exact && trial->bound < run->best * (1.0 - WORTHWHILE) &&
            (promising == NULL || trial->bound < promising->bound)) {
            promising = trial;
        }
    }
    return promising;
}

static xm_status_t try_all(run_t *run)
{
    xm_status_t status = list_trials(run);
    int count = run->result.trial_count, refined = 0;
    ap_planner_trial_t *trial;

    for (int i = 0; i < count && status == XM_OK; ++i) {
        report(run, 0.5 * (double)i / (double)count, &run->result.trials[i]);
        status = survey_trial(run, &run->result.trials[i]);
    }
    while (status == XM_OK && (trial = most_promising(run)) != NULL) {
        report(run, 0.5 + 0.5 * (double)refined++ / (double)count, trial);
        status = refine_trial(run, trial);
    }
    return status;
}

xm_status_t ap_planner_run(const ap_planner_params_t *params, ap_planner_result_t *result)
{
    run_t run = {.params = params, .best = INFINITY};
    xm_status_t status = ap_planner_setup_open(params, &run.setup);

    if (status == XM_OK) {
        status = find_schedule(&run);
    }
    if (status == XM_OK) {
        status = ap_planner_micro_batches(&run.setup, run.micro_batches, &run.count);
    }
    if (status == XM_OK) {
        status = try_all(&run);
    }
    if (status == XM_OK && run.result.plan == NULL && run.refused[0] != '\0') {
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
