/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autopar probe: measures the links and devices of a cluster and writes them as a cluster profile.
 * The same command line serves in two ways: started by hand it launches local ranks, started by
 * mpirun, srun or torchrun it is one rank of their job, and the environment tells which. It also
 * compares two profiles, because a cluster changes and a plan is only as good as its profile, and
 * it adds collectives that other programs have measured.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli_support.h"
#include "comm/profile.h"
#include "comm/probe.h"
#include "comm/job.h"
#include "comm/base.h"
#include "comm/worker.h"
#include "planner/cli/command.h"
#include "planner/cli/probe_print.h"

enum {
    DEFAULT_HOSTS = 2,
    DEFAULT_RANKS_PER_HOST = 2,
    MAX_ARGUMENTS = 128,
    CHANGED = 1,
    CALLER = 2
};

static const char program[] = "autopar probe";
static const char summary[] =
    "Measures latency and bandwidth of every link class and the speed of a device. "
    "Under mpirun, srun or torchrun it joins the job; -n, --hosts and "
    "--ranks-per-host are for starting local ranks and are not needed then.\n"
    "With NEW.json or --import nothing is measured.";

typedef struct probe_options {
    const char *output;
    int ranks, hosts, ranks_per_host, repetitions;
    uint64_t max_bytes;
    double budget;
    bool resume;
    const char *before, *after; /* profiles to compare */
    double threshold;           /* per cent */
    const char *import, *cluster, *axis, *collective;
    const char *collectives; /* what of them to measure */
    xm_cli_json_t json;
    int argc; /* the command line, for the local ranks */
    char *const *argv;
    int code; /* the exit status, unless there is an error */
} probe_options_t;

/* The files that this process will write. Of several ranks only the first does. */
static xm_status_t check_outputs(const probe_options_t *o)
{
    XM_TRY(xm_file_check_output("--output", o->output));

    return xm_file_check_output("--json-file", o->json.file);
}

/* Options that need each other. */
static xm_status_t check_options(const probe_options_t *o)
{
    if (o->after != NULL && o->before == NULL) {
        return XM_INVALID("%s: a profile to compare with is needed: --compare OLD.json", o->after);
    }
    if (o->before != NULL && o->after == NULL && o->output == NULL) {
        return XM_INVALID("--compare without NEW.json measures one, and -o must say where it goes");
    }
    if (o->resume && o->output == NULL) {
        return XM_INVALID("--resume needs the -o FILE of the probe that was interrupted");
    }
    if (o->collectives != NULL && (o->after != NULL || o->import != NULL)) {
        return XM_INVALID("--collectives measures; NEW.json and --import do not");
    }
    if (o->collectives != NULL && xm_collective_check_choice(o->collectives) < 0) {
        return xm_error_prefix(XM_ERR_INVALID_ARGUMENT, "--collectives");
    }
    if (o->import != NULL && (o->cluster == NULL || o->output == NULL || o->before != NULL)) {
        return XM_INVALID("--import needs --cluster FILE and -o FILE, and excludes --compare");
    }
    if (o->import == NULL && (o->cluster != NULL || o->axis != NULL || o->collective != NULL)) {
        return XM_INVALID("--cluster, --axis and --collective are for --import");
    }
    if (o->ranks > 0 && o->hosts > 0 && o->ranks_per_host > 0 &&
        o->hosts * o->ranks_per_host != o->ranks) {
        return XM_INVALID("%d hosts of %d ranks are not %d ranks", o->hosts, o->ranks_per_host,
                          o->ranks);
    }
    return XM_OK;
}

/* Settles how many ranks there are and how many stand on one emulated host. With -n alone they all
 * stand on this host; with --hosts or --ranks-per-host the missing numbers come from -n or from the
 * defaults. Ranks that would not fill the hosts evenly are refused, because a profile has one
 * number of devices for all hosts. */
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
    if (*ranks < hosts) {
        return XM_INVALID("%d ranks are too few for %d emulated hosts", *ranks, hosts);
    }
    if (*ranks_per_host == 0) {
        *ranks_per_host = *ranks / hosts;
    }
    if (*ranks % *ranks_per_host != 0 || (hosts > 0 && hosts * *ranks_per_host != *ranks)) {
        return XM_INVALID("%d ranks do not fill %d emulated hosts evenly", *ranks,
                          hosts > 0 ? hosts : *ranks / *ranks_per_host + 1);
    }
    return XM_OK;
}

/* Starts the local ranks: each of them is this program with the same arguments, and finds in its
 * environment that it is a rank. The exit code is that of the rank that failed. */
static int launch(const probe_options_t *o)
{
    xm_launch_params_t params = XM_LAUNCH_PARAMS_INIT;
    char *arguments[MAX_ARGUMENTS + 2] = {0};
    char name[] = "autopar";
    int exit_code = 1;
    xm_status_t status = check_outputs(o);

    XM_THEN(status, resolve(o, &params.ranks, &params.ranks_per_host));
    if (status == XM_OK && o->argc > MAX_ARGUMENTS) {
        status = XM_INVALID("more than %d arguments", MAX_ARGUMENTS);
    }
    if (status != XM_OK) {
        return xm_cli_fail(program, status);
    }
    arguments[0] = name;
    for (int i = 0; i < o->argc; ++i) {
        arguments[i + 1] = o->argv[i];
    }
    params.argv = arguments;
    status = xm_launch(&params, &exit_code);
    if (status == XM_OK) {
        return 0;
    }
    /* A rank that ends by itself has said why; of one that was killed only the parent knows. */
    if (exit_code == 0 || exit_code > 128) {
        (void)xm_cli_fail(program, status);
    }
    return exit_code != 0 ? exit_code : 1;
}

/* Prints what has changed since the profile before, which is an exit status of its own where it is
 * more than the threshold allows. */
static xm_status_t compare(probe_options_t *o)
{
    xm_cluster_profile_t *before = NULL, *after = NULL;
    xm_profile_compare_t *differences = NULL;
    double threshold = o->threshold / 100;
    xm_status_t status = xm_cluster_profile_load(o->before, &before);

    XM_THEN(status, xm_cluster_profile_load(o->after != NULL ? o->after : o->output, &after));
    XM_THEN(status, xm_profile_compare_create(before, after, &differences));
    if (status == XM_OK) {
        ap_probe_print_compare(differences, threshold);
        o->code = xm_profile_compare_beyond(differences, threshold) > 0 ? CHANGED : 0;
        status = xm_cli_flush();
    }
    xm_profile_compare_destroy(differences);
    xm_cluster_profile_destroy(after);
    xm_cluster_profile_destroy(before);
    return status;
}

/* Reads "2x8" or "4x1x8": two or three positive numbers, of which the third is 1 where it is not
 * given. The text ends after the second or third number, or the answer is no. */
static bool parse_shape(const char *text, int numbers[3])
{
    numbers[2] = 1;
    for (int i = 0; i < 3; ++i) {
        size_t length = strcspn(text, "x");
        char word[12];
        int64_t value = 0;

        if (length >= sizeof(word)) {
            return false;
        }
        memcpy(word, text, length);
        word[length] = '\0';
        if (xm_text_parse_int("--axis", word, 1, INT32_MAX, &value) < 0) {
            return false;
        }
        numbers[i] = (int)value;
        text += length;
        if (*text == '\0') {
            return i > 0;
        }
        ++text;
    }
    return false;
}

/* Reads which groups of devices a foreign measurement used. The words stand for the axes that a
 * mesh over the whole cluster of the profile has: groups inside every host, groups with one device
 * of each host, or one group of all. */
static xm_status_t parse_axis(const char *axis, const xm_cluster_profile_t *profile,
                              xm_collective_hint_t *hint)
{
    int hosts = xm_cluster_profile_hosts(profile), numbers[3] = {0};
    int devices = xm_cluster_profile_devices_per_host(profile);

    if (strcmp(axis, "inside") == 0) {
        numbers[0] = numbers[2] = 1;
        numbers[1] = devices;
    } else if (strcmp(axis, "across") == 0) {
        numbers[0] = hosts;
        numbers[1] = 1;
        numbers[2] = devices;
    } else if (strcmp(axis, "all") == 0) {
        numbers[0] = hosts;
        numbers[1] = devices;
        numbers[2] = 1;
    } else if (!parse_shape(axis, numbers)) {
        return XM_INVALID(
            "--axis '%s' is none of inside, across, all, nor HxD or HxDxG such as 2x8 or 4x1x8",
            axis);
    }
    hint->hosts = numbers[0];
    hint->devices_per_host = numbers[1];
    hint->groups_per_host = numbers[2];
    return XM_OK;
}

static xm_status_t parse_collective(const char *name, xm_collective_hint_t *hint)
{
    const char *names[XM_COLLECTIVE_COUNT];

    for (int i = 0; i < XM_COLLECTIVE_COUNT; ++i) {
        names[i] = xm_collective_name((xm_collective_t)i);
    }
    return xm_text_choose("collective", name, names, XM_COLLECTIVE_COUNT, &hint->kind);
}

/* Adds curves from a file to a profile and saves the result under another name. Which file they
 * came from goes into the provenance, because numbers of different origin then stand in one
 * profile. */
static xm_status_t import(const probe_options_t *o)
{
    xm_collective_hint_t hint = XM_COLLECTIVE_HINT_INIT;
    xm_cluster_profile_t *profile = NULL, *extended = NULL;
    xm_collective_curve_t *curves = NULL;
    size_t count = 0;
    char note[PATH_MAX + 32];
    xm_status_t status = check_outputs(o);

    XM_THEN(status, xm_cluster_profile_load(o->cluster, &profile));
    if (status == XM_OK && o->axis != NULL) {
        status = parse_axis(o->axis, profile, &hint);
    }
    if (status == XM_OK && o->collective != NULL) {
        status = parse_collective(o->collective, &hint);
    }
    XM_THEN(status, xm_collective_import_file(o->import, &hint, &curves, &count));
    if (status == XM_OK) {
        (void)snprintf(note, sizeof(note), "collectives from %s", o->import);
        status = xm_cluster_profile_add_collectives(profile, curves, count, note, &extended);
    }
    XM_THEN(status, xm_cluster_profile_save(extended, o->output));
    XM_THEN(status, ap_probe_give_profile(extended, &o->json));
    xm_collective_curves_free(curves, count);
    xm_cluster_profile_destroy(extended);
    xm_cluster_profile_destroy(profile);
    return status;
}

/* Names the file in which the results so far are kept until the profile is complete; --resume
 * continues from it after an interruption. */
static xm_status_t partial_path(const probe_options_t *o, char *path, size_t size)
{
    if (snprintf(path, size, "%s.partial", o->output) >= (int)size) {
        return XM_INVALID("path of %zu bytes is too long", strlen(o->output));
    }
    return XM_OK;
}

/* Measures as one rank of the job; all ranks take part, and only rank 0 shows progress, prints and
 * saves. The partial results are removed only after the profile is safely saved, so that no
 * interruption loses both. */
static xm_status_t measure(xm_worker_t *worker, const probe_options_t *o)
{
    bool first = xm_worker_rank(worker) == 0;
    xm_cli_progress_t *progress;
    xm_probe_params_t params = XM_PROBE_PARAMS_INIT;
    xm_cluster_profile_t *profile;
    char partial[PATH_MAX] = "";
    xm_status_t status;

    XM_TRY(first ? check_outputs(o) : XM_OK);
    if (o->output != NULL) {
        XM_TRY(partial_path(o, partial, sizeof(partial)));
    }
    progress = first ? xm_cli_progress_create(program) : NULL;
    params.budget = o->budget;
    params.partial = o->output != NULL ? partial : NULL;
    params.resume = o->resume;
    params.collectives = o->collectives;
    params.max_bytes = o->max_bytes;
    params.repetitions = o->repetitions;
    params.progress = xm_cli_progress_update;
    params.progress_arg = progress;
    status = xm_probe_run(worker, &params, &profile);
    xm_cli_progress_destroy(progress);
    XM_TRY(status);
    if (first) {
        status = ap_probe_give_profile(profile, &o->json);
        if (status == XM_OK && o->output != NULL) {
            status = xm_cluster_profile_save(profile, o->output);
            if (status == XM_OK) {
                (void)unlink(partial);
            }
        }
    }
    xm_cluster_profile_destroy(profile);
    return status;
}

/* *quiet: all ranks have the same sentence, and rank 0 says it. */
static xm_status_t join(const xm_job_env_t *env, const probe_options_t *o, bool *quiet)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;
    xm_status_t status;

    params.listen_fd = xm_launch_listen_fd();
    XM_TRY(xm_worker_create(env, &params, &worker));
    status = measure(worker, o);
    if (xm_status_is_caller(status)) {
        (void)xm_worker_fail_together(worker, status);
        *quiet = env->rank > 0;
    }
    xm_worker_destroy(worker, status == XM_OK ? NULL : xm_last_error());
    return status;
}

/* Starts local ranks or is one. The comparison must happen once, after the profile is saved: where
 * we launched the ranks, the parent makes it, and where a foreign launcher did, rank 0 does. A rank
 * that was launched by us leaves it to the parent. */
static xm_status_t probe(probe_options_t *o)
{
    bool quiet = false;
    xm_job_env_t env;
    bool child = xm_launch_listen_fd() >= 0;
    xm_status_t status;

    XM_TRY(xm_job_env_read(&env));
    if (env.rank < 0) {
        o->code = launch(o);
        return o->code == 0 && o->before != NULL ? compare(o) : XM_OK;
    }
    status = join(&env, o, &quiet);
    if (quiet) {
        o->code = CALLER;
        return XM_OK;
    }
    if (status != XM_OK) {
        return xm_error_prefix(status, "rank %d", env.rank);
    }
    return env.rank == 0 && o->before != NULL && !child ? compare(o) : XM_OK;
}

static xm_status_t run(const xm_cli_t *cli, void *options)
{
    probe_options_t *o = options;

    o->after = ap_command_argument(cli, 0);
    XM_TRY(check_options(o));
    return o->after != NULL ? compare(o) : o->import != NULL ? import(o) : probe(o);
}

int ap_command_probe(int argc, char *const *argv)
{
    probe_options_t o = {.argc = argc, .argv = argv, .threshold = 10};
    const xm_cli_option_t table[] = {
        {"output", 'o', XM_CLI_STRING, &o.output, "FILE", 0, 0,
         "Write the cluster profile as JSON."},
        {"ranks", 'n', XM_CLI_INT, &o.ranks, "RANKS", 1, 1024,
         "Start this many local ranks, all on this host."},
        {"hosts", 0, XM_CLI_INT, &o.hosts, "HOSTS", 1, 1024,
         "Emulate this many hosts, whose ranks talk over TCP (default 2)."},
        {"ranks-per-host", 0, XM_CLI_INT, &o.ranks_per_host, "RANKS", 1, 256,
         "Ranks of each emulated host (default 2)."},
        {"max-bytes", 0, XM_CLI_BYTES, &o.max_bytes, "BYTES", 0, 0,
         "Largest message (default 64MiB)."},
        {"repetitions", 0, XM_CLI_INT, &o.repetitions, "COUNT", 1, 1000,
         "At least so many measurements whose median counts (default 6)."},
        {"budget", 0, XM_CLI_DOUBLE, &o.budget, "SECONDS", 1, 86400,
         "Time to spend, about (default 60); what is not well known then is named."},
        {"collectives", 0, XM_CLI_STRING, &o.collectives, "nccl|mpi|auto|none", 0, 0,
         "Measure collectives, too, of NCCL on GPUs or of MPI (default none)."},
        {"resume", 0, XM_CLI_FLAG, &o.resume, NULL, 0, 0,
         "Go on where a probe with the same -o FILE was interrupted."},
        {"compare", 0, XM_CLI_STRING, &o.before, "OLD.json", 0, 0,
         "Compare a profile with NEW.json, or with what this probe measures."},
        {"threshold", 0, XM_CLI_DOUBLE, &o.threshold, "PERCENT", 0.1, 1000,
         "A significant change of more makes --compare exit with 1 (default 10)."},
        {"import", 0, XM_CLI_STRING, &o.import, "RESULTS", 0, 0,
         "Add collectives measured by nccl-tests, OSU or autopar-probe-mpi to a profile."},
        {"cluster", 0, XM_CLI_STRING, &o.cluster, "FILE", 0, 0,
         "The profile that --import adds to; -o FILE gets the result."},
        {"axis", 0, XM_CLI_STRING, &o.axis, "inside|across|all|HxDxG", 0, 0,
         "Groups measured: D devices on each of H hosts, G groups to a host."},
        {"collective", 0, XM_CLI_STRING, &o.collective, "NAME", 0, 0,
         "all-gather, all-reduce, reduce-scatter or all-to-all, if RESULTS do not tell."},
        XM_CLI_JSON_OPTIONS(XM_CLI_STRING, &o.json,
                            "Print the profile as JSON instead of a table."),
    };
    const xm_cli_command_t command = XM_CLI_COMMAND(
        program, "[NEW.json]", summary,
        "autopar probe --hosts 2 --ranks-per-host 1 --budget 5 -o cluster.json", table, 0, 1);
    int failed = xm_cli_main(&command, argc, argv, run, &o);

    return failed != 0 ? failed : o.code;
}
