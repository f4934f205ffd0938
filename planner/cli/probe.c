/*
 * autopar probe: measures the links of a job and writes a cluster profile. Starts its own local
 * ranks, or joins the job of a launcher.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli_support/options.h"
#include "cli_support/progress.h"
#include "comm/launcher.h"
#include "comm/probe.h"
#include "comm/text.h"
#include "comm/worker.h"
#include "planner/cli/command.h"

enum { DEFAULT_HOSTS = 2, DEFAULT_RANKS_PER_HOST = 2, MAX_ARGUMENTS = 128, TEXT = 32 };

static const char program[] = "autopar probe";

typedef struct probe_options {
    const char *output;
    int ranks, hosts, ranks_per_host, repetitions;
    uint64_t max_bytes;
    bool json;
} probe_options_t;

static xm_status_t parse_options(int argc, char *const *argv, probe_options_t *o, xm_cli_t **cli)
{
    const xm_cli_option_t options[] = {
        {.name = "output",
         .letter = 'o',
         .kind = XM_CLI_STRING,
         .target = &o->output,
         .argument = "FILE",
         .help = "Write the cluster profile as JSON."},
        {.name = "ranks",
         .letter = 'n',
         .kind = XM_CLI_INT,
         .target = &o->ranks,
         .argument = "RANKS",
         .minimum = 1,
         .maximum = 1024,
         .help = "Start this many local ranks, all on this host."},
        {.name = "hosts",
         .kind = XM_CLI_INT,
         .target = &o->hosts,
         .argument = "HOSTS",
         .minimum = 1,
         .maximum = 1024,
         .help = "Emulate this many hosts, whose ranks talk over TCP (default 2)."},
        {.name = "ranks-per-host",
         .kind = XM_CLI_INT,
         .target = &o->ranks_per_host,
         .argument = "RANKS",
         .minimum = 1,
         .maximum = 256,
         .help = "Ranks of each emulated host (default 2)."},
        {.name = "max-bytes",
         .kind = XM_CLI_BYTES,
         .target = &o->max_bytes,
         .argument = "BYTES",
         .help = "Largest message (default 64MiB)."},
        {.name = "repetitions",
         .kind = XM_CLI_INT,
         .target = &o->repetitions,
         .argument = "COUNT",
         .minimum = 1,
         .maximum = 1000,
         .help = "Measurements whose median counts (default 5)."},
        {.name = "json",
         .kind = XM_CLI_FLAG,
         .target = &o->json,
         .help = "Print the profile as JSON instead of a table."},
    };
    xm_cli_command_t command = XM_CLI_COMMAND_INIT;
    xm_status_t status;

    command.program = program;
    command.summary =
        "Measures latency and bandwidth of every link class and the speed of a device.\n"
        "Under mpirun, srun or torchrun it joins the job; -n, --hosts and\n"
        "--ranks-per-host are for starting local ranks and are not needed then.";
    command.options = options;
    command.option_count = sizeof(options) / sizeof(options[0]);
    status = xm_cli_parse(&command, argc, argv, cli);
    if (status == XM_OK && o->ranks > 0 && o->hosts > 0 && o->ranks_per_host > 0 &&
        o->hosts * o->ranks_per_host != o->ranks) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "%d hosts of %d ranks are not %d ranks",
                            o->hosts, o->ranks_per_host, o->ranks);
    }
    return status;
}

/* -n alone: one host. --hosts or --ranks-per-host: that many, filled up from -n or the defaults. */
static xm_status_t resolve(const probe_options_t *o, int *ranks, int *ranks_per_host)
{
    int hosts = o->hosts;

    *ranks = o->ranks;
    *ranks_per_host = o->ranks_per_host;
    if (*ranks > 0 && hosts == 0 && *ranks_per_host == 0) {
        return XM_OK;
    }
    if (*ranks == 0) {
        hosts = hosts > 0 ? hosts : DEFAULT_HOSTS;
        *ranks_per_host = *ranks_per_host > 0 ? *ranks_per_host : DEFAULT_RANKS_PER_HOST;
        *ranks = hosts * *ranks_per_host;
        return XM_OK;
    }
    if (*ranks_per_host == 0) {
        *ranks_per_host = *ranks / hosts;
    }
    if (*ranks % *ranks_per_host != 0 || (hosts > 0 && hosts * *ranks_per_host != *ranks)) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "%d ranks do not fill %d emulated hosts evenly", *ranks,
                            hosts > 0 ? hosts : *ranks / *ranks_per_host + 1);
    }
    return XM_OK;
}

static int launch(const probe_options_t *o, int argc, char *const *argv)
{
    xm_launch_params_t params = XM_LAUNCH_PARAMS_INIT;
    char *arguments[MAX_ARGUMENTS + 2] = {0};
    char name[] = "autopar";
    int exit_code = 1;
    xm_status_t status = resolve(o, &params.ranks, &params.ranks_per_host);

    if (status == XM_OK && argc > MAX_ARGUMENTS) {
        status = xm_error_set(XM_ERR_INVALID_ARGUMENT, "more than %d arguments", MAX_ARGUMENTS);
    }
    if (status != XM_OK) {
        return xm_cli_fail(program, status);
    }
    arguments[0] = name;
    for (int i = 0; i < argc; ++i) {
        arguments[i + 1] = argv[i];
    }
    params.argv = arguments;
    status = xm_launch(&params, &exit_code);
    if (status != XM_OK) {
        (void)xm_cli_fail(program, status);
        return exit_code != 0 ? exit_code : 1;
    }
    return 0;
}

static void print_profile(const xm_cluster_profile_t *profile)
{
    char text[TEXT];

    (void)printf("# cluster %s: %d hosts x %d devices\n# %s\n", xm_cluster_profile_name(profile),
                 xm_cluster_profile_hosts(profile), xm_cluster_profile_devices_per_host(profile),
                 xm_cluster_profile_provenance(profile));
    (void)printf("# %-12s %8s %12s %14s\n", "link class", "points", "latency", "bandwidth GB/s");
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        size_t points;

        (void)xm_cluster_profile_curve(profile, (xm_link_class_t)link, &points);
        (void)printf(
            "  %-12s %8zu %12s %14.3f\n", xm_link_class_name((xm_link_class_t)link), points,
            xm_text_format_seconds(xm_cluster_profile_latency(profile, (xm_link_class_t)link), text,
                                   sizeof(text)),
            1e-9 * xm_cluster_profile_bandwidth(profile, (xm_link_class_t)link));
    }
    (void)printf("  NIC of a host %.3f GB/s, device %.3f GFLOP/s, memory %.3f GB/s, %s\n",
                 1e-9 * xm_cluster_profile_nic_bandwidth(profile),
                 1e-9 * xm_cluster_profile_device_flops(profile),
                 1e-9 * xm_cluster_profile_device_memory_bandwidth(profile),
                 xm_text_format_bytes((uint64_t)xm_cluster_profile_device_memory_bytes(profile),
                                      text, sizeof(text)));
}

/* Prints the file form of a profile, by way of a temporary file. */
static xm_status_t print_json(const xm_cluster_profile_t *profile)
{
    char path[] = "/tmp/autopar-probe-XXXXXX";
    int fd = mkstemp(path), c;
    FILE *file;
    xm_status_t status;

    if (fd < 0) {
        return xm_error_set(XM_ERR_IO, "cannot make a temporary file in /tmp: %s", strerror(errno));
    }
    (void)close(fd);
    status = xm_cluster_profile_save(profile, path);
    if (status == XM_OK) {
        file = fopen(path, "rb");
        while (file != NULL && (c = getc(file)) != EOF) {
            (void)putchar(c);
        }
        if (file == NULL || fclose(file) != 0) {
            status = xm_error_set(XM_ERR_IO, "cannot read %s: %s", path, strerror(errno));
        }
    }
    (void)unlink(path);
    return status;
}

static xm_status_t measure(xm_worker_t *worker, const probe_options_t *o)
{
    bool first = xm_worker_rank(worker) == 0;
    xm_cli_progress_t *progress = first ? xm_cli_progress_create(program) : NULL;
    xm_probe_params_t params = XM_PROBE_PARAMS_INIT;
    xm_cluster_profile_t *profile;
    xm_status_t status;

    params.max_bytes = o->max_bytes;
    params.repetitions = o->repetitions;
    params.progress = xm_cli_progress_update;
    params.progress_arg = progress;
    status = xm_probe_run(worker, &params, &profile);
    xm_cli_progress_destroy(progress);
    if (status != XM_OK) {
        return status;
    }
    if (first) {
        if (o->json) {
            status = print_json(profile);
        } else {
            print_profile(profile);
        }
        if (status == XM_OK && o->output != NULL) {
            status = xm_cluster_profile_save(profile, o->output);
        }
        if (status == XM_OK) {
            status = xm_cli_flush();
        }
    }
    xm_cluster_profile_destroy(profile);
    return status;
}

static xm_status_t join(const xm_job_env_t *env, const probe_options_t *o)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;
    xm_status_t status;

    params.listen_fd = xm_launch_listen_fd();
    status = xm_worker_create(env, &params, &worker);
    if (status != XM_OK) {
        return status;
    }
    status = measure(worker, o);
    xm_worker_destroy(worker, status == XM_OK ? NULL : xm_last_error());
    return status;
}

int ap_command_probe(int argc, char *const *argv)
{
    probe_options_t options = {0};
    xm_job_env_t env;
    xm_cli_t *cli = NULL;
    xm_status_t status = parse_options(argc, argv, &options, &cli);
    int code = 0;

    if (status == XM_OK && !xm_cli_finished(cli)) {
        status = xm_job_env_read(&env);
        if (status == XM_OK && env.rank < 0) {
            code = launch(&options, argc, argv);
        } else if (status == XM_OK) {
            status = join(&env, &options);
            if (status != XM_OK) {
                (void)xm_error_prefix(status, "rank %d", env.rank);
            }
        }
    }
    xm_cli_destroy(cli);
    return status == XM_OK ? code : xm_cli_fail(program, status);
}
