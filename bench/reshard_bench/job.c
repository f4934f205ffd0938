/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's way through a job: agree on what is asked for, on the rates and on the
 * plans, run the cases, and let rank 0 report. Every step that can fail on one rank alone
 * ends in a collective comparison, so all ranks stop together and the first failing
 * rank's sentence is the one that is printed.
 */
#include "bench/reshard_bench/job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/run.h"
#include "bench/cases.h"
#include "bench/report.h"
#include "comm/job.h"
#include "resharding/execute.h"

static const char program[] = "reshard-bench";

typedef struct {
    xm_worker_t *worker;
    const rb_options_t *options;
    rb_selection_t selection;
    rb_host_map_t hosts;
    rb_rates_t rates;
    rb_rank_info_t *ranks;
    xm_network_t *network;
    rb_prepared_list_t prepared;
    rb_job_info_t info;
    rb_report_t *report; /* rank 0 */
    char start[512];
    uint64_t wrong;
} job_t;

/*
 * The run settings that decide which collective calls a rank makes and which bytes it
 * expects: they must be equal on all ranks, or ranks would wait for each other in
 * different calls.
 */
typedef struct {
    int64_t cases, warmup, iterations, validate, verify, gathers, rates, seed;
} settings_t;

/* Compares the settings of all ranks with rank 0's, field by field, and names the first
 * that differs. */
static xm_status_t check_settings(job_t *job)
{
    static const char *const names[] = {"number of cases",
                                        "--warmup",
                                        "--iterations",
                                        "--validate",
                                        "--verify",
                                        "--trace or --plot",
                                        "--profile or --nic-gbps",
                                        "--seed"};
    const rb_options_t *o = job->options;
    settings_t own = {job->selection.count,
                      o->warmup,
                      o->iterations,
                      o->validate,
                      o->verify,
                      o->trace_path != NULL || o->plot_path != NULL,
                      o->profile != NULL || o->nic_rates > 0,
                      o->seed};
    const size_t fields = sizeof(own) / sizeof(int64_t);
    size_t size = (size_t)xm_worker_size(job->worker);
    int64_t *all = malloc(size * sizeof(own));
    xm_status_t status;

    XM_NEED_MEMORY(all, "the settings of %zu ranks", size);
    status = xm_worker_allgather(job->worker, &own, all, sizeof(own));
    for (size_t i = 0; status == XM_OK && i < size * fields; ++i) {
        if (all[i] != all[i % fields]) {
            status = XM_MISMATCH("%s must be equal on all ranks: rank 0 has %" PRId64
                                 ", rank %zu has %" PRId64,
                                 names[i % fields], all[i % fields], i / fields, all[i]);
            (void)xm_worker_fail_together(job->worker, status);
        }
    }
    free(all);
    return status;
}

/* Checks the hosts of a launcher's job against --ranks-per-host: they are what they are,
 * while those that our own launcher emulates fit by construction. */
static xm_status_t check_hosts(const job_t *job)
{
    int ranks_per_host = job->options->ranks_per_host;

    for (int r = 0; ranks_per_host > 0 && r < job->hosts.ranks; ++r) {
        if (job->hosts.host_of[r] != r / ranks_per_host) {
            return XM_INVALID("--ranks-per-host %d puts rank %d on host %d, but the launcher has "
                              "it on host %d; a different XM_HOST for each rank emulates hosts",
                              ranks_per_host, r, r / ranks_per_host, job->hosts.host_of[r]);
        }
    }
    return XM_OK;
}

/* Checks everything that can be wrong with what is asked for, before anything moves. */
static xm_status_t check_request(job_t *job)
{
    const rb_options_t *o = job->options;

    if (o->ranks > 0 && o->ranks != xm_worker_size(job->worker)) {
        return XM_INVALID("-n %d, but the launcher started %d ranks; leave -n out", o->ranks,
                          xm_worker_size(job->worker));
    }
    XM_TRY(rb_select(o, &job->selection));
    if (xm_worker_rank(job->worker) == 0) {
        XM_TRY(rb_report_check(o)); /* the others write nothing */
    }
    XM_TRY(rb_host_map_of_worker(job->worker, &job->hosts));
    XM_TRY(check_hosts(job));
    return rb_cluster_check(&job->selection, &job->hosts);
}

/* Rank 0 reads the rates, or all ranks probe them, and everybody uses rank 0's numbers:
 * plans must be equal to the bit. */
static xm_status_t agree_on_rates(job_t *job)
{
    int rank = xm_worker_rank(job->worker);
    size_t size = (size_t)xm_worker_size(job->worker);
    bool known = false;
    rb_rates_t *all;
    xm_status_t status = XM_OK;

    if (rank == 0) {
        status = rb_rates_read(job->options, &job->rates, &known);
    }
    status = rb_share_status(job->worker, status);
    if (status == XM_OK && job->options->profile == NULL && job->options->nic_rates == 0) {
        status = rb_rates_probe(job->worker, rank == 0, &job->rates);
    }
    XM_TRY(status);
    all = malloc(size * sizeof(*all));
    XM_NEED_MEMORY(all, "the rates of %zu ranks", size);
    status = xm_worker_allgather(job->worker, &job->rates, all, sizeof(*all));
    if (status == XM_OK) {
        job->rates = all[0];
        rb_rates_set_uplinks(job->options, &job->rates);
        /* Every rank computes the same network from the same numbers, so it fails on all
         * ranks or on none. */
        status = xm_worker_fail_together(job->worker, rb_rates_network(&job->rates, &job->hosts,
                                                                       xm_worker_rails(job->worker),
                                                                       &job->network));
    }
    free(all);
    return status;
}

/* The names of hosts and the process ids, for the report. */
static xm_status_t introduce_ranks(job_t *job)
{
    int rank = xm_worker_rank(job->worker);
    rb_rank_info_t own = {.pid = getpid()};

    (void)snprintf(own.host, sizeof(own.host), "%s",
                   xm_worker_host_name(job->worker, xm_worker_host_of(job->worker, rank)));
    job->ranks = malloc((size_t)xm_worker_size(job->worker) * sizeof(*job->ranks));
    XM_NEED_MEMORY(job->ranks, "the names of %d ranks", xm_worker_size(job->worker));
    return xm_worker_allgather(job->worker, &own, job->ranks, sizeof(own));
}

/* Takes the plans of a case's variants, which were made beforehand where they are small. */
static xm_status_t prepare_variants(job_t *job, int first, int count, rb_prepared_t *prepared)
{
    xm_status_t status = XM_OK;

    for (int v = 0; status == XM_OK && v < count; ++v) {
        status = rb_prepared_list_take(&job->prepared, first + v, &prepared[v]);
    }
    return rb_share_status(job->worker, status);
}

/* Runs all variants of the case whose first is at @p first. They are prepared together
 * because their runs alternate. */
static xm_status_t run_case(job_t *job, int first)
{
    int count = job->selection.cases[first].variants;
    rb_prepared_t *prepared = calloc((size_t)count, sizeof(*prepared));
    rb_result_t *results = calloc((size_t)count, sizeof(*results));
    xm_status_t status;

    if (prepared == NULL || results == NULL) {
        status = XM_NO_MEMORY("%d results", count);
        goto free_arrays;
    }
    status = prepare_variants(job, first, count, prepared);
    XM_THEN(status, rb_job_case(job->worker, &job->info, first, count, prepared, results));
    for (int v = 0; status == XM_OK && v < count; ++v) {
        job->wrong += results[v].wrong;
        status = job->report != NULL ? rb_report_add(job->report, &results[v]) : XM_OK;
    }
    for (int v = 0; v < count; ++v) {
        rb_result_clear(&results[v]);
        rb_prepared_clear(&prepared[v]);
    }

free_arrays:
    free(results);
    free(prepared);
    return status;
}

static xm_status_t run_cases(job_t *job)
{
    xm_status_t status = XM_OK;

    job->info =
        (rb_job_info_t){.options = job->options,
                        .selection = &job->selection,
                        .hosts = &job->hosts,
                        .rates = &job->rates,
                        .ranks = job->ranks,
                        .window = xm_executor_window(xm_worker_transport(job->worker)),
                        .start = xm_worker_describe(job->worker, job->start, sizeof(job->start))};
    if (xm_worker_rank(job->worker) == 0) {
        status = rb_report_create(&job->info, &job->report);
    }
    /* The selection lists the variants of a case next to each other. */
    for (int i = 0; status == XM_OK && i < job->selection.count;
         i += job->selection.cases[i].variants) {
        status = run_case(job, i);
    }
    return status == XM_OK && job->report != NULL ? rb_report_finish(job->report) : status;
}

/* A rank whose options are wrong takes part up to the first comparison, so that the
 * others learn of it. */
static xm_status_t run(job_t *job, xm_status_t parsed)
{
    XM_TRY(rb_share_status(job->worker, parsed));

    XM_TRY(rb_share_status(job->worker, check_request(job)));
    XM_TRY(check_settings(job));
    XM_TRY(agree_on_rates(job));
    XM_TRY(rb_share_status(job->worker, rb_prepared_list_create(&job->selection, &job->hosts,
                                                                job->network, &job->prepared)));
    XM_TRY(introduce_ranks(job));
    return run_cases(job);
}

/*
 * Rank 0 speaks for all, and rank 1 where rank 0 is known to be gone. A rank 0 that gave
 * up is not gone, it has spoken; one that others take for gone, since the way to them is
 * cut, speaks too.
 */
static bool speaks(xm_worker_t *worker)
{
    int failed = -1;

    return xm_worker_rank(worker) == 0 ||
           (xm_worker_rank(worker) == 1 &&
            xm_bootstrap_poll(xm_worker_bootstrap(worker), &failed) == XM_ERR_PEER_DIED &&
            failed == 0);
}

/* Decides who speaks before there is a worker, when nobody knows who else is alive: rank
 * 0, rank 1 in case it is rank 0 that is missing, and whoever cannot find the way. */
static bool speaks_alone(int rank, xm_status_t status)
{
    return rank == 0 || status == XM_ERR_UNREACHABLE ||
           (rank == 1 && (status == XM_ERR_PEER_DIED || status == XM_ERR_TIMEOUT));
}

int rb_job_run(const rb_options_t *options, xm_status_t parsed, const xm_job_env_t *env)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    job_t job = {.options = options};
    xm_error_t refusal, failure;
    xm_status_t status;
    int exit_status;

    /* Joining may set another sentence. */
    xm_error_save(&refusal, parsed);
    params.listen_fd = xm_launch_listen_fd();
    params.transport = parsed == XM_OK ? rb_transport_name(options->transport) : NULL;
    status = xm_worker_create(env, &params, &job.worker);
    if (status < 0) {
        return xm_cli_fail_rank(speaks_alone(env->rank, status), program, status);
    }
    if (parsed < 0) {
        (void)xm_error_restore(&refusal);
    }
    /* The worker is destroyed last, with the failure's sentence, which it passes on to
     * the other ranks. */
    status = run(&job, parsed);
    exit_status = job.wrong > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
    if (status < 0) {
        xm_error_save(&failure, status);
        exit_status = xm_cli_fail_rank(speaks(job.worker), program, status);
    }
    rb_report_destroy(job.report);
    rb_prepared_list_clear(&job.prepared);
    xm_network_destroy(job.network);
    free(job.ranks);
    rb_host_map_clear(&job.hosts);
    rb_selection_clear(&job.selection);
    xm_worker_destroy(job.worker, status < 0 ? failure.sentence : NULL);
    return exit_status;
}
