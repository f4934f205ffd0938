/*
 * autopar-probe-mpi: what the collectives of this MPI cost, on every kind of mesh axis that the
 * ranks of mpirun make up. A program of its own, because MPI's binary interface differs between
 * libraries: it is compiled with the one that it measures.
 */
#include <math.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli_support/options.h"
#include "comm/collective_import.h"
#include "comm/config.h"
#include "comm/probe_curve.h"
#include "comm/version.h"

enum {
    NAME_SIZE = 256,
    MAX_SAMPLES = 96,
    MAX_CURVES = 3 * XM_COLLECTIVE_COUNT,
    SMALLEST = 1024, /* bytes of the whole tensor */
    GROWTH = 4
};

static const char program[] = "autopar-probe-mpi";
static const double shortest = 1e-3; /* seconds of one sample */

typedef struct {
    const char *output;
    uint64_t max_bytes;
    int repetitions;
    double budget;
} options_t;

/* The ranks of one kind of axis, and which of its groups this one is in. */
typedef struct {
    MPI_Comm group;
    int hosts, devices, groups; /* as collective_curve.h has them */
    int size, rank;
} axis_t;

typedef struct {
    options_t options;
    int rank, ranks;
    int hosts, devices; /* of all; every host has as many */
    int host, local;    /* of this rank */
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    double seconds; /* for one size */
} job_t;

static xm_status_t parse(int argc, char **argv, options_t *o, xm_cli_t **cli)
{
    const xm_cli_option_t options[] = {
        {.name = "output",
         .letter = 'o',
         .kind = XM_CLI_STRING,
         .target = &o->output,
         .argument = "FILE",
         .help = "Write the curves, for autopar probe --import."},
        {.name = "max-bytes",
         .kind = XM_CLI_BYTES,
         .target = &o->max_bytes,
         .argument = "BYTES",
         .help = "Largest tensor (default 16MiB)."},
        {.name = "repetitions",
         .kind = XM_CLI_INT,
         .target = &o->repetitions,
         .argument = "COUNT",
         .minimum = 1,
         .maximum = MAX_SAMPLES,
         .help = "At least so many measurements whose median counts (default 6)."},
        {.name = "budget",
         .kind = XM_CLI_DOUBLE,
         .target = &o->budget,
         .argument = "SECONDS",
         .minimum = 1,
         .maximum = 86400,
         .help = "Time to spend, about (default 60)."},
    };
    xm_cli_command_t command = XM_CLI_COMMAND_INIT;
    xm_status_t status;

    command.program = program;
    command.summary =
        "Measures the collectives of this MPI inside hosts, across hosts and over all "
        "ranks.\nStart it with mpirun, one rank per device, equally many on each "
        "host.";
    command.version = XM_VERSION_STRING;
    command.options = options;
    command.option_count = sizeof(options) / sizeof(options[0]);
    status = xm_cli_parse(&command, argc, argv, cli);
    if (status == XM_OK && !xm_cli_finished(*cli) && o->output == NULL) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "-o must say where the curves go");
    }
    if (status == XM_OK && (o->max_bytes < GROWTH * SMALLEST || o->max_bytes > INT32_MAX)) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "--max-bytes must be %d to %d, because a curve has two points and MPI "
                            "counts in 32 bits",
                            GROWTH * SMALLEST, INT32_MAX);
    }
    return status;
}

/* MPI has no deadlines: this one ends the program, and mpirun ends the others. */
static void too_late(int number)
{
    static const char sentence[] =
        "autopar-probe-mpi: a collective took longer than XM_TIMEOUT allows\n";

    (void)number;
    (void)!write(STDERR_FILENO, sentence, sizeof(sentence) - 1);
    _exit(1);
}

static void set_deadline(void)
{
    (void)alarm((unsigned)ceil(xm_config_seconds(XM_CONFIG_TIMEOUT)));
}

/* Numbers hosts by their lowest rank; every host must have equally many ranks. */
static xm_status_t find_hosts(job_t *job)
{
    char own[NAME_SIZE] = "", *names = calloc((size_t)job->ranks, NAME_SIZE);
    const char *given = xm_config_string(XM_CONFIG_HOST);
    xm_status_t status = XM_OK;
    int *count = calloc((size_t)job->ranks, sizeof(int));
    int *host_of = calloc((size_t)job->ranks, sizeof(int));

    if (names == NULL || count == NULL || host_of == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d names", job->ranks);
        goto free_all;
    }
    if (given[0] != '\0') {
        (void)snprintf(own, sizeof(own), "%s", given);
    } else {
        (void)gethostname(own, sizeof(own) - 1);
    }
    (void)MPI_Allgather(own, NAME_SIZE, MPI_CHAR, names, NAME_SIZE, MPI_CHAR, MPI_COMM_WORLD);
    for (int r = 0; r < job->ranks; ++r) {
        int same = 0;

        while (strncmp(names + (size_t)same * NAME_SIZE, names + (size_t)r * NAME_SIZE,
                       NAME_SIZE) != 0) {
            ++same;
        }
        host_of[r] = same < r ? host_of[same] : job->hosts++;
        if (r == job->rank) {
            job->host = host_of[r];
            job->local = count[host_of[r]];
        }
        ++count[host_of[r]];
    }
    job->devices = count[0];
    for (int h = 0; h < job->hosts; ++h) {
        if (count[h] != job->devices) {
            status = xm_error_set(XM_ERR_UNSUPPORTED,
                                  "host 0 has %d ranks and host %d has %d; the axes of a mesh need "
                                  "equally many",
                                  job->devices, h, count[h]);
        }
    }

free_all:
    free(host_of);
    free(count);
    free(names);
    return status;
}

static void make_axis(const job_t *job, int hosts, int devices, axis_t *axis)
{
    int colour = hosts == 1 ? job->host : devices == 1 ? job->local : 0;

    *axis = (axis_t){.hosts = hosts,
                     .devices = devices,
                     .groups = hosts > 1 && devices == 1 ? job->devices : 1,
                     .size = hosts * devices};
    (void)MPI_Comm_split(MPI_COMM_WORLD, colour, job->host * job->devices + job->local,
                         &axis->group);
    (void)MPI_Comm_rank(axis->group, &axis->rank);
}

/* Element @p index of what rank @p rank of a group puts in; sums stay far from overflow. */
static int32_t element(int rank, size_t index)
{
    return (int32_t)((index * 2654435761U >> 8 & 0xffff) + (size_t)rank * 31);
}

/* The buffers of one collective: elements that a rank puts in and gets. */
typedef struct {
    int32_t *in, *out;
    size_t in_count, out_count;
} buffers_t;

static void counts_of(xm_collective_t kind, size_t whole, int size, size_t *in, size_t *out)
{
    size_t part = whole / (size_t)size;

    *in = kind == XM_ALL_GATHER || kind == XM_ALL_TO_ALL ? part : whole;
    *out = kind == XM_ALL_REDUCE || kind == XM_ALL_GATHER ? whole : part;
}

static void run(xm_collective_t kind, const axis_t *axis, const buffers_t *b)
{
    int part = (int)((kind == XM_ALL_GATHER       ? b->in_count
                      : kind == XM_REDUCE_SCATTER ? b->out_count
                      : kind == XM_ALL_TO_ALL     ? b->in_count / (size_t)axis->size
                                                  : b->in_count));

    switch (kind) {
    case XM_ALL_GATHER:
        (void)MPI_Allgather(b->in, part, MPI_INT32_T, b->out, part, MPI_INT32_T, axis->group);
        break;
    case XM_ALL_REDUCE:
        (void)MPI_Allreduce(b->in, b->out, part, MPI_INT32_T, MPI_SUM, axis->group);
        break;
    case XM_REDUCE_SCATTER:
        (void)MPI_Reduce_scatter_block(b->in, b->out, part, MPI_INT32_T, MPI_SUM, axis->group);
        break;
    case XM_ALL_TO_ALL:
    case XM_COLLECTIVE_COUNT:
        (void)MPI_Alltoall(b->in, part, MPI_INT32_T, b->out, part, MPI_INT32_T, axis->group);
        break;
    }
}

/* What element @p i of the result must be. */
static int64_t expected(xm_collective_t kind, const axis_t *axis, const buffers_t *b, size_t i)
{
    size_t part = b->out_count / (size_t)axis->size, at = i;
    int64_t sum = 0;

    if (kind == XM_ALL_GATHER) {
        return element((int)(i / b->in_count), i % b->in_count);
    }
    if (kind == XM_ALL_TO_ALL) {
        return element((int)(i / part), (size_t)axis->rank * part + i % part);
    }
    if (kind == XM_REDUCE_SCATTER) {
        at += (size_t)axis->rank * b->out_count;
    }
    for (int r = 0; r < axis->size; ++r) {
        sum += element(r, at);
    }
    return sum;
}

static xm_status_t check(const job_t *job, xm_collective_t kind, const axis_t *axis,
                         const buffers_t *b)
{
    for (size_t i = 0; i < b->out_count; ++i) {
        if (b->out[i] != expected(kind, axis, b, i)) {
            return xm_error_set(XM_ERR_CORRUPT,
                                "rank %d: element %zu of an %s of %d ranks is %d instead of %lld",
                                job->rank, i, xm_collective_name(kind), axis->size, b->out[i],
                                (long long)expected(kind, axis, b, i));
        }
    }
    return XM_OK;
}

/* Seconds of @p batch runs, of the slowest rank of all groups. */
static double time_batch(xm_collective_t kind, const axis_t *axis, const buffers_t *b, int batch)
{
    double start, own, slowest = 0;

    (void)MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    for (int i = 0; i < batch; ++i) {
        run(kind, axis, b);
    }
    own = MPI_Wtime() - start;
    (void)MPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

/* Median and spread of one size. Every rank computes the same from the same times. */
static void sample(const job_t *job, xm_collective_t kind, const axis_t *axis, const buffers_t *b,
                   double *seconds, double *spread)
{
    double times[MAX_SAMPLES], spent = 0, first = time_batch(kind, axis, b, 1);
    int batch = first < shortest ? (int)fmin(ceil(shortest / first), 1000) : 1, count = 0;

    do {
        double batch_seconds = time_batch(kind, axis, b, batch);

        set_deadline();
        spent += batch_seconds;
        times[count++] = batch_seconds / batch;
        *seconds = times[0];
        *spread = 1;
        if (count >= job->options.repetitions) {
            double sorted[MAX_SAMPLES];

            memcpy(sorted, times, (size_t)count * sizeof(double));
            *seconds = xm_probe_median(sorted, count);
            *spread = xm_probe_spread(sorted, count);
        }
    } while (count < MAX_SAMPLES && (count < job->options.repetitions ||
                                     (*spread > XM_PROBE_TIGHT && spent < job->seconds)));
}

/* Bytes of the whole tensor: a multiple of what @p size devices can share in all ways. */
static size_t whole_of(uint64_t bytes, int size)
{
    size_t unit = (size_t)size * (size_t)size;

    return (bytes / sizeof(int32_t) + unit - 1) / unit * unit;
}

static xm_status_t measure_size(const job_t *job, xm_collective_t kind, const axis_t *axis,
                                size_t whole, double *seconds, double *spread)
{
    buffers_t b = {0};
    int good, all_good = 0;
    xm_status_t status = XM_OK;

    set_deadline();
    counts_of(kind, whole, axis->size, &b.in_count, &b.out_count);
    b.in = malloc(b.in_count * sizeof(int32_t));
    b.out = calloc(b.out_count, sizeof(int32_t));
    good = b.in != NULL && b.out != NULL;
    (void)MPI_Allreduce(&good, &all_good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (!all_good) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "no memory for a tensor of %zu bytes",
                              whole * sizeof(int32_t));
        goto free_buffers;
    }
    for (size_t i = 0; i < b.in_count; ++i) {
        b.in[i] = element(axis->rank, i);
    }
    run(kind, axis, &b);
    status = check(job, kind, axis, &b);
    good = status == XM_OK;
    (void)MPI_Allreduce(&good, &all_good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (good && !all_good) {
        status = xm_error_set(XM_ERR_CANCELED, "another rank got wrong data");
    }
    if (status == XM_OK) {
        sample(job, kind, axis, &b, seconds, spread);
    }

free_buffers:
    free(b.out);
    free(b.in);
    return status;
}

static xm_status_t measure_curve(const job_t *job, xm_collective_t kind, const axis_t *axis,
                                 xm_collective_curve_t *curve)
{
    xm_curve_point_t points[XM_PROBE_MAX_POINTS];
    double spread[XM_PROBE_MAX_POINTS];
    xm_collective_curve_t made = {.kind = kind,
                                  .hosts = axis->hosts,
                                  .devices_per_host = axis->devices,
                                  .groups_per_host = axis->groups,
                                  .library = job->library,
                                  .points = points,
                                  .spread = spread};
    int count = 0;

    for (uint64_t bytes = SMALLEST; bytes <= job->options.max_bytes; bytes *= GROWTH) {
        size_t whole = whole_of(bytes, axis->size);
        xm_status_t status;

        if (count > 0 && whole * sizeof(int32_t) == points[count - 1].bytes) {
            continue; /* many devices: the smallest sizes are one */
        }
        points[count].bytes = whole * sizeof(int32_t);
        status = measure_size(job, kind, axis, whole, &points[count].seconds, &spread[count]);
        if (status < 0) {
            return status;
        }
        ++count;
    }
    if (count < 2) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "--max-bytes leaves one size for %d ranks; a curve needs two",
                            axis->size);
    }
    made.count = (size_t)xm_probe_smooth(points, spread, count);
    return xm_collective_curve_copy(&made, curve);
}

static xm_status_t measure(job_t *job)
{
    const int shapes[3][2] = {{1, job->devices}, {job->hosts, 1}, {job->hosts, job->devices}};
    xm_collective_curve_t *curves = calloc(MAX_CURVES, sizeof(*curves));
    size_t count = 0;
    xm_status_t status = curves != NULL ? XM_OK : xm_error_set(XM_ERR_NO_MEMORY, "out of memory");

    for (int s = 0; status == XM_OK && s < 3; ++s) {
        axis_t axis;

        /* One device is no group, and on one host, or with one device a host, all is an axis that
         * has been measured. */
        if (shapes[s][0] * shapes[s][1] < 2 || (s == 2 && (job->hosts == 1 || job->devices == 1))) {
            continue;
        }
        make_axis(job, shapes[s][0], shapes[s][1], &axis);
        for (int kind = 0; status == XM_OK && kind < XM_COLLECTIVE_COUNT; ++kind) {
            status = measure_curve(job, (xm_collective_t)kind, &axis, &curves[count]);
            if (status == XM_OK) {
                const xm_collective_curve_t *curve = &curves[count++];
                const xm_curve_point_t *last = &curve->points[curve->count - 1];

                if (job->rank == 0) {
                    (void)printf("  %-14s %5d %8d %7d %8zu %12.1f us %10.3f GB/s\n",
                                 xm_collective_name(curve->kind), curve->hosts,
                                 curve->devices_per_host, curve->groups_per_host, curve->count,
                                 1e6 * curve->points[0].seconds,
                                 1e-9 * (double)last->bytes / last->seconds);
                    (void)fflush(stdout);
                }
            }
        }
        (void)MPI_Comm_free(&axis.group);
    }
    if (status == XM_OK && job->rank == 0) {
        status = xm_collective_export(curves, count, job->options.output);
    }
    xm_collective_curves_free(curves, count);
    return status;
}

/* The first line of what the library says of itself, without its build. */
static void name_library(char library[MPI_MAX_LIBRARY_VERSION_STRING])
{
    int length = 0;

    (void)MPI_Get_library_version(library, &length);
    library[strcspn(library, ",\n")] = '\0';
    if (strncmp(library, "Open MPI v", strlen("Open MPI v")) == 0) {
        memmove(library + strlen("Open MPI "), library + strlen("Open MPI v"),
                strlen(library + strlen("Open MPI v")) + 1);
    }
}

static xm_status_t run_job(job_t *job)
{
    /* Three axes of four collectives with a dozen sizes. */
    const double sizes = 3 * XM_COLLECTIVE_COUNT * 12;
    xm_status_t status;

    (void)signal(SIGALRM, too_late);
    set_deadline();
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &job->rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &job->ranks);
    name_library(job->library);
    job->seconds = job->options.budget / sizes;
    status = find_hosts(job);
    if (status == XM_OK && job->ranks < 2) {
        status = xm_error_set(XM_ERR_INVALID_ARGUMENT,
                              "one rank has no collectives; start it with mpirun -n RANKS");
    }
    if (status < 0) {
        return status;
    }
    if (job->rank == 0) {
        (void)printf("# %s: %d hosts x %d devices\n", job->library, job->hosts, job->devices);
        (void)printf("# %-14s %5s %8s %7s %8s %15s %15s\n", "collective", "hosts", "devices",
                     "groups", "points", "smallest", "largest");
    }
    return measure(job);
}

int main(int argc, char **argv)
{
    job_t job = {.options = {.max_bytes = 16 << 20, .repetitions = 6, .budget = 60}};
    xm_cli_t *cli = NULL;
    xm_status_t status = parse(argc, argv, &job.options, &cli);

    if (status == XM_OK && !xm_cli_finished(cli)) {
        status = xm_config_check();
        if (status == XM_OK) {
            (void)MPI_Init(NULL, NULL);
            status = run_job(&job);
            if (status < 0) {
                /* The others may be inside a collective. */
                (void)MPI_Abort(MPI_COMM_WORLD, xm_cli_fail(program, status));
            }
            (void)MPI_Finalize();
        }
    }
    xm_cli_destroy(cli);
    return status == XM_OK ? 0 : xm_cli_fail(program, status);
}
