/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of pipeline-bench: joins the job, agrees on options, plans and reshardings,
 * runs the pipelines and measures their steps. Like reshard-bench's job it shares the
 * outcome of every step that can fail on one rank, so that no rank waits for one that has
 * given up.
 */
#include "bench/pipeline/job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "bench/run.h"
#include "bench/pipeline/measured_run.h"
#include "bench/pipeline/report.h"
#include "bench/pipeline/stage_rank.h"
#include "cli_support.h"
#include "comm/job.h"
#include "resharding/execute.h"

enum { SENTENCE = 1024, COURSE = 512 };

static const char program[] = "pipeline-bench";

typedef struct {
    const rb_pipeline_options_t *options;
    xm_worker_t *worker;
    rb_host_map_t hosts;
    int plan_hosts, plan_devices; /* of every plan: hosts, devices of each */
    xm_cluster_profile_t *profile;
    xm_network_t *network;
    rb_compute_t *compute;
    rb_pipeline_job_info_t info;
    rb_pipeline_report_t *report; /* rank 0 */
    xm_cli_progress_t *progress;  /* rank 0 */
    char start[SENTENCE], source[SENTENCE];
    uint64_t wrong;
} job_t;

/* What a rank reports of one run. */
typedef struct {
    int64_t ns, first_update_ns, last_update_ns, wrong;
} sample_t;

/* Collective: a text that decides what ranks do has to be the same everywhere. Texts are
 * compared, not hashes, so that the sentence can show both. */
static xm_status_t agree_on_text(job_t *job, const char *what, const char *text)
{
    size_t size = (size_t)xm_worker_size(job->worker);
    char own[COURSE] = {0}, (*all)[COURSE] = calloc(size, sizeof(*all));
    xm_status_t status;

    XM_NEED_MEMORY(all, "the settings of %zu ranks", size);
    (void)snprintf(own, sizeof(own), "%s", text);
    status = xm_worker_allgather(job->worker, own, all, sizeof(own));
    for (size_t r = 1; r < size && status == XM_OK; ++r) {
        if (memcmp(all[r], all[0], sizeof(own)) != 0) {
            status =
                XM_MISMATCH("%s must be equal on all ranks: rank 0 has %.200s, rank %zu has %.200s",
                            what, all[0], r, all[r]);
            (void)xm_worker_fail_together(job->worker, status);
        }
    }
    free(all);
    return status;
}

/* The run settings as one text: whatever they are, they must be equal. */
static xm_status_t agree_on_course(job_t *job)
{
    const rb_pipeline_options_t *o = job->options;
    char text[COURSE];

    (void)snprintf(text, sizeof(text),
                   "%zu plans, %d checked runs, %d to warm up, %d timed, schedule %s, "
                   "micro-batches %d, compute %s, profile %s, timeline %s",
                   o->plan_count, o->checked, o->warmup, o->iterations,
                   o->schedule != NULL ? o->schedule : "as planned", o->micro_batches,
                   rb_compute_name((rb_compute_kind_t)o->compute),
                   o->profile != NULL ? "given" : "not given",
                   o->trace_path != NULL || o->plot_path != NULL ? "wanted" : "not wanted");
    return agree_on_text(job, "options", text);
}

/* Checks that the plan's devices are the job's ranks, host by host. */
static xm_status_t check_hosts(const job_t *job)
{
    int ranks = job->plan_hosts * job->plan_devices;

    if (xm_worker_size(job->worker) < ranks) {
        return XM_INVALID("%s is for %d x %d devices, but the job has %d ranks",
                          job->options->plans[0], job->plan_hosts, job->plan_devices,
                          xm_worker_size(job->worker));
    }
    for (int r = 0; r < ranks; ++r) {
        if (job->hosts.host_of[r] != r / job->plan_devices) {
            return XM_INVALID("%s has device %d on host %d, but the launcher has rank %d on host "
                              "%d; a different XM_HOST for each host's ranks emulates hosts",
                              job->options->plans[0], r, r / job->plan_devices, r,
                              job->hosts.host_of[r]);
        }
    }
    return XM_OK;
}

/* Each rank counts the ranks and cores of its own host. */
static xm_status_t check_cores(const job_t *job)
{
    int host = xm_worker_host_of(job->worker, xm_worker_rank(job->worker));

    return rb_compute_check((rb_compute_kind_t)job->options->compute,
                            rb_host_map_members(&job->hosts, host),
                            xm_worker_host_name(job->worker, host));
}

/* The profile is resized to the plan's cluster, as `autopar simulate` does. */
static xm_status_t load_profile(job_t *job)
{
    xm_cluster_profile_t *loaded;
    xm_status_t status;

    XM_TRY(xm_cluster_profile_load(job->options->profile, &loaded));
    status = xm_cluster_profile_resize(loaded, job->plan_hosts, job->plan_devices, &job->profile);
    (void)snprintf(job->source, sizeof(job->source), "on profile %s: %.800s", job->options->profile,
                   xm_cluster_profile_provenance(loaded));
    xm_cluster_profile_destroy(loaded);
    return status == XM_OK ? xm_network_from_profile(job->profile, job->hosts.ranks,
                                                     job->hosts.host_of, &job->network)
                           : status;
}

/* Makes the network that reshardings are planned on: the profile's, or else the emulated
 * or assumed NICs'. */
static xm_status_t make_network(job_t *job)
{
    rb_rates_t rates = {0};
    rb_options_t cluster;
    bool known;

    if (job->options->profile != NULL) {
        return load_profile(job);
    }
    (void)snprintf(job->source, sizeof(job->source), "as the plans say");
    rb_pipeline_options_cluster(job->options, job->plan_hosts, job->plan_devices, &cluster);
    XM_TRY(rb_rates_read(&cluster, &rates, &known));
    if (!known) {
        rb_rates_assume(&(rb_selection_t){0}, &rates);
    }
    return rb_rates_network(&rates, &job->hosts, NULL, &job->network);
}

/* Reads the size of the cluster that a plan is for. */
static xm_status_t plan_size(const char *path, int *hosts, int *devices)
{
    ap_plan_t *plan;
    XM_TRY(ap_plan_load(path, &plan));

    *hosts = ap_plan_info(plan)->hosts;
    *devices = ap_plan_info(plan)->devices_per_host;
    ap_plan_destroy(plan);
    return XM_OK;
}

/* Checks everything that can be wrong with what is asked for, before anything moves. */
static xm_status_t prepare_job(job_t *job)
{
    const rb_pipeline_options_t *o = job->options;
    XM_TRY(plan_size(o->plans[0], &job->plan_hosts, &job->plan_devices));

    for (size_t i = 1; i < o->plan_count; ++i) {
        int hosts, devices;

        XM_TRY(plan_size(o->plans[i], &hosts, &devices));
        if (hosts != job->plan_hosts || devices != job->plan_devices) {
            return XM_INVALID(
                "plans of one job are for one cluster: %s is for %d x %d devices, %s for %d x %d",
                o->plans[0], job->plan_hosts, job->plan_devices, o->plans[i], hosts, devices);
        }
    }
    XM_TRY(rb_host_map_of_worker(job->worker, &job->hosts));
    XM_TRY(check_hosts(job));
    XM_TRY(check_cores(job));
    return make_network(job);
}

/* The same on every rank; agree_on_plan() makes sure. */
static xm_status_t prepare_plan(job_t *job, size_t index, rb_pipeline_t **pipeline)
{
    const rb_pipeline_params_t params = {.path = job->options->plans[index],
                                         .schedule = job->options->schedule,
                                         .micro_batches = job->options->micro_batches,
                                         .profile = job->profile,
                                         .network = job->network};

    return rb_pipeline_create(&params, pipeline);
}

/* Collective: all ranks have the same plan, and the same way of bringing it about. */
static xm_status_t agree_on_plan(job_t *job, const rb_pipeline_t *pipeline)
{
    xm_status_t status = agree_on_text(job, "plans", ap_plan_digest(pipeline->plan));

    for (int w = 0; w < pipeline->way_count && status == XM_OK; ++w) {
        status = xm_reshard_agree(job->worker, pipeline->ways[w].plan, pipeline->ways[w].dtype);
        if (status == XM_ERR_MISMATCH) {
            (void)xm_worker_fail_together(job->worker, status);
        }
    }
    return status;
}

/*
 * Makes one run of all ranks; *seconds is its step, as the simulation defines it: the
 * slowest rank's list, or the mean distance of a rank's updates where a schedule spans several
 * batches.
 */
static xm_status_t run_once(job_t *job, const rb_pipeline_t *pipeline, rb_stage_rank_t *rank,
                            int number, sample_t *all, double *seconds, uint64_t *wrong)
{
    bool checked = number < job->options->checked;
    int batches = pipeline->schedule->batches;
    int64_t slowest = 0, distance = 0;
    rb_stage_run_t run;
    sample_t own;
    xm_status_t status;

    XM_TRY(xm_worker_barrier(job->worker));
    XM_TRY(rb_stage_rank_run(rank, checked, number, &run));
    own = (sample_t){run.ns, run.first_update_ns, run.last_update_ns, (int64_t)run.wrong};
    status = xm_worker_allgather(job->worker, &own, all, sizeof(own));
    for (int r = 0; r < xm_worker_size(job->worker) && status == XM_OK; ++r) {
        int64_t own_distance = all[r].last_update_ns - all[r].first_update_ns;

        slowest = all[r].ns > slowest ? all[r].ns : slowest;
        distance = own_distance > distance ? own_distance : distance;
        *wrong += (uint64_t)all[r].wrong;
    }
    *seconds = 1e-9 * (double)(batches > 1 ? distance / (batches - 1) : slowest);
    return status;
}

/* Checked runs come first and are not timed, as filling and comparing take time of their
 * own. */
static xm_status_t run_all(job_t *job, const rb_pipeline_t *pipeline, rb_stage_rank_t *rank,
                           rb_pipeline_result_t *result)
{
    const rb_pipeline_options_t *o = job->options;
    int before = o->checked + o->warmup, runs = before + o->iterations;
    sample_t *all = calloc((size_t)xm_worker_size(job->worker), sizeof(*all));
    xm_status_t status = XM_OK;

    result->seconds = calloc((size_t)o->iterations, sizeof(*result->seconds));
    if (all == NULL || result->seconds == NULL) {
        status = XM_NO_MEMORY("the times of %d runs", runs);
    }
    status = rb_share_status(job->worker, status);
    for (int i = 0; i < runs && status == XM_OK; ++i) {
        double seconds = 0;

        if (job->progress != NULL) {
            xm_cli_progress_update(job->progress, (double)i / runs, result->path);
        }
        status = run_once(job, pipeline, rank, i, all, &seconds, &result->wrong);
        if (status == XM_OK && i >= before) {
            result->seconds[result->runs++] = seconds;
        }
    }
    free(all);
    return status;
}

/* Collective: rank 0 writes when the entries of the last run ran, each stage's as its
 * first rank saw them. */
static xm_status_t write_timeline(job_t *job, const rb_pipeline_t *pipeline,
                                  const rb_stage_rank_t *rank, double step_s)
{
    const rb_timeline_files_t files = {job->options->trace_path, job->options->plot_path};
    int self = xm_worker_rank(job->worker), stages = ap_plan_stages(pipeline->plan), count;
    const ap_pipeline_span_t *own = rb_stage_rank_spans(rank, &count);
    ap_pipeline_span_t **spans = NULL;
    size_t *offsets;
    xm_status_t status = XM_OK;
    void *all;
    bool first;

    if (files.trace == NULL && files.plot == NULL) {
        return XM_OK;
    }
    (void)rb_pipeline_stage_of(pipeline, self, &first);
    XM_TRY(xm_bootstrap_allgatherv(xm_worker_bootstrap(job->worker), own,
                                   first ? (size_t)count * sizeof(*own) : 0, &all, &offsets,
                                   xm_worker_timeout(job->worker)));
    if (self == 0) {
        spans = calloc((size_t)stages, sizeof(*spans));
        for (int s = 0; s < stages && spans != NULL; ++s) {
            int leader = ap_plan_stage(pipeline->plan, s)->devices[0];

            spans[s] = (ap_pipeline_span_t *)((char *)all + offsets[leader]);
        }
        status = spans != NULL ? rb_measured_run_write(pipeline, spans, step_s, &files)
                               : XM_NO_MEMORY("a timeline");
    }
    free(spans);
    free(offsets);
    free(all);
    return rb_share_status(job->worker, status);
}

/* Everything that was made for the plan is destroyed before the next one is begun. */
static xm_status_t run_plan(job_t *job, size_t index)
{
    rb_pipeline_t *pipeline = NULL;
    rb_stage_rank_t *rank = NULL;
    rb_pipeline_result_t result = {.path = job->options->plans[index]};
    xm_status_t status = rb_share_status(job->worker, prepare_plan(job, index, &pipeline));

    XM_THEN(status, agree_on_plan(job, pipeline));
    XM_THEN(status, rb_share_status(job->worker, rb_stage_rank_create(job->worker, pipeline,
                                                                      job->compute, &rank)));
    if (status == XM_OK) {
        result.pipeline = pipeline;
        status = run_all(job, pipeline, rank, &result);
    }
    if (status == XM_OK) {
        job->wrong += result.wrong;
        status = write_timeline(job, pipeline, rank, result.seconds[result.runs - 1]);
    }
    if (status == XM_OK && job->report != NULL) {
        status = rb_pipeline_report_add(job->report, &result);
    }
    free(result.seconds);
    rb_stage_rank_destroy(rank);
    rb_pipeline_destroy(pipeline);
    /* The next plan's executors have the channels of these, so all must be gone before
     * any is made. */
    return status == XM_OK ? xm_worker_barrier(job->worker) : status;
}

static xm_status_t run_plans(job_t *job)
{
    const rb_pipeline_options_t *o = job->options;
    xm_status_t status = XM_OK;

    XM_TRY(rb_share_status(job->worker,
                           rb_compute_create((rb_compute_kind_t)o->compute, &job->compute)));
    job->info = (rb_pipeline_job_info_t){
        .options = o,
        .hosts = &job->hosts,
        .start = xm_worker_describe(job->worker, job->start, sizeof(job->start)),
        .source = job->source};
    if (xm_worker_rank(job->worker) == 0) {
        job->progress = xm_cli_progress_create(program);
        status = rb_pipeline_report_create(&job->info, &job->report);
    }
    /* Plans run one after the other in one job, so their times can be compared. */
    for (size_t i = 0; i < o->plan_count && status == XM_OK; ++i) {
        status = run_plan(job, i);
    }
    xm_cli_progress_destroy(job->progress);
    return status == XM_OK && job->report != NULL ? rb_pipeline_report_finish(job->report) : status;
}

static xm_status_t run(job_t *job, xm_status_t parsed)
{
    xm_status_t status = parsed;

    if (status == XM_OK && xm_worker_rank(job->worker) == 0) {
        status = rb_pipeline_options_check_outputs(job->options); /* the others write nothing */
    }
    status = rb_share_status(job->worker, status);
    XM_THEN(status, agree_on_course(job));
    XM_THEN(status, rb_share_status(job->worker, prepare_job(job)));
    return status == XM_OK ? run_plans(job) : status;
}

int rb_pipeline_job_run(const rb_pipeline_options_t *options, xm_status_t parsed,
                        const xm_job_env_t *env)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    job_t job = {.options = options};
    xm_error_t refusal, failure;
    int exit_status = EXIT_SUCCESS;
    xm_status_t status;

    /* Joining may set another sentence, so the refusal is kept. */
    xm_error_save(&refusal, parsed);
    /* Passes must end on time: the kernel may wake a sleeper 50 us late unless told
     * otherwise. */
    (void)prctl(PR_SET_TIMERSLACK, 1);
    params.listen_fd = xm_launch_listen_fd();
    status = xm_worker_create(env, &params, &job.worker);
    if (status < 0) {
        return xm_cli_fail_rank(env->rank == 0 || status == XM_ERR_UNREACHABLE, program, status);
    }
    if (parsed < 0) {
        (void)xm_error_restore(&refusal);
    }
    status = run(&job, parsed);
    if (status < 0) {
        xm_error_save(&failure, status);
        exit_status = xm_cli_fail_rank(xm_worker_rank(job.worker) == 0, program, status);
    } else if (job.wrong > 0) {
        exit_status = EXIT_FAILURE;
    }
    rb_pipeline_report_destroy(job.report);
    rb_compute_destroy(job.compute);
    xm_network_destroy(job.network);
    xm_cluster_profile_destroy(job.profile);
    rb_host_map_clear(&job.hosts);
    xm_worker_destroy(job.worker, status < 0 ? failure.sentence : NULL);
    return exit_status;
}
