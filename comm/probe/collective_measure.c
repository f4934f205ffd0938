/* SPDX-License-Identifier: Apache-2.0 */
/* Measuring a library's collectives. Every decision that changes what is called next (how often
 * to repeat, whether a size takes too long) is made from times that all ranks have exchanged,
 * never from a rank's own, because ranks that disagree would call different collectives and
 * wait for each other for ever. A failure of one rank is agreed on in the same way. Each size
 * is checked once, with data whose right result every rank can compute, before it is timed. */
#include "comm/probe/collective_measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

enum { MAX_SAMPLES = 96, MAX_BATCH = 1000, TRIES = 2, SENTENCE = 500 };

/* The seconds that one sample takes at least, and those beyond which the ranks need not be
 * brought in step again before it. */
static const double shortest = 1e-3, no_warming = 20e-3;

/* How often a size may take its share of the time, all samples together. */
static const double shares = 4;

/* ---- agreement --------------------------------------------------------------------------------
 */

typedef struct {
    int32_t status;
    char sentence[SENTENCE];
} fault_status_t;

/* Chooses the failure that tells most: that of a rank that did not just wait for another. */
static int worst(const fault_status_t *all, int ranks)
{
    int found = -1;

    for (int r = 0; r < ranks; ++r) {
        if (all[r].status != XM_OK && (found < 0 || all[found].status == XM_ERR_TIMEOUT)) {
            found = found < 0 || all[r].status != XM_ERR_TIMEOUT ? r : found;
        }
    }
    return found;
}

/* All ranks learn whether any has failed, and all return the same status: the sentence is that
 * of the rank which knows the cause. Collective. */
xm_status_t xm_collective_agree(const xm_collective_job_t *job, xm_status_t status)
{
    fault_status_t own = {.status = status < 0 ? status : XM_OK}, *all;
    xm_status_t shared;
    int failed;

    if (status < 0) {
        (void)snprintf(own.sentence, sizeof(own.sentence), "%s", xm_last_error());
    }
    all = calloc((size_t)job->ranks, sizeof(*all));
    XM_NEED_MEMORY(all, "the fault statuses of %d ranks", job->ranks);
    shared = job->allgather(job->context, &own, all, sizeof(own));
    failed = shared == XM_OK ? worst(all, job->ranks) : -1;
    if (failed >= 0) {
        const char *sentence = all[failed].sentence;

        shared = (xm_status_t)all[failed].status;
        (void)(failed == job->rank
                   ? xm_error_set(shared, "%.*s", SENTENCE, sentence)
                   : xm_error_set(shared, "rank %d: %.*s", failed, SENTENCE, sentence));
    }
    free(all);
    return shared;
}

const xm_collective_host_t xm_collective_host = {
    .error = xm_error_set, .name = xm_collective_name, .agree = xm_collective_agree};

/* ---- axes -------------------------------------------------------------------------------------
 */

/* Finds the grid of hosts and devices, which must be full: axes of a mesh have no holes. */
static xm_status_t find_grid(const xm_collective_job_t *job, int *hosts, int *devices, int *local)
{
    int *count = calloc((size_t)job->ranks, sizeof(*count));
    xm_status_t status = XM_OK;

    XM_NEED_MEMORY(count, "%d hosts", job->ranks);
    *hosts = 0;
    for (int r = 0; r < job->ranks; ++r) {
        int host = job->host_of[r];

        if (r == job->rank) {
            *local = count[host];
        }
        ++count[host];
        *hosts = host >= *hosts ? host + 1 : *hosts;
    }
    *devices = count[0];
    for (int h = 1; status == XM_OK && h < *hosts; ++h) {
        if (count[h] != *devices) {
            status = XM_UNSUPPORTED(
                "host 0 has %d ranks and host %d has %d; the axes of a mesh need equally many",
                *devices, h, count[h]);
        }
    }
    free(count);
    return status;
}

/* The job's rank number @p local of @p host. */
static int rank_at(const xm_collective_job_t *job, int host, int local)
{
    int rank = 0;

    for (; rank < job->ranks; ++rank) {
        if (job->host_of[rank] == host && local-- == 0) {
            break;
        }
    }
    return rank;
}

/* The axes that the ranks make up, no two alike: inside hosts, across hosts, all. `root` is the
 * lowest rank of the group, by which its members meet. */
xm_status_t xm_collective_axes(const xm_collective_job_t *job,
                               xm_collective_axis_t axes[XM_COLLECTIVE_AXES], int *count)
{
    int hosts = 0, devices = 0, local = 0, host = job->host_of[job->rank];

    if (job->ranks < 2) {
        return XM_UNSUPPORTED("one rank has no collectives");
    }
    XM_TRY(find_grid(job, &hosts, &devices, &local));
    *count = 0;
    if (devices > 1) {
        axes[(*count)++] = (xm_collective_axis_t){.hosts = 1,
                                                  .devices_per_host = devices,
                                                  .groups_per_host = 1,
                                                  .size = devices,
                                                  .rank = local,
                                                  .group = host,
                                                  .root = rank_at(job, host, 0)};
    }
    if (hosts > 1) {
        axes[(*count)++] = (xm_collective_axis_t){.hosts = hosts,
                                                  .devices_per_host = 1,
                                                  .groups_per_host = devices,
                                                  .size = hosts,
                                                  .rank = host,
                                                  .group = local,
                                                  .root = rank_at(job, 0, local)};
    }
    if (devices > 1 && hosts > 1) {
        axes[(*count)++] = (xm_collective_axis_t){.hosts = hosts,
                                                  .devices_per_host = devices,
                                                  .groups_per_host = 1,
                                                  .size = job->ranks,
                                                  .rank = host * devices + local,
                                                  .group = 0,
                                                  .root = rank_at(job, 0, 0)};
    }
    return XM_OK;
}

/* ---- one size ---------------------------------------------------------------------------------
 */

/* The buffers of one collective, in the library's memory and in the host's. */
typedef struct {
    const xm_collective_job_t *job;
    xm_collective_library_t *library;
    const xm_collective_axis_t *axis;
    xm_collective_call_t call;
    void *in, *out;
    int32_t *host; /* as large as the larger of both */
    size_t in_count, out_count;
} trial_t;

/* Neighbouring elements differ, so a result that is shifted is noticed. */
static uint32_t scatter(size_t index)
{
    return (uint32_t)((index * 2654435761U >> 8) & 0xffff);
}

/* Element @p index of what rank @p rank of a group puts in; sums stay far from overflow. */
static int32_t element(int rank, size_t index)
{
    return (int32_t)(scatter(index) + (uint32_t)rank % 4096 * 31);
}

/* The ranks of a group add this to a sum besides the position's part. */
static uint32_t rank_sum(int size)
{
    uint32_t sum = 0;

    for (int r = 0; r < size; ++r) {
        sum += (uint32_t)r % 4096 * 31;
    }
    return sum;
}

/* The value that element @p i of the result must have. */
static int32_t expected(const trial_t *trial, uint32_t ranks, size_t i)
{
    const xm_collective_axis_t *axis = trial->axis;
    size_t part = trial->call.part;

    switch (trial->call.kind) {
    case XM_ALL_GATHER:
        return element((int)(i / part), i % part);
    case XM_ALL_TO_ALL:
        return element((int)(i / part), (size_t)axis->rank * part + i % part);
    case XM_REDUCE_SCATTER:
        i += (size_t)axis->rank * part;
        break;
    case XM_ALL_REDUCE:
    case XM_COLLECTIVE_COUNT:
        break;
    }
    return (int32_t)(ranks + (uint32_t)axis->size * scatter(i));
}

static xm_status_t check(const trial_t *trial)
{
    uint32_t ranks = rank_sum(trial->axis->size);

    for (size_t i = 0; i < trial->out_count; ++i) {
        int32_t right = expected(trial, ranks, i);

        if (trial->host[i] != right) {
            return xm_error_set(XM_ERR_CORRUPT,
                                "%s: element %zu of the result of %s on %d devices is %d instead "
                                "of %d",
                                trial->library->name, i, xm_collective_name(trial->call.kind),
                                trial->axis->size, (int)trial->host[i], (int)right);
        }
    }
    return XM_OK;
}

/* Prepares the buffers: @p whole elements are the tensor of collective_curve.h, of which each
 * kind takes and gives its part. The result is cleared, so that what is not written shows. */
static xm_status_t prepare(trial_t *trial, size_t whole)
{
    const xm_collective_ops_t *ops = trial->library->ops;
    size_t share = whole / (size_t)trial->axis->size;
    size_t most;
    xm_status_t status;

    switch (trial->call.kind) {
    case XM_ALL_GATHER:
        trial->in_count = trial->call.part = share;
        trial->out_count = whole;
        break;
    case XM_REDUCE_SCATTER:
        trial->in_count = whole;
        trial->out_count = trial->call.part = share;
        break;
    case XM_ALL_TO_ALL:
        trial->in_count = trial->out_count = share;
        trial->call.part = share / (size_t)trial->axis->size;
        break;
    case XM_ALL_REDUCE:
    case XM_COLLECTIVE_COUNT:
        trial->in_count = trial->out_count = trial->call.part = whole;
        break;
    }
    most = trial->in_count > trial->out_count ? trial->in_count : trial->out_count;
    trial->host = calloc(most, sizeof(int32_t));
    XM_NEED_MEMORY(trial->host, "a tensor of %zu bytes", most * sizeof(int32_t));
    status = ops->allocate(trial->library, trial->in_count * sizeof(int32_t), &trial->in);
    XM_THEN(status, ops->allocate(trial->library, trial->out_count * sizeof(int32_t), &trial->out));
    if (status == XM_OK) { /* what is not written shows */
        status =
            ops->copy(trial->library, trial->out, trial->host, trial->out_count * sizeof(int32_t));
    }
    for (size_t i = 0; i < trial->in_count; ++i) {
        trial->host[i] = element(trial->axis->rank, i);
    }
    if (status == XM_OK) {
        status =
            ops->copy(trial->library, trial->in, trial->host, trial->in_count * sizeof(int32_t));
    }
    trial->call.in = trial->in;
    trial->call.out = trial->out;
    return status;
}

static void release(trial_t *trial)
{
    const xm_collective_ops_t *ops = trial->library->ops;

    if (trial->out != NULL) {
        ops->release(trial->library, trial->out);
    }
    if (trial->in != NULL) {
        ops->release(trial->library, trial->in);
    }
    free(trial->host);
}

/* One run whose result is compared element by element. */
static xm_status_t run_checked(trial_t *trial)
{
    xm_collective_library_t *library = trial->library;

    XM_TRY(library->ops->run(library, &trial->call, 1));
    XM_TRY(
        library->ops->copy(library, trial->host, trial->out, trial->out_count * sizeof(int32_t)));
    return check(trial);
}

/* Times @p batch runs, as seconds of the slowest rank of all groups. An untimed run brings the
 * ranks in step, where that matters. A rank that has failed says -1, so all know it without
 * another exchange in the good case. */
static xm_status_t time_batch(trial_t *trial, int batch, bool warm, double *slowest)
{
    const xm_collective_job_t *job = trial->job;
    xm_collective_library_t *library = trial->library;
    double own = 0, *all = calloc((size_t)job->ranks, sizeof(*all));
    xm_status_t status = all != NULL ? XM_OK : XM_NO_MEMORY("the times of %d ranks", job->ranks),
                shared;

    if (status == XM_OK && warm) {
        status = library->ops->run(library, &trial->call, 1);
    }
    if (status == XM_OK) {
        double started = xm_clock_seconds();

        status = library->ops->run(library, &trial->call, batch);
        own = status == XM_OK ? xm_clock_seconds() - started : -1;
    } else {
        own = -1;
    }
    shared = all != NULL ? job->allgather(job->context, &own, all, sizeof(own)) : status;
    *slowest = 0;
    for (int r = 0; shared == XM_OK && r < job->ranks; ++r) {
        if (all[r] < 0) {
            *slowest = -1;
            break;
        }
        *slowest = fmax(*slowest, all[r]);
    }
    free(all);
    if (shared < 0) {
        return shared;
    }
    return *slowest < 0 ? xm_collective_agree(job, status) : XM_OK;
}

/* Finds median and spread of one size. Every rank computes the same from the same times.
 * *too_long: it takes longer than its share allows, and was not measured. */
static xm_status_t sample(trial_t *trial, const xm_collective_effort_t *effort, bool may_end,
                          double *seconds, double *spread, bool *too_long)
{
    double times[MAX_SAMPLES], spent = 0, first;
    int batch, count = 0,
               least = effort->repetitions < MAX_SAMPLES ? effort->repetitions : MAX_SAMPLES;

    /* On a machine that does other things, too, one run says little, so a long one is tried
     * again. */
    for (int tries = 0; tries < TRIES; ++tries) {
        XM_TRY(time_batch(trial, 1, true, &first));
        *too_long = may_end && first * least > shares * effort->seconds;
        if (!*too_long) {
            break;
        }
    }
    if (*too_long) {
        return XM_OK;
    }
    /* Short runs are timed in batches, or the clock's own cost would be measured. */
    batch = first < shortest ? (int)fmin(ceil(shortest / fmax(first, 1e-9)), MAX_BATCH) : 1;
    do {
        double batch_seconds;

        XM_TRY(time_batch(trial, batch, first < no_warming, &batch_seconds));
        spent += batch_seconds;
        times[count++] = batch_seconds / batch;
        *seconds = times[0];
        *spread = 1;
        if (count >= least) {
            double sorted[MAX_SAMPLES];

            memcpy(sorted, times, (size_t)count * sizeof(double));
            *seconds = xm_array_median(sorted, count);
            *spread = xm_curve_spread(sorted, count);
        }
    } while (count < MAX_SAMPLES &&
             (count < least || (*spread > XM_PROBE_TIGHT && spent < effort->seconds)));
    return XM_OK;
}

/* Each step is agreed on before the next, which is collective. */
static xm_status_t measure_size(trial_t *trial, size_t whole, const xm_collective_effort_t *effort,
                                bool may_end, double *seconds, double *spread, bool *too_long)
{
    xm_status_t status = xm_collective_agree(trial->job, prepare(trial, whole));

    XM_THEN(status, xm_collective_agree(trial->job, run_checked(trial)));
    XM_THEN(status, sample(trial, effort, may_end, seconds, spread, too_long));
    release(trial);
    return status;
}

/* ---- curves -----------------------------------------------------------------------------------
 */

/* Elements of the whole tensor: a multiple of what @p size devices can share in all ways. */
static size_t whole_of(uint64_t bytes, int size)
{
    size_t unit = (size_t)size * (size_t)size;

    return (bytes / sizeof(int32_t) + unit - 1) / unit * unit;
}

/* Measures growing sizes until the largest, or until one takes too long; at least two, since a
 * curve needs them. */
xm_status_t xm_collective_measure(const xm_collective_job_t *job, xm_collective_library_t *library,
                                  const xm_collective_axis_t *axis, xm_collective_t kind,
                                  const xm_collective_effort_t *effort,
                                  xm_collective_points_t *measured)
{
    int count = 0;
    bool too_long = false;

    for (uint64_t bytes = XM_COLLECTIVE_MIN_BYTES;
         bytes <= effort->max_bytes && count < XM_CURVE_MAX_POINTS && !too_long;
         bytes *= XM_COLLECTIVE_GROWTH) {
        size_t whole = whole_of(bytes, axis->size);
        trial_t trial = {.job = job, .library = library, .axis = axis, .call.kind = kind};
        double seconds = 0, spread = 1;

        if (count > 0 && whole * sizeof(int32_t) == measured->points[count - 1].bytes) {
            continue; /* many devices: the smallest sizes are one */
        }
        XM_TRY(measure_size(&trial, whole, effort, count >= 2, &seconds, &spread, &too_long));
        if (!too_long) {
            measured->points[count] = (xm_curve_point_t){whole * sizeof(int32_t), seconds};
            measured->spread[count++] = spread;
        }
    }
    if (count < 2) {
        return XM_INVALID(
            "a largest tensor of %llu bytes leaves one size for %d devices; a curve needs two",
            (unsigned long long)effort->max_bytes, axis->size);
    }
    measured->count = xm_curve_smooth(measured->points, measured->spread, count);
    return XM_OK;
}

/* Enters each axis and visits every collective there. The axis is left also after a failure. */
xm_status_t xm_collective_visit(const xm_collective_job_t *job, xm_collective_library_t *library,
                                xm_status_t (*visit)(void *arg, const xm_collective_axis_t *axis,
                                                     xm_collective_t kind),
                                void *arg)
{
    xm_collective_axis_t axes[XM_COLLECTIVE_AXES];
    int count = 0;
    xm_status_t status = xm_collective_axes(job, axes, &count);

    for (int a = 0; status == XM_OK && a < count; ++a) {
        status = library->ops->enter(library, &axes[a]);
        XM_TRY(status);
        for (int kind = 0; status == XM_OK && kind < XM_COLLECTIVE_COUNT; ++kind) {
            status = visit(arg, &axes[a], (xm_collective_t)kind);
        }
        library->ops->leave(library);
    }
    return status;
}
