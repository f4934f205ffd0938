/* SPDX-License-Identifier: Apache-2.0 */
/* MPI's collectives, in a module of its own that is loaded at run time: this file is the only
 * one that is linked with MPI, so crossmesh itself depends on none. It links no library of ours
 * either and is handed the few functions it calls. MPI has neither deadlines nor errors that
 * one could survive (by default it aborts), so an alarm ends a process whose call takes too
 * long. */
#include "comm/probe/collective_mpi.h"

#include <limits.h>
#include <math.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct mpi {
    xm_collective_library_t base;
    const xm_collective_host_t *host;
    const xm_collective_job_t *job;
    MPI_Comm world; /* the job's ranks in their order */
    MPI_Comm group; /* of the axis that was entered */
    int size;
    bool initialised; /* by us */
} mpi_t;

static mpi_t *mpi_of(xm_collective_library_t *library)
{
    return (mpi_t *)library;
}

/* Runs in a signal handler: only write() and _exit() are allowed here. */
static void too_late(int number)
{
    static const char sentence[] = "a call of MPI took longer than XM_TIMEOUT allows\n";

    (void)number;
    (void)!write(STDERR_FILENO, sentence, sizeof(sentence) - 1);
    _exit(1);
}

/* Sets the alarm before a call of MPI, and takes it back after it. */
void xm_collective_mpi_deadline(double seconds)
{
    (void)signal(SIGALRM, seconds > 0 ? too_late : SIG_DFL);
    (void)alarm((unsigned)ceil(seconds));
}

/* Collective: all groups of the axis are made at once. */
static xm_status_t mpi_enter(xm_collective_library_t *library, const xm_collective_axis_t *axis)
{
    mpi_t *mpi = mpi_of(library);

    mpi->size = axis->size;
    xm_collective_mpi_deadline(mpi->job->timeout);
    (void)MPI_Comm_split(mpi->world, axis->group, axis->rank, &mpi->group);
    xm_collective_mpi_deadline(0);
    return XM_OK;
}

static void mpi_leave(xm_collective_library_t *library)
{
    mpi_t *mpi = mpi_of(library);

    xm_collective_mpi_deadline(mpi->job->timeout);
    (void)MPI_Comm_free(&mpi->group);
    xm_collective_mpi_deadline(0);
}

static xm_status_t mpi_allocate(xm_collective_library_t *library, size_t bytes, void **address)
{
    void *made = malloc(bytes);

    if (made == NULL) {
        return mpi_of(library)->host->error(XM_ERR_NO_MEMORY, "no memory for a tensor of %zu bytes",
                                            bytes);
    }
    *address = made;
    return XM_OK;
}

static void mpi_release(xm_collective_library_t *library, void *address)
{
    (void)library;
    free(address);
}

static xm_status_t mpi_copy(xm_collective_library_t *library, void *to, const void *from,
                            size_t bytes)
{
    (void)library;
    memcpy(to, from, bytes);
    return XM_OK;
}

/* Counts are int, which mpi_run() has checked. */
static void call_once(const mpi_t *mpi, const xm_collective_call_t *call)
{
    int part = (int)call->part;

    switch (call->kind) {
    case XM_ALL_GATHER:
        (void)MPI_Allgather(call->in, part, MPI_INT32_T, call->out, part, MPI_INT32_T, mpi->group);
        break;
    case XM_ALL_REDUCE:
        (void)MPI_Allreduce(call->in, call->out, part, MPI_INT32_T, MPI_SUM, mpi->group);
        break;
    case XM_REDUCE_SCATTER:
        (void)MPI_Reduce_scatter_block(call->in, call->out, part, MPI_INT32_T, MPI_SUM, mpi->group);
        break;
    case XM_ALL_TO_ALL:
    case XM_COLLECTIVE_COUNT:
        (void)MPI_Alltoall(call->in, part, MPI_INT32_T, call->out, part, MPI_INT32_T, mpi->group);
        break;
    }
}

static xm_status_t mpi_run(xm_collective_library_t *library, const xm_collective_call_t *call,
                           int times)
{
    const mpi_t *mpi = mpi_of(library);

    if (call->part > INT_MAX) {
        return mpi->host->error(XM_ERR_INVALID_ARGUMENT,
                                "MPI counts in 32 bits, and an %s of %zu elements was asked for",
                                mpi->host->name(call->kind), call->part);
    }
    xm_collective_mpi_deadline(mpi->job->timeout);
    for (int i = 0; i < times; ++i) {
        call_once(mpi, call);
    }
    xm_collective_mpi_deadline(0);
    return XM_OK;
}

/* MPI is finalised only if it was initialised here; it cannot be initialised again. */
static void mpi_destroy(xm_collective_library_t *library)
{
    mpi_t *mpi = mpi_of(library);

    xm_collective_mpi_deadline(mpi->job->timeout);
    (void)MPI_Comm_free(&mpi->world);
    if (mpi->initialised) {
        (void)MPI_Finalize();
    }
    xm_collective_mpi_deadline(0);
    free(mpi);
}

static const xm_collective_ops_t mpi_ops = {.enter = mpi_enter,
                                            .leave = mpi_leave,
                                            .allocate = mpi_allocate,
                                            .release = mpi_release,
                                            .copy = mpi_copy,
                                            .run = mpi_run,
                                            .destroy = mpi_destroy};

/* True when a launcher has started this process. Without one every process would be an MPI job
 * of its own. */
static bool was_launched(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
        if (getenv(names[i]) != NULL) {
            return true;
        }
    }
    return false;
}

/* Takes the first line of what the library says of itself, without its build. */
static void name_library(char *name, size_t size)
{
    static const char open_mpi[] = "Open MPI v";
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "MPI";
    int length = 0;

    (void)MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = '\0';
    if (strncmp(text, open_mpi, sizeof(open_mpi) - 1) == 0) {
        (void)snprintf(name, size, "Open MPI %s", text + sizeof(open_mpi) - 1);
    } else {
        (void)snprintf(name, size, "%s", text);
    }
}

/* Makes a communicator of the job's ranks: the same members, in the job's order. */
static xm_status_t make_world(mpi_t *mpi)
{
    const xm_collective_job_t *job = mpi->job;
    int size = 0;

    (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != job->ranks) {
        return mpi->host->error(
            XM_ERR_UNSUPPORTED,
            "MPI has %d ranks and the job %d; the same mpirun or srun must have "
            "started them",
            size, job->ranks);
    }
    (void)MPI_Comm_split(MPI_COMM_WORLD, 0, job->rank, &mpi->world);
    return XM_OK;
}

/* Opens MPI. What can fail locally is agreed on before MPI_Init(), which all ranks have to call
 * or none. */
xm_status_t xm_collective_mpi_open(const xm_collective_host_t *host, const xm_collective_job_t *job,
                                   xm_collective_library_t **library)
{
    mpi_t *mpi = NULL;
    int before = 0;
    xm_status_t status =
        was_launched()
            ? XM_OK
            : host->error(XM_ERR_UNSUPPORTED, "no MPI: neither mpirun nor srun started this rank");

    if (status == XM_OK) {
        mpi = calloc(1, sizeof(*mpi));
        status = mpi != NULL ? XM_OK : host->error(XM_ERR_NO_MEMORY, "no memory for MPI");
    }
    status = host->agree(job, status);
    if (status < 0) {
        free(mpi);
        return status;
    }
    mpi->base.ops = &mpi_ops;
    mpi->host = host;
    mpi->job = job;
    xm_collective_mpi_deadline(job->timeout);
    (void)MPI_Initialized(&before);
    if (!before) {
        (void)MPI_Init(NULL, NULL);
        mpi->initialised = true;
    }
    status = make_world(mpi);
    name_library(mpi->base.name, sizeof(mpi->base.name));
    if (status < 0 && mpi->initialised) {
        (void)MPI_Finalize();
    }
    xm_collective_mpi_deadline(0);
    status = host->agree(job, status);
    if (status < 0) {
        free(mpi);
        return status;
    }
    *library = &mpi->base;
    return XM_OK;
}
