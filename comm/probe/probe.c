/* SPDX-License-Identifier: Apache-2.0 */
/* The probe: measuring a job's links and devices, of which result.c makes a profile. It is a fixed
 * sequence of steps, each of which all ranks enter and leave together; after a step its numbers
 * are shared and saved, so a probe that is interrupted goes on where it was. Which steps are
 * done is decided from shared state alone, or ranks would be in different steps and wait for
 * each other. A budget of seconds is spread over the steps, and what it does not suffice for is
 * said in the provenance. */
#include "comm/probe/probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "comm/base.h"
#include "comm/probe/compute.h"
#include "comm/probe/link.h"
#include "comm/probe/probe_private.h"

enum {
    DEFAULT_REPETITIONS = 6, /* the fewest that have a 95 % confidence interval */
    COPY_PIECE = 256 << 10,  /* what is surely copied */
    MIN_MAX_BYTES = 64 << 10 /* below, latency noise would hide that time rises with size */
};

static const uint64_t default_max_bytes = UINT64_C(64) << 20;
static const double default_budget = 60, compute_seconds = 0.15, copy_seconds = 1.5;

/* Parts of the wait limit that one size of a ping-pong may take: the other ranks wait meanwhile. */
static const double wait_share = 1.0 / 60;
/* Parts of the whole budget that one curve may take. */
static const double curve_share = 0.1, hot_share = 0.03;

/* Reports progress: the steps of a phase are spread over its part of the whole. */
static void report_progress(const xm_probe_t *probe, double part)
{
    if (probe->params.progress != NULL && probe->rank == 0) {
        double fraction = probe->phase_start + part * (probe->phase_end - probe->phase_start);

        probe->params.progress(probe->params.progress_arg, fraction * probe->links_part,
                               probe->phase);
    }
}

/* Enters a phase together, so that no rank measures while another still computes. */
xm_status_t xm_probe_enter(xm_probe_t *probe, const char *phase, double start, double end)
{
    probe->phase = phase;
    probe->phase_start = start;
    probe->phase_end = end;
    report_progress(probe, 0);
    return xm_worker_barrier(probe->worker);
}

/* The answer is the same on all ranks, since the state is. */
bool xm_probe_is_done(const xm_probe_t *probe, const char *step)
{
    size_t count;

    return xm_probe_state_find(probe->state, step, &count) != NULL;
}

/* Rank 0 saves what is known; the file is replaced as a whole, so an interrupted probe leaves a
 * good one. */
static xm_status_t save_partial(const xm_probe_t *probe)
{
    char *text = NULL;
    xm_status_t status;

    /* All ranks have the same state, so one file holds everything. */
    if (probe->rank != 0 || probe->params.partial == NULL) {
        return XM_OK;
    }
    status = xm_probe_state_to_text(probe->state, &text);
    XM_THEN(status, xm_text_save(probe->params.partial, text));
    free(text);
    return status;
}

/* Ends a step: every rank sends its clock and its numbers, and all put the same list into their
 * state. Rank 0's clock counts for the budget, so that all ranks agree about what is left. */
xm_status_t xm_probe_finish_step(xm_probe_t *probe, const char *step, const double *own,
                                 size_t count)
{
    uint64_t *words = malloc((count + 1) * sizeof(*words));
    double elapsed = xm_clock_seconds() - probe->started, *numbers = NULL;
    size_t *offsets = NULL, total = 0;
    void *all = NULL;
    xm_status_t status;

    if (words == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "probe: out of memory");
    }
    for (size_t i = 0; i <= count; ++i) {
        words[i] = xm_probe_word(i == 0 ? elapsed : own[i - 1]);
    }
    status = xm_worker_barrier(probe->worker);
    XM_THEN(status, xm_bootstrap_allgatherv(xm_worker_bootstrap(probe->worker), words,
                                            (count + 1) * sizeof(*words), &all, &offsets,
                                            xm_worker_timeout(probe->worker)));
    free(words);
    XM_TRY(status);
    probe->elapsed = xm_probe_number(all);
    /* The blocks contain the clocks as well, so this is more than enough. */
    numbers = malloc(offsets[probe->ranks]);
    if (numbers == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "probe: out of memory");
        goto free_all;
    }
    for (int rank = 0; rank < probe->ranks; ++rank) {
        for (size_t at = offsets[rank] + sizeof(uint64_t); at < offsets[rank + 1];
             at += sizeof(uint64_t)) {
            numbers[total++] = xm_probe_number((const char *)all + at);
        }
    }
    status = xm_probe_state_add(probe->state, step, numbers, total);
    XM_THEN(status, save_partial(probe));

free_all:
    free(numbers);
    free(offsets);
    free(all);
    return status;
}

/* Measures the device. All ranks compute and then copy at the same time, because that is what
 * devices will do. */
static xm_status_t measure_device(xm_probe_t *probe)
{
    size_t bytes = xm_probe_cold_bytes(2 * probe->ranks, XM_PROBE_COPY_BYTES);
    unsigned char *from, *to;
    xm_probe_device_t own = {0};
    xm_status_t status = XM_ERR_NO_MEMORY;

    if (xm_probe_is_done(probe, "device")) {
        return XM_OK;
    }
    from = xm_probe_memory(bytes);
    to = xm_probe_memory(bytes);
    if (from == NULL || to == NULL) {
        goto free_buffers;
    }
    xm_probe_fill(from, bytes, (uint64_t)probe->rank);
    own.host_memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    /* Machines are only compared for equality, and a double holds 52 bits of the number exactly. */
    own.machine = (double)(xm_probe_machine() >> 12); /* as far as a double holds it */
    own.cores = xm_probe_cores();
    own.machine_cores = (double)sysconf(_SC_NPROCESSORS_ONLN);
    status = xm_probe_enter(probe, "FLOP/s", 0, 0.1);
    if (status == XM_OK) {
        for (int n = XM_NUMBER_ANY + 1; n < XM_NUMBER_COUNT; ++n) {
            own.flops[n] = xm_probe_flops((xm_number_t)n, compute_seconds);
        }
        status = xm_probe_enter(probe, "memory bandwidth", 0.1, 0.2);
    }
    if (status == XM_OK) {
        double numbers[XM_PROBE_DEVICE_NUMBERS];

        own.copy_bandwidth = xm_probe_copy_bandwidth(to, from, bytes, copy_seconds);
        /* A copy that differs means broken memory, and no number of such a host is worth keeping.
         * The first piece is copied however slow the machine is. */
        if (memcmp(from, to, COPY_PIECE) != 0) {
            status = xm_error_set(XM_ERR_CORRUPT, "probe: a memory copy on rank %d differs",
                                  probe->rank);
            goto free_buffers;
        }
        memcpy(numbers, &own, sizeof(own));
        status = xm_probe_finish_step(probe, "device", numbers, XM_PROBE_DEVICE_NUMBERS);
    }

free_buffers:
    free(to);
    free(from);
    return status;
}

/* Progress within a curve, told by the rank that measures it. */
static void ping_step(void *arg, int index)
{
    const xm_probe_t *probe = arg;

    report_progress(probe, (double)index / probe->size_count);
}

/* What a curve is measured with. Buffers have room for the largest size, and else so much that no
 * cache has what a message needs; data are hot where they fit a quarter of that. */
typedef struct {
    size_t pool;
    int sizes;
    bool hot;
} effort_t;

static effort_t effort_of(const xm_probe_t *probe, bool hot)
{
    effort_t effort = {.pool = xm_probe_cold_bytes(1, probe->sizes[probe->size_count - 1]),
                       .sizes = probe->size_count,
                       .hot = hot};

    while (hot && effort.sizes > 2 && 4 * probe->sizes[effort.sizes - 1] > effort.pool) {
        --effort.sizes;
    }
    return effort;
}

/* Measures copies inside rank 0: seconds and spread of each size. */
static xm_status_t copies(xm_probe_t *probe, const effort_t *effort, double *numbers, size_t *count)
{
    unsigned char *from = xm_probe_memory(effort->pool), *to = xm_probe_memory(effort->pool);
    xm_status_t status = from != NULL && to != NULL ? XM_OK : XM_ERR_NO_MEMORY;

    for (int i = 0; status == XM_OK && i < effort->sizes; ++i) {
        uint64_t bytes = probe->sizes[i];

        report_progress(probe, (double)i / effort->sizes);
        numbers[2 * i] = xm_probe_copy_seconds(to, from, effort->hot ? bytes : effort->pool, bytes,
                                               probe->params.repetitions, &numbers[2 * i + 1]);
    }
    if (status == XM_OK && memcmp(from, to, effort->pool) != 0) {
        status = xm_error_set(XM_ERR_CORRUPT, "probe: a memory copy on rank 0 differs");
    }
    *count = 2 * (size_t)effort->sizes;
    free(to);
    free(from);
    return status;
}

/* This rank's part of a link. @p numbers are seconds and spread of each size, on the rank that
 * begins the ping-pong. A size may take only a small part of the wait limit, since the others
 * sit in a barrier. */
static xm_status_t ping_pong(xm_probe_t *probe, const effort_t *effort, int peer, bool begins,
                             double *numbers, size_t *count)
{
    double timeout = xm_worker_timeout(probe->worker);
    double seconds[XM_CURVE_MAX_POINTS], spread[XM_CURVE_MAX_POINTS];
    double share = effort->hot ? hot_share : curve_share;
    xm_probe_ping_t ping = {
        .sizes = probe->sizes,
        .size_count = effort->sizes,
        .repetitions = probe->params.repetitions,
        .budget = fmin(timeout * wait_share, probe->params.budget * share / probe->size_count),
        .longest = timeout * wait_share,
        .hot = effort->hot,
        .step = ping_step,
        .step_arg = probe};
    xm_probe_link_t *link = NULL;
    int points = 0;
    xm_status_t status = xm_probe_link_create(probe->worker, peer, effort->pool, &link);

    XM_THEN(status, begins ? xm_probe_link_ping(link, &ping, seconds, spread, &points)
                           : xm_probe_link_pong(link));
    xm_probe_link_destroy(link);
    for (int i = 0; i < points; ++i) {
        numbers[2 * i] = seconds[i];
        numbers[2 * i + 1] = spread[i];
    }
    *count = 2 * (size_t)points;
    return status;
}

/* Measures one curve; who has no part in it waits at the end of the step. A class of links without
 * a pair in this job is left out; the profile then takes the nearest class. */
static xm_status_t measure_curve(xm_probe_t *probe, int curve, const char *phase, double start,
                                 double end)
{
    effort_t effort = effort_of(probe, curve >= XM_LINK_HOT);
    xm_link_class_t class = (xm_link_class_t)(curve % XM_LINK_HOT);
    const char *step = xm_link_class_name((xm_link_class_t)curve);
    double numbers[2 * XM_CURVE_MAX_POINTS];
    size_t count = 0;
    int a = 0, b = 0;
    xm_status_t status;

    if (xm_probe_is_done(probe, step) ||
        (class != XM_LINK_SELF &&
         !xm_probe_pair(probe->host_of, probe->ranks, probe->hosts, class, &a, &b))) {
        return XM_OK;
    }
    status = xm_probe_enter(probe, phase, start, end);
    if (status == XM_OK && (probe->rank == a || probe->rank == b)) {
        status = class == XM_LINK_SELF ? copies(probe, &effort, numbers, &count)
                                       : ping_pong(probe, &effort, probe->rank == a ? b : a,
                                                   probe->rank == a, numbers, &count);
    }
    return status < 0 ? status : xm_probe_finish_step(probe, step, numbers, count);
}

/* Describes for which ranks and sizes the numbers are good: a probe that goes on must be of the
 * same hosts in the same order. */
static void describe_job(const xm_probe_t *probe, char *text, size_t size)
{
    XXH64_hash_t digest = XXH3_64bits(probe->host_of, (size_t)probe->ranks * sizeof(int));

    for (int h = 0; h < probe->hosts; ++h) {
        const char *name = xm_worker_host_name(probe->worker, h);

        digest ^= XXH3_64bits_withSeed(name, strlen(name), (XXH64_hash_t)h + 1);
    }
    (void)snprintf(text, size, "%d ranks on %d hosts from %s, places %016llx, %d sizes",
                   probe->ranks, probe->hosts, xm_worker_host_name(probe->worker, 0),
                   (unsigned long long)digest, probe->size_count);
}

/* Takes over what an earlier probe has left: rank 0 reads it and sends it to all. A file that
 * does not exist is an empty start. */
static xm_status_t take_over(xm_probe_t *probe, const char *job)
{
    char *text = NULL;
    size_t length = 0, *offsets = NULL;
    void *all = NULL;
    xm_status_t status = XM_OK;

    if (probe->rank == 0 && probe->params.resume && probe->params.partial != NULL) {
        status = xm_text_load(probe->params.partial, &text, &length);
        status = status == XM_ERR_NOT_FOUND ? XM_OK : status;
    }
    XM_THEN(status, xm_bootstrap_allgatherv(xm_worker_bootstrap(probe->worker), text, length, &all,
                                            &offsets, xm_worker_timeout(probe->worker)));
    free(text);
    XM_TRY(status);
    status = offsets[1] > 0 ? xm_probe_state_from_text(all, offsets[1],
                                                       probe->params.partial != NULL
                                                           ? probe->params.partial
                                                           : "the results so far of rank 0",
                                                       job, &probe->state)
                            : xm_probe_state_create(job, &probe->state);
    free(offsets);
    free(all);
    return status;
}

static bool is_count(const xm_probe_t *probe, const char *step, size_t expected)
{
    size_t count = expected;

    return xm_probe_state_find(probe->state, step, &count) == NULL || count == expected;
}

/* Checks that what was taken over has as many numbers as a step gives; a file can be edited. */
static xm_status_t check_state(const xm_probe_t *probe)
{
    size_t ranks = (size_t)probe->ranks, points = 2 * (size_t)probe->size_count, count = 0;
    bool good = is_count(probe, "device", ranks * XM_PROBE_DEVICE_NUMBERS) &&
                is_count(probe, "nic/both", XM_PROBE_RATE_NUMBERS) &&
                is_count(probe, "fabric", XM_PROBE_RATE_NUMBERS);

    for (int link = 0; link < XM_LINK_CURVES; ++link) {
        if (xm_probe_state_find(probe->state, xm_link_class_name((xm_link_class_t)link), &count) !=
            NULL) {
            good = good && count % 2 == 0 && count >= 4 && count <= points;
        }
    }
    return good ? XM_OK
                : XM_MALFORMED("probe: a step of the results so far has a wrong number of values");
}

/* The sequence of steps. Collectives come last, since they need most time and add most to a
 * profile that is complete without them. */
static xm_status_t measure(xm_probe_t *probe, xm_cluster_profile_t **profile)
{
    xm_cluster_profile_t *made = NULL;
    char job[512];
    xm_status_t status;

    describe_job(probe, job, sizeof(job));
    if ((status = take_over(probe, job)) < 0 || (status = check_state(probe)) < 0 ||
        (status = measure_device(probe)) < 0) {
        return status;
    }
    for (int curve = 0; curve < XM_LINK_CURVES; ++curve) {
        static const char *const phases[XM_LINK_CLASS_COUNT] = {
            "copy inside a process", "messages inside a host", "messages between hosts"};
        const double start = 0.2, part = 0.35 / XM_LINK_CURVES;

        status = measure_curve(probe, curve, phases[curve % XM_LINK_HOT], start + curve * part,
                               start + (curve + 1) * part);
        XM_TRY(status);
    }
    if ((status = xm_probe_measure_fabric(probe)) < 0 ||
        (status = xm_probe_measure_nics(probe)) < 0 ||
        (status = xm_probe_measure_collectives(probe)) < 0) {
        return status;
    }
    status = xm_probe_make_profile(probe, &made);
    XM_THEN(status, xm_probe_add_collectives(probe, &made));
    if (status < 0) {
        xm_cluster_profile_destroy(made);
    } else {
        *profile = made;
        probe->phase_start = probe->phase_end = 1 / probe->links_part;
        probe->phase = "done";
        report_progress(probe, 1);
    }
    return status;
}

static xm_status_t check_params(const xm_probe_params_t *params)
{
    if (params->max_bytes != 0 &&
        (params->max_bytes < MIN_MAX_BYTES || params->max_bytes > UINT64_C(1) << 40)) {
        return XM_INVALID("probe: the largest message is %llu bytes; it must be 64 KiB to 1 TiB",
                          (unsigned long long)params->max_bytes);
    }
    if (params->repetitions < 0) {
        return XM_INVALID("probe: %d repetitions; there cannot be fewer than 0",
                          params->repetitions);
    }
    if (!isfinite(params->budget) || params->budget < 0) {
        return XM_INVALID("probe: a budget of %g seconds; it cannot be negative", params->budget);
    }
    return params->collectives != NULL ? xm_collective_check_choice(params->collectives) : XM_OK;
}

/* Runs a probe; collective. The library of collectives is opened first, because it decides how
 * the budget is divided. */
xm_status_t xm_probe_run(xm_worker_t *worker, const xm_probe_params_t *params,
                         xm_cluster_profile_t **profile)
{
    xm_probe_t probe = {.worker = worker, .params = XM_PROBE_PARAMS_INIT};
    xm_status_t status;

    XM_TRY(XM_PARAMS_COPY(xm_probe_params_t, &probe.params, params));
    XM_TRY(check_params(&probe.params));
    if (probe.params.max_bytes == 0) {
        probe.params.max_bytes = default_max_bytes;
    }
    if (probe.params.repetitions == 0) {
        probe.params.repetitions = DEFAULT_REPETITIONS;
    }
    if (probe.params.budget <= 0) {
        probe.params.budget = default_budget;
    }
    probe.rank = xm_worker_rank(worker);
    probe.ranks = xm_worker_size(worker);
    probe.hosts = xm_worker_host_count(worker);
    probe.size_count = xm_curve_sizes(probe.params.max_bytes, probe.sizes);
    probe.host_of = calloc((size_t)probe.ranks, sizeof(int));
    if (probe.host_of == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "probe: out of memory");
    }
    for (int rank = 0; rank < probe.ranks; ++rank) {
        probe.host_of[rank] = xm_worker_host_of(worker, rank);
    }
    status = xm_probe_open_collectives(&probe);
    probe.started = xm_clock_seconds();
    XM_THEN(status, measure(&probe, profile));
    xm_collective_library_destroy(probe.library);
    xm_probe_state_destroy(probe.state);
    free(probe.host_of);
    return status;
}
