/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One case on real ranks: all variants in turn, run by run. Alternating them makes
 * comparisons fair, as what else happens on the machine then hits all variants alike.
 * Every run starts at a barrier, and its time is that of the slowest rank.
 */
#include "bench/run/job_case.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/run/collective.h"
#include "bench/run/device_buffers.h"
#include "bench/run/pattern.h"
#include "bench/run/processors.h"
#include "bench/run/records.h"
#include "bench/run/tile_buffers.h"
#include "cli_support.h"
#include "comm/base.h"
#include "resharding/execute.h"

#include <crossmesh/update.h>

enum { CHANNELS = 256 };

/* One variant of the case. */
typedef struct {
    const rb_prepared_t *prepared;
    xm_executor_t *executor;
    xm_update_t *update;     /* with --density: what is timed, beside the executor */
    int64_t start_ns;        /* of the last run, on the transport's clock */
    rb_chunk_times_t chunks; /* of the last run, with --trace */
} variant_t;

typedef struct {
    xm_worker_t *worker;
    const rb_options_t *options;
    int first; /* number of the first variant in the selection */
    int count;
    variant_t *variants;
    rb_tile_buffers_t buffers;  /* of all variants: their layouts are the same */
    rb_device_buffers_t device; /* with --memory cuda: what is moved */
    int64_t *gathered;          /* a sample of every rank */
    int64_t setup_ns;           /* this rank's, for all executors */
    int waits;                  /* rb_processors_open() */
    rb_processors_t processors;
} slot_t;

/* What a rank reports of one run. */
enum {
    SAMPLE_NS,
    SAMPLE_CPU_NS,
    SAMPLE_WAITED_NS,
    SAMPLE_WRONG,
    SAMPLE_RESENDS,
    SAMPLE_EVERYTHING_NS, /* of an update: the same with everything moved; … */
    SAMPLE_SENT,          /* … bytes that it sent, and would have sent of everything */
    SAMPLE_COVERED,
    SAMPLE_FIELDS
};

/* What one run came to, over all ranks. */
typedef struct {
    double seconds;  /* the slowest rank's */
    double cpu_s;    /* of all ranks */
    double waited_s; /* for processors; negative: not known */
    double everything_s, sent, covered;
    uint64_t wrong, resends;
} run_t;

/* Each variant gets a channel of its own, so that messages of different plans cannot be
 * confused. */
static xm_status_t create_executor(slot_t *slot, int index)
{
    xm_executor_params_t params = {0};

    params.plan = slot->variants[index].prepared->plan;
    params.transport = xm_worker_transport(slot->worker);
    params.turns = true;
    params.buffers = slot->device.space != NULL ? slot->device.tensors : slot->buffers.tensors;
    params.device_peers = slot->options->memory == XM_MEMORY_CUDA;
    params.memory_limit = slot->options->memory_limit;
    params.chunk_ran = slot->options->trace_path != NULL ? rb_chunk_times_note : NULL;
    params.arg = &slot->variants[index].chunks;
    params.channel = (slot->first + index) % CHANNELS;
    return xm_executor_create(&params, &slot->variants[index].executor);
}

/* Updates are made by all ranks together, and choose channels of their own. */
static xm_status_t create_update(slot_t *slot, int index)
{
    xm_reshard_params_t params = XM_RESHARD_PARAMS_INIT;

    params.plan = slot->variants[index].prepared->plan;
    params.buffers = slot->buffers.tensors;
    params.memory_limit = slot->options->memory_limit;
    params.turns = true;
    params.dtype = slot->variants[index].prepared->one->dtype;
    return xm_update_create(slot->worker, &params, &slot->variants[index].update);
}

/* The rank's number among those of its host: ranks of a host take its devices in turn. */
static int local_index(xm_worker_t *worker)
{
    int rank = xm_worker_rank(worker), local = 0;

    for (int r = 0; r < rank; ++r) {
        local += xm_worker_host_of(worker, r) == xm_worker_host_of(worker, rank);
    }
    return local;
}

/* The buffers are made once for all variants, as their layouts are the same. */
static xm_status_t prepare_slot(slot_t *slot, const rb_prepared_t *prepared)
{
    size_t size = (size_t)xm_worker_size(slot->worker);
    xm_status_t status = XM_OK;

    XM_TRY(rb_tile_buffers_create(prepared, xm_worker_rank(slot->worker), true, &slot->buffers));
    if (slot->options->memory == XM_MEMORY_CUDA) {
        XM_TRY(rb_device_buffers_create(&slot->buffers, local_index(slot->worker), &slot->device));
    }
    slot->variants = calloc((size_t)slot->count, sizeof(*slot->variants));
    slot->gathered = malloc(SAMPLE_FIELDS * size * sizeof(*slot->gathered));
    if (slot->variants == NULL || slot->gathered == NULL) {
        return XM_NO_MEMORY("%d plans and the times of %zu ranks", slot->count, size);
    }
    slot->setup_ns = -xm_clock_ns();
    for (int v = 0; status == XM_OK && v < slot->count; ++v) {
        slot->variants[v].prepared = &prepared[v];
        status = create_executor(slot, v);
    }
    slot->setup_ns += xm_clock_ns();
    return status;
}

/* Collective: what the slowest rank needed to prepare, a share for each variant. */
static xm_status_t gather_setup(slot_t *slot, rb_result_t *results)
{
    xm_status_t status =
        xm_worker_allgather(slot->worker, &slot->setup_ns, slot->gathered, sizeof(slot->setup_ns));
    int64_t slowest = 0;

    for (int r = 0; status == XM_OK && r < xm_worker_size(slot->worker); ++r) {
        slowest = slot->gathered[r] > slowest ? slot->gathered[r] : slowest;
    }
    for (int v = 0; v < slot->count; ++v) {
        results[v].setup_s = (double)slowest * 1e-9 / slot->count;
    }
    return status;
}

/* Executors go before the buffers that they use. */
static void clear_slot(slot_t *slot)
{
    for (int v = 0; slot->variants != NULL && v < slot->count; ++v) {
        xm_update_destroy(slot->variants[v].update);
        xm_executor_destroy(slot->variants[v].executor);
        free(slot->variants[v].chunks.records);
    }
    free(slot->variants);
    free(slot->gathered);
    rb_device_buffers_clear(&slot->device);
    rb_tile_buffers_clear(&slot->buffers);
}

/* Ranks that share processors hold each other up in turn, so their waits add up; of others the
 * longest counts. One that is not known makes all unknown. */
static int64_t add_wait(const slot_t *slot, int64_t waited, int64_t next)
{
    if (waited < 0 || next < 0) {
        return -1;
    }
    if (slot->processors.ranks > slot->processors.cores) {
        return waited + next;
    }
    return next > waited ? next : waited;
}

/* Gathers one run: the time is the slowest rank's, processor time and wrong bytes are
 * those of all. */
static xm_status_t gather_run(slot_t *slot, const int64_t *own, run_t *run)
{
    int64_t slowest = 0, waited = 0;

    XM_TRY(xm_worker_allgather(slot->worker, own, slot->gathered,
                               SAMPLE_FIELDS * sizeof(*slot->gathered)));
    *run = (run_t){0};
    for (int r = 0; r < xm_worker_size(slot->worker); ++r) {
        const int64_t *sample = &slot->gathered[(ptrdiff_t)SAMPLE_FIELDS * r];

        slowest = sample[SAMPLE_NS] > slowest ? sample[SAMPLE_NS] : slowest;
        waited = add_wait(slot, waited, sample[SAMPLE_WAITED_NS]);
        run->cpu_s += (double)sample[SAMPLE_CPU_NS] * 1e-9;
        run->wrong += (uint64_t)sample[SAMPLE_WRONG];
        run->resends += (uint64_t)sample[SAMPLE_RESENDS];
        run->everything_s = fmax(run->everything_s, (double)sample[SAMPLE_EVERYTHING_NS] * 1e-9);
        run->sent += (double)sample[SAMPLE_SENT];
        run->covered += (double)sample[SAMPLE_COVERED];
    }
    run->seconds = (double)slowest * 1e-9;
    run->waited_s = (double)waited * 1e-9;
    return XM_OK;
}

static int64_t count_resends(const xm_worker_t *worker)
{
    xm_rank_counts_t counts = {0};

    (void)xm_worker_rank_counts(worker, &counts);
    return (int64_t)counts.resends;
}

/* Times one way of bringing the destinations up to date; collective. */
static xm_status_t time_update(slot_t *slot, variant_t *variant, bool everything, int64_t *own)
{
    xm_transport_t *transport = xm_worker_transport(slot->worker);
    xm_update_info_t info = XM_UPDATE_INFO_INIT;
    xm_status_t status = xm_worker_barrier(slot->worker);
    int64_t start = xm_transport_now(transport);

    XM_TRY(status);
    if (everything) {
        status = xm_executor_run(slot->worker, variant->executor, xm_worker_deadline(slot->worker));
        own[SAMPLE_EVERYTHING_NS] = xm_transport_now(transport) - start;
        return status;
    }
    status = xm_update_commit(variant->update, 0, &info);
    own[SAMPLE_NS] = xm_transport_now(transport) - start;
    own[SAMPLE_SENT] = (int64_t)info.sent_bytes;
    own[SAMPLE_COVERED] = (int64_t)info.dense_bytes;
    return status;
}

/* The same of an update. Elements change before the clock runs, and everything is moved behind it,
 * for comparison. All variants bring the same changes; what those before have brought is spoiled.
 */
static xm_status_t run_update(slot_t *slot, int index, int number, run_t *run)
{
    uint64_t salt = rb_pattern_salt(slot->options->seed, slot->first, number);
    variant_t *variant = &slot->variants[index];
    int64_t own[SAMPLE_FIELDS] = {0}, cpu, waited;
    xm_status_t status = XM_OK;

    if (number == 0) {
        rb_tile_buffers_fill(&slot->buffers, salt);
        status = index == 0 ? rb_tile_buffers_expect(&slot->buffers, salt) : XM_OK;
    } else {
        rb_tile_buffers_change(&slot->buffers, salt, slot->options->pattern,
                               slot->options->density / 100, index > 0);
    }
    waited = rb_processors_waited_ns(slot->waits);
    own[SAMPLE_RESENDS] = -count_resends(slot->worker);
    cpu = xm_clock_cpu_ns();
    XM_THEN(status, time_update(slot, variant, false, own));
    own[SAMPLE_CPU_NS] = xm_clock_cpu_ns() - cpu;
    own[SAMPLE_WAITED_NS] = waited < 0 ? -1 : rb_processors_waited_ns(slot->waits) - waited;
    own[SAMPLE_RESENDS] += count_resends(slot->worker);
    if (status == XM_OK) {
        own[SAMPLE_WRONG] =
            slot->options->validate ? (int64_t)rb_tile_buffers_differ(&slot->buffers) : 0;
        status = time_update(slot, variant, true, own);
    }
    return status == XM_OK ? gather_run(slot, own, run) : status;
}

/*
 * One run of one variant. Data are written before the barrier and checked after the clock
 * has stopped, so neither is measured. Without validation they are written once, to bring
 * the pages in.
 */
static xm_status_t run_once(slot_t *slot, int index, int number, run_t *run)
{
    variant_t *variant = &slot->variants[index];
    uint64_t salt = rb_pattern_salt(slot->options->seed, slot->first + index, number);
    int64_t own[SAMPLE_FIELDS] = {0}, cpu, waited;
    xm_status_t status = XM_OK;

    if (slot->options->density > 0) {
        return run_update(slot, index, number, run);
    }
    if (slot->options->validate || number == 0) {
        rb_tile_buffers_fill(&slot->buffers, salt);
        if (slot->device.space != NULL) {
            status = rb_device_buffers_upload(&slot->device);
        }
    }
    XM_THEN(status, xm_worker_barrier(slot->worker));
    XM_TRY(status);
    waited = rb_processors_waited_ns(slot->waits);
    own[SAMPLE_RESENDS] = -count_resends(slot->worker);
    cpu = xm_clock_cpu_ns();
    variant->chunks.count = 0;
    variant->start_ns = xm_transport_now(xm_worker_transport(slot->worker));
    XM_TRY(xm_executor_run(slot->worker, variant->executor, xm_worker_deadline(slot->worker)));
    own[SAMPLE_NS] = xm_transport_now(xm_worker_transport(slot->worker)) - variant->start_ns;
    own[SAMPLE_CPU_NS] = xm_clock_cpu_ns() - cpu;
    own[SAMPLE_WAITED_NS] = waited < 0 ? -1 : rb_processors_waited_ns(slot->waits) - waited;
    own[SAMPLE_RESENDS] += count_resends(slot->worker);
    /* The checksums are compared on all ranks before anybody goes on, as it is a
     * collective. */
    if (slot->options->verify) {
        XM_TRY(rb_share_status(slot->worker, xm_executor_verify(slot->worker, variant->executor,
                                                                xm_worker_deadline(slot->worker))));
    }
    if (slot->options->validate && slot->device.space != NULL) {
        XM_TRY(rb_device_buffers_download(&slot->device));
    }
    if (slot->options->validate) {
        own[SAMPLE_WRONG] = (int64_t)rb_tile_buffers_check(&slot->buffers, salt);
    }
    return gather_run(slot, own, run);
}

/* Run k of every variant, then run k + 1. */
static xm_status_t run_all(slot_t *slot, rb_result_t *results)
{
    const rb_options_t *options = slot->options;
    int runs = (options->warmup + options->iterations) * slot->count;
    bool first = xm_worker_rank(slot->worker) == 0;
    xm_cli_progress_t *progress = first ? xm_cli_progress_create("reshard-bench") : NULL;
    xm_status_t status = XM_OK;

    for (int i = 0; status == XM_OK && i < runs; ++i) {
        int index = i % slot->count, number = i / slot->count;
        rb_result_t *result = &results[index];
        run_t run;

        if (progress != NULL) {
            xm_cli_progress_update(progress, (double)i / runs,
                                   slot->variants[index].prepared->one->name);
        }
        status = run_once(slot, index, number, &run);
        if (status < 0) {
            break;
        }
        result->wrong += run.wrong;
        result->resends += run.resends;
        if (number >= options->warmup) {
            if (result->everything != NULL) {
                result->everything[result->runs] = run.everything_s;
            }
            result->seconds[result->runs++] = run.seconds;
            /* The average is built up run by run, over the timed runs only. */
            result->cpu_s += run.cpu_s / options->iterations;
            result->waited_s += run.waited_s / options->iterations;
            result->sent_share +=
                run.covered > 0 ? run.sent / run.covered / options->iterations : 0;
        }
    }
    xm_cli_progress_destroy(progress);
    return status;
}

/* Collective: puts every rank's records of the last run into the result, in rank order. */
static xm_status_t gather_records(slot_t *slot, const variant_t *variant, rb_result_t *result)
{
    rb_record_t *own = NULL;
    size_t count, *offsets;
    void *all;
    xm_status_t status =
        rb_records_take(variant->prepared->plan, variant->executor, xm_worker_rank(slot->worker),
                        variant->start_ns, &variant->chunks, &own, &count);

    status = rb_share_status(slot->worker, status);
    if (status < 0) {
        free(own);
        return status;
    }
    status = xm_bootstrap_allgatherv(xm_worker_bootstrap(slot->worker), own, count * sizeof(*own),
                                     &all, &offsets, xm_worker_timeout(slot->worker));
    free(own);
    XM_TRY(status);
    result->records = all;
    result->record_count = offsets[xm_worker_size(slot->worker)] / sizeof(*result->records);
    free(offsets);
    return XM_OK;
}

/* Collective: all ranks compare their plans before anything moves. */
static xm_status_t agree(slot_t *slot, const rb_prepared_t *prepared)
{
    xm_status_t status = XM_OK;

    for (int v = 0; status == XM_OK && v < slot->count; ++v) {
        status = xm_reshard_agree(slot->worker, prepared[v].plan, prepared[v].one->dtype);
    }
    return status == XM_ERR_MISMATCH ? xm_worker_fail_together(slot->worker, status) : status;
}

static xm_status_t open_results(const slot_t *slot, const rb_prepared_t *prepared,
                                rb_result_t *results)
{
    const rb_options_t *options = slot->options;

    for (int v = 0; v < slot->count; ++v) {
        results[v] = (rb_result_t){
            .prepared = &prepared[v], .validated = options->validate, .verified = options->verify};
        results[v].seconds = malloc((size_t)options->iterations * sizeof(*results[v].seconds));
        if (options->density > 0) {
            results[v].everything = calloc((size_t)options->iterations, sizeof(double));
        }
        if (results[v].seconds == NULL || (options->density > 0 && results[v].everything == NULL)) {
            return XM_NO_MEMORY("%d times", options->iterations);
        }
    }
    return XM_OK;
}

/* The order of steps is the same on all ranks; each failure that only one rank can have
 * is shared. */
xm_status_t rb_job_case(xm_worker_t *worker, const rb_job_info_t *job, int first, int count,
                        const rb_prepared_t *prepared, rb_result_t *results)
{
    const rb_options_t *options = job->options;
    slot_t slot = {.worker = worker,
                   .options = options,
                   .first = first,
                   .count = count,
                   .waits = rb_processors_open()};
    xm_status_t status = agree(&slot, prepared);

    XM_THEN(status, rb_processors_gather(worker, &slot.processors));
    if (status < 0) {
        goto close_waits;
    }
    status = open_results(&slot, prepared, results);
    XM_THEN(status, prepare_slot(&slot, prepared));
    status = rb_share_status(worker, status);
    XM_THEN(status, gather_setup(&slot, results));
    for (int v = 0; status == XM_OK && options->density > 0 && v < count; ++v) {
        status = create_update(&slot, v);
        XM_THEN(status, rb_update_predict(worker, prepared[v].plan, job->rates->nic_bandwidth[0],
                                          &slot.processors, options->pattern,
                                          options->density / 100, &results[v].update));
    }
    XM_THEN(status, run_all(&slot, results));
    for (int v = 0; status == XM_OK && v < count; ++v) {
        results[v].processors = slot.processors;
        if (options->trace_path != NULL || options->plot_path != NULL) {
            status = gather_records(&slot, &slot.variants[v], &results[v]);
        }
    }
    clear_slot(&slot);
    for (int v = 0; status < 0 && v < count; ++v) {
        rb_result_clear(&results[v]);
    }

close_waits:
    if (slot.waits >= 0) {
        (void)close(slot.waits);
    }
    return status;
}
