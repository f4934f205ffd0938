/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autopar-probe-mpi: measures what the collectives of this MPI cost on every kind of mesh axis that
 * the ranks of mpirun make up, without any other transport. It is a program of its own because the
 * binary interface of MPI differs between libraries: it is compiled with the library that it
 * measures, and autopar itself needs no MPI. The curves go to a file, which autopar probe --import
 * adds to a profile.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli_support.h"
#include "comm/profile.h"
#include "comm/probe.h"
#include "comm/base.h"
#include <crossmesh/version.h>

enum {
    NAME_SIZE = 256,
    MAX_REPETITIONS = 96,
    SMALLEST_MAX = XM_COLLECTIVE_MIN_BYTES * XM_COLLECTIVE_GROWTH,
    MAX_CURVES = XM_COLLECTIVE_AXES * XM_COLLECTIVE_COUNT
};

static const char program[] = "autopar-probe-mpi";
static const char summary[] =
    "Measures the collectives of this MPI inside hosts, across hosts and over all "
    "ranks. Start it with mpirun, one rank per device, equally many on each "
    "host.";

typedef struct {
    const char *output;
    uint64_t max_bytes;
    int repetitions;
    double budget;
} options_t;

static xm_status_t check(const options_t *o)
{
    if (o->output == NULL) {
        return XM_INVALID("-o must say where the curves go");
    }
    if (o->max_bytes < SMALLEST_MAX || o->max_bytes > INT32_MAX) {
        return XM_INVALID("--max-bytes must be %d to %d, because a curve has two points and MPI "
                          "counts in 32 bits",
                          SMALLEST_MAX, INT32_MAX);
    }
    return xm_cli_check_settings(false, NULL);
}

/* Numbers the hosts by their lowest rank. Every rank gathers the names of all hosts and counts by
 * itself, so that all come to the same numbers without another message. The inner loop ends at the
 * rank itself at the latest. A name from the configuration goes before that of the system, which
 * lets one machine stand for several hosts in tests. */
static xm_status_t find_hosts(int ranks, int *host_of, int *hosts)
{
    char own[NAME_SIZE] = "", *names = calloc((size_t)ranks, NAME_SIZE);
    const char *given = xm_config_string(XM_CONFIG_HOST);

    XM_NEED_MEMORY(names, "%d names", ranks);
    if (given[0] != '\0') {
        (void)snprintf(own, sizeof(own), "%s", given);
    } else {
        (void)gethostname(own, sizeof(own) - 1);
    }
    (void)MPI_Allgather(own, NAME_SIZE, MPI_CHAR, names, NAME_SIZE, MPI_CHAR, MPI_COMM_WORLD);
    *hosts = 0;
    for (int r = 0; r < ranks; ++r) {
        int same = 0;

        while (strncmp(names + (size_t)same * NAME_SIZE, names + (size_t)r * NAME_SIZE,
                       NAME_SIZE) != 0) {
            ++same;
        }
        host_of[r] = same < r ? host_of[same] : (*hosts)++;
    }
    free(names);
    return XM_OK;
}

/* The measurement, and the curves so far. */
typedef struct {
    const xm_collective_job_t *job;
    xm_collective_library_t *library;
    xm_collective_effort_t effort;
    xm_collective_curve_t *curves;
    size_t count;
} run_t;

static void print_curve(const xm_collective_curve_t *curve)
{
    const xm_curve_point_t *last = &curve->points[curve->count - 1];

    (void)printf("  %-14s %5d %8d %7d %8zu %12.1f us %10.3f GB/s\n",
                 xm_collective_name(curve->kind), curve->hosts, curve->devices_per_host,
                 curve->groups_per_host, curve->count, 1e6 * curve->points[0].seconds,
                 1e-9 * (double)last->bytes / last->seconds);
    (void)fflush(stdout);
}

/* Measures one collective on one axis and keeps a copy of the curve. All ranks keep the curves, but
 * only rank 0 prints them, while the job runs, so that a long measurement is seen to move. */
static xm_status_t measure_one(void *arg, const xm_collective_axis_t *axis, xm_collective_t kind)
{
    run_t *run = arg;
    xm_collective_points_t measured;
    xm_status_t status =
        xm_collective_measure(run->job, run->library, axis, kind, &run->effort, &measured);

    if (status == XM_OK) {
        xm_collective_curve_t made = {.kind = kind,
                                      .hosts = axis->hosts,
                                      .devices_per_host = axis->devices_per_host,
                                      .groups_per_host = axis->groups_per_host,
                                      .library = run->library->name,
                                      .points = measured.points,
                                      .spread = measured.spread,
                                      .count = (size_t)measured.count};

        status = xm_collective_curve_copy(&made, &run->curves[run->count]);
    }
    if (status == XM_OK && run->job->rank == 0) {
        print_curve(&run->curves[run->count]);
    }
    run->count += status == XM_OK;
    return status;
}

static xm_status_t measure(run_t *run, const options_t *o, int hosts)
{
    xm_status_t status;

    run->curves = calloc(MAX_CURVES, sizeof(*run->curves));
    if (run->curves == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory");
    }
    if (run->job->rank == 0) {
        (void)printf("# %s: %d hosts x %d devices\n", run->library->name, hosts,
                     run->job->ranks / hosts);
        (void)printf("# %-14s %5s %8s %7s %8s %15s %15s\n", "collective", "hosts", "devices",
                     "groups", "points", "smallest", "largest");
    }
    status = xm_collective_visit(run->job, run->library, measure_one, run);
    if (status == XM_OK && run->job->rank == 0) {
        status = xm_collective_export(run->curves, run->count, o->output);
    }
    xm_collective_curves_free(run->curves, run->count);
    return status;
}

/* The measurement gathers its small tables through MPI itself, under a deadline, because the call
 * would otherwise wait for ever for a rank that is lost. */
static xm_status_t gather(void *context, const void *send, void *receive, size_t length)
{
    const xm_collective_job_t *job = context;

    xm_collective_mpi_deadline(job->timeout);
    (void)MPI_Allgather(send, (int)length, MPI_BYTE, receive, (int)length, MPI_BYTE,
                        MPI_COMM_WORLD);
    xm_collective_mpi_deadline(0);
    return XM_OK;
}

static xm_status_t run_job(const options_t *o)
{
    /* The time to spend is divided evenly over three axes of four collectives with a dozen sizes
     * each, which is the most there can be; a job with fewer axes is done earlier. */
    const double sizes = 12.0 * MAX_CURVES;
    xm_collective_axis_t axes[XM_COLLECTIVE_AXES];
    xm_collective_job_t job = {
        .timeout = xm_config_seconds(XM_CONFIG_TIMEOUT), .allgather = gather, .context = &job};
    run_t run = {.job = &job,
                 .effort = {.max_bytes = o->max_bytes,
                            .repetitions = o->repetitions,
                            .seconds = o->budget / sizes}};
    int *host_of, hosts = 0, count = 0;
    xm_status_t status;

    (void)MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &job.ranks);
    XM_TRY(job.rank == 0 ? xm_file_check_output("--output", o->output) : XM_OK);
    host_of = calloc((size_t)job.ranks, sizeof(*host_of));
    XM_NEED_MEMORY(host_of, "%d ranks", job.ranks);
    job.host_of = host_of;
    status = find_hosts(job.ranks, host_of, &hosts);
    XM_THEN(status, xm_collective_axes(&job, axes, &count));
    XM_THEN(status, xm_collective_mpi_open(&xm_collective_host, &job, &run.library));
    XM_THEN(status, measure(&run, o, hosts));
    xm_collective_library_destroy(run.library);
    free(host_of);
    return status;
}

static xm_status_t run(const xm_cli_t *cli, void *options)
{
    xm_status_t status = check(options);

    (void)cli;
    XM_TRY(status);
    xm_collective_mpi_deadline(xm_config_seconds(XM_CONFIG_TIMEOUT));
    (void)MPI_Init(NULL, NULL);
    xm_collective_mpi_deadline(0);
    status = run_job(options);
    if (status < 0) {
        /* The other ranks may wait inside a collective that this one will never enter, so only an
         * abort of the whole job ends them. */
        (void)MPI_Abort(MPI_COMM_WORLD, xm_cli_fail(program, status));
    }
    (void)MPI_Finalize();
    return status;
}

int main(int argc, char **argv)
{
    options_t o = {.max_bytes = 16 << 20, .repetitions = 6, .budget = 60};
    const xm_cli_option_t table[] = {
        {"output", 'o', XM_CLI_STRING, &o.output, "FILE", 0, 0,
         "Write the curves, for autopar probe --import."},
        {"max-bytes", 0, XM_CLI_BYTES, &o.max_bytes, "BYTES", 0, 0,
         "Largest tensor (default 16MiB)."},
        {"repetitions", 0, XM_CLI_INT, &o.repetitions, "COUNT", 1, MAX_REPETITIONS,
         "At least so many measurements whose median counts (default 6)."},
        {"budget", 0, XM_CLI_DOUBLE, &o.budget, "SECONDS", 1, 86400,
         "Time to spend, about (default 60)."},
    };
    xm_cli_command_t command = XM_CLI_COMMAND(
        program, NULL, summary, "mpirun -n 8 autopar-probe-mpi -o curves.json", table, 0, 0);

    command.version = XM_VERSION_STRING;
    return xm_cli_main(&command, argc, argv, run, &o);
}
