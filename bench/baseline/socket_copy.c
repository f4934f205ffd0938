/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket_copy: moves bytes between pairs of ranks over plain TCP, as a measure of what
 * the network and its processor time cost without UCX and without a plan. What
 * reshard-bench needs above this is the price of its own layers.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/baseline/socket_flow.h"
#include "cli_support.h"
#include "comm/base.h"
#include "comm/job.h"
#include <crossmesh/version.h>

static const char program[] = "socket_copy";

static const char summary[] =
    "Sends so many bytes over TCP from the first rank of every pair to the second, all at once, "
    "with send() and recv(), checks them, and prints time and processor time of all ranks. Ranks "
    "are processes of this machine (-n), or those of a launcher such as torchrun, mpirun or srun.";

enum { MOST_RANKS = 4096, MOST_RUNS = 100000 };

typedef struct {
    int ranks, warmup, runs;
    uint64_t bytes;
    const char *pairs;
    bool csv;
} options_t;

typedef struct {
    const options_t *options;
    rb_pair_list_t pairs;
    xm_bootstrap_t *bootstrap;
    rb_socket_flow_t *flow;
    rb_flow_sample_t *gathered; /* of all ranks */
    double *seconds;            /* of each timed run */
    double cpu_s;               /* of all timed runs */
    int64_t wrong;
} job_t;

/* The time is the slowest rank's, and processor time is summed over ranks, as in
 * reshard-bench. */
static xm_status_t run_once(job_t *job, int run)
{
    rb_flow_sample_t own;
    int64_t slowest = 0;
    double cpu = 0;

    XM_TRY(rb_socket_flow_run(job->flow, run, &own));
    XM_TRY(xm_bootstrap_allgather(job->bootstrap, &own, job->gathered, sizeof(own),
                                  xm_config_seconds(XM_CONFIG_TIMEOUT)));
    for (int r = 0; r < xm_bootstrap_size(job->bootstrap); ++r) {
        const rb_flow_sample_t *sample = &job->gathered[r];

        slowest = sample->ns > slowest ? sample->ns : slowest;
        cpu += (double)sample->cpu_ns * 1e-9;
        job->wrong += sample->wrong;
    }
    if (run >= job->options->warmup) {
        job->seconds[run - job->options->warmup] = (double)slowest * 1e-9;
        job->cpu_s += cpu;
    }
    return XM_OK;
}

/* The median decides the rate; minimum and maximum show how far runs differ. */
static xm_status_t print(job_t *job)
{
    static const xm_table_column_t columns[] = {
        {"bytes", "B", 13, false},  {"min", "us", 11, false},    {"median", "us", 11, false},
        {"max", "us", 11, false},   {"algbw", "GB/s", 9, false}, {"cpu", "us", 11, false},
        {"cpu", "s/GB", 11, false}, {"#wrong", "B", 8, false}};
    xm_table_t table = {stdout, columns, 8, .csv = job->options->csv};
    const options_t *o = job->options;
    const double bytes = (double)o->bytes * job->pairs.count;
    const double median = xm_array_median(job->seconds, o->runs);

    if (!o->csv) {
        printf("# socket_copy: %d ranks, %d pairs, %" PRIu64 " B a pair, warm-up %d, runs %d\n",
               xm_bootstrap_size(job->bootstrap), job->pairs.count, o->bytes, o->warmup, o->runs);
    }
    xm_table_head(&table);
    xm_table_number(&table, 0, bytes);
    xm_table_number(&table, 1, job->seconds[0] * 1e6);
    xm_table_number(&table, 1, median * 1e6);
    xm_table_number(&table, 1, job->seconds[o->runs - 1] * 1e6);
    xm_table_number(&table, 3, bytes / median * 1e-9);
    xm_table_number(&table, 1, job->cpu_s / o->runs * 1e6);
    xm_table_number(&table, 3, job->cpu_s / o->runs / bytes * 1e9);
    xm_table_number(&table, 0, (double)job->wrong);
    return xm_cli_flush();
}

/* All ranks time alike; rank 0 alone prints. */
static xm_status_t run(job_t *job, const xm_job_env_t *env)
{
    const options_t *o = job->options;
    const double timeout = xm_config_seconds(XM_CONFIG_TIMEOUT);

    XM_TRY(xm_bootstrap_create_tcp(env, xm_launch_listen_fd(), timeout, &job->bootstrap));
    job->seconds = calloc((size_t)o->runs, sizeof(*job->seconds));
    job->gathered = calloc((size_t)env->size, sizeof(*job->gathered));
    if (job->seconds == NULL || job->gathered == NULL) {
        return XM_NO_MEMORY("the times of %d ranks", env->size);
    }
    XM_TRY(rb_socket_flow_create(job->bootstrap, env, &job->pairs, o->bytes, timeout, &job->flow));
    for (int i = 0; i < o->warmup + o->runs; ++i) {
        XM_TRY(run_once(job, i));
    }
    return env->rank == 0 ? print(job) : XM_OK;
}

/* One rank's part. Every rank says what went wrong with itself, and nothing of what went
 * wrong with others. */
static int run_rank(const options_t *options, const xm_job_env_t *env)
{
    job_t job = {.options = options};
    xm_status_t status = rb_pair_list_parse(options->pairs, env->size, &job.pairs);
    int exit_status = EXIT_SUCCESS;

    if (status < 0) {
        return env->rank == 0 ? xm_cli_fail(program, status) : 2;
    }
    status = run(&job, env);
    if (status < 0 && job.bootstrap != NULL) {
        xm_bootstrap_abort(job.bootstrap, xm_last_error());
    }
    if (status < 0) {
        exit_status = status == XM_ERR_CANCELED ? EXIT_FAILURE : xm_cli_fail(program, status);
    } else if (job.wrong > 0) {
        exit_status = EXIT_FAILURE;
    }
    rb_socket_flow_destroy(job.flow);
    xm_bootstrap_destroy(job.bootstrap);
    free(job.gathered);
    free(job.seconds);
    rb_pair_list_clear(&job.pairs);
    return exit_status;
}

static int launch(const options_t *options, char *const *argv)
{
    xm_launch_params_t params = XM_LAUNCH_PARAMS_INIT;
    rb_pair_list_t pairs;
    int exit_status = EXIT_FAILURE;
    xm_status_t status = rb_pair_list_parse(options->pairs, options->ranks, &pairs);

    if (status < 0) {
        return xm_cli_fail(program, status);
    }
    rb_pair_list_clear(&pairs);
    params.ranks = options->ranks;
    params.argv = argv;
    status = xm_launch(&params, &exit_status);
    if (status == XM_OK) {
        return EXIT_SUCCESS;
    }
    /* A rank that ends by itself has said why; only the parent knows about one that was
     * killed. */
    if (exit_status > 128 || status != XM_ERR_PEER_DIED) {
        (void)xm_cli_fail(program, status);
    }
    return exit_status;
}

/* The mistakes of the parent are found before any rank starts. */
static xm_status_t check(const options_t *options, const xm_job_env_t *env)
{
    if (options->pairs == NULL) {
        return XM_INVALID("--pairs is not given");
    }
    if (env->rank < 0 && options->ranks == 0) {
        return XM_INVALID("no launcher has started this process (RANK and WORLD_SIZE are not set) "
                          "and -n is not given");
    }
    return XM_OK;
}

int main(int argc, char **argv)
{
    options_t options = {.bytes = UINT64_C(1) << 30, .warmup = 1, .runs = 5};
    const xm_cli_option_t table[] = {
        {"ranks", 'n', XM_CLI_INT, &options.ranks, "RANKS", 1, MOST_RANKS,
         "Start so many local ranks (default: join the launcher's job)."},
        {"pairs", 'p', XM_CLI_STRING, &options.pairs, "LIST", 0, 0,
         "Senders and receivers, such as 0:4,1:5, or 0-3:4-7 for each of the ones with each of the "
         "others."},
        {"bytes", 'b', XM_CLI_BYTES, &options.bytes, "BYTES", 0, 0,
         "Bytes of each pair (default 1GiB)."},
        {"warmup", 'w', XM_CLI_INT, &options.warmup, "W", 0, MOST_RUNS,
         "Runs before those that are timed (default 1)."},
        {"iterations", 'i', XM_CLI_INT, &options.runs, "I", 1, MOST_RUNS,
         "Timed runs (default 5)."},
        {"csv", 0, XM_CLI_FLAG, &options.csv, NULL, 0, 0,
         "Print the table as CSV, and nothing else."},
    };
    xm_cli_command_t command =
        XM_CLI_COMMAND(program, NULL, summary, "socket_copy -n 2 -p 0:1 -b 1M", table, 0, 0);
    xm_cli_t *cli = NULL;
    xm_job_env_t env;
    int exit_status = EXIT_SUCCESS;
    xm_status_t status = xm_job_env_read(&env);

    command.version = "socket_copy " XM_VERSION_STRING;
    XM_THEN(status, xm_cli_check_settings(env.rank < 0, program));
    XM_THEN(status, xm_cli_parse(&command, argc, argv, &cli));
    if (status == XM_OK && !xm_cli_finished(cli)) {
        status = check(&options, &env);
        if (status == XM_OK) {
            exit_status = env.rank >= 0 ? run_rank(&options, &env) : launch(&options, argv);
        }
    }
    xm_cli_destroy(cli);
    return status < 0 ? xm_cli_fail(program, status) : exit_status;
}
