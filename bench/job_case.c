#include "bench/job_case.h"

#include <stdlib.h>
#include <string.h>

#include "bench/collective.h"
#include "bench/pattern.h"
#include "bench/records.h"
#include "bench/tile_buffers.h"
#include "cli_support/progress.h"
#include "resharding/checksum.h"

enum { CHANNELS = 256 };

typedef struct {
    xm_worker_t *worker;
    const rb_options_t *options;
    const rb_prepared_t *prepared;
    int index;
    rb_tile_buffers_t buffers;
    xm_executor_t *executor;
    int64_t *gathered; /* two numbers of every rank */
    int64_t start_ns;  /* of the last run, on the transport's clock */
} seat_t;

static xm_status_t prepare_seat(seat_t *seat)
{
    xm_executor_params_t params = XM_EXECUTOR_PARAMS_INIT;
    xm_status_t status =
        rb_tile_buffers_create(seat->prepared, xm_worker_rank(seat->worker), &seat->buffers);

    if (status < 0) {
        return status;
    }
    seat->gathered = malloc(2 * (size_t)xm_worker_size(seat->worker) * sizeof(*seat->gathered));
    if (seat->gathered == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the times of %d ranks",
                            xm_worker_size(seat->worker));
    }
    params.plan = seat->prepared->plan;
    params.transport = xm_worker_transport(seat->worker);
    params.turns = true;
    params.buffers = seat->buffers.tensors;
    params.memory_limit = seat->options->memory_limit;
    params.channel = seat->index % CHANNELS;
    return xm_executor_create(&params, &seat->executor);
}

static void clear_seat(seat_t *seat)
{
    xm_executor_destroy(seat->executor);
    free(seat->gathered);
    rb_tile_buffers_clear(&seat->buffers);
}

/* One run: its time is the slowest rank's, its wrong bytes are those of all ranks. */
static xm_status_t run_once(seat_t *seat, int run, double *seconds, uint64_t *wrong)
{
    uint64_t salt = rb_pattern_salt(seat->options->seed, seat->index, run);
    int64_t own[2] = {0}, slowest = 0;
    xm_status_t status;

    if (seat->options->validate || run == 0) {
        rb_tile_buffers_fill(&seat->buffers, salt);
    }
    status = xm_worker_barrier(seat->worker);
    if (status < 0) {
        return status;
    }
    seat->start_ns = xm_transport_now(xm_worker_transport(seat->worker));
    status = xm_reshard_run(seat->worker, seat->executor, xm_worker_deadline(seat->worker));
    if (status < 0) {
        return status;
    }
    own[0] = xm_transport_now(xm_worker_transport(seat->worker)) - seat->start_ns;
    if (seat->options->verify) {
        status = rb_share_status(seat->worker, xm_reshard_verify(seat->worker, seat->executor,
                                                                 xm_worker_deadline(seat->worker)));
        if (status < 0) {
            return status;
        }
    }
    if (seat->options->validate) {
        own[1] = (int64_t)rb_tile_buffers_check(&seat->buffers, salt);
    }
    status = xm_worker_allgather(seat->worker, own, seat->gathered, sizeof(own));
    if (status < 0) {
        return status;
    }
    for (int r = 0; r < xm_worker_size(seat->worker); ++r) {
        slowest = seat->gathered[2 * r] > slowest ? seat->gathered[2 * r] : slowest;
        *wrong += (uint64_t)seat->gathered[2 * r + 1];
    }
    *seconds = (double)slowest * 1e-9;
    return XM_OK;
}

static xm_status_t run_all(seat_t *seat, rb_result_t *result)
{
    const rb_options_t *options = seat->options;
    bool first = xm_worker_rank(seat->worker) == 0;
    xm_cli_progress_t *progress = first ? xm_cli_progress_create("reshard-bench") : NULL;
    xm_status_t status = XM_OK;

    for (int i = 0; status == XM_OK && i < options->warmup + options->iterations; ++i) {
        double seconds;

        if (progress != NULL) {
            xm_cli_progress_update(progress, (double)i / (options->warmup + options->iterations),
                                   seat->prepared->one->name);
        }
        status = run_once(seat, i, &seconds, &result->wrong);
        if (status == XM_OK && i >= options->warmup) {
            result->seconds[result->runs++] = seconds;
        }
    }
    xm_cli_progress_destroy(progress);
    return status;
}

/* Collective: puts every rank's records of the last run into the result. */
static xm_status_t gather_records(seat_t *seat, rb_result_t *result)
{
    rb_record_t *own;
    size_t count, *offsets;
    void *all;
    xm_status_t status =
        rb_records_take(seat->prepared->plan, seat->executor, xm_worker_rank(seat->worker),
                        seat->start_ns, &own, &count);

    status = rb_share_status(seat->worker, status);
    if (status < 0) {
        return status;
    }
    status = xm_bootstrap_allgatherv(xm_worker_bootstrap(seat->worker), own, count * sizeof(*own),
                                     &all, &offsets, xm_worker_timeout(seat->worker));
    free(own);
    if (status < 0) {
        return status;
    }
    result->records = all;
    result->record_count = offsets[xm_worker_size(seat->worker)] / sizeof(*result->records);
    free(offsets);
    return XM_OK;
}

xm_status_t rb_job_case(xm_worker_t *worker, const rb_job_info_t *job, int index,
                        const rb_prepared_t *prepared, rb_result_t *result)
{
    const rb_options_t *options = job->options;
    seat_t seat = {.worker = worker, .options = options, .prepared = prepared, .index = index};
    rb_result_t made = {
        .prepared = prepared, .validated = options->validate, .verified = options->verify};
    xm_status_t status = xm_reshard_agree(worker, prepared->plan, prepared->one->dtype);

    if (status < 0) {
        return status;
    }
    made.seconds = malloc((size_t)options->iterations * sizeof(*made.seconds));
    status = made.seconds != NULL
                 ? prepare_seat(&seat)
                 : xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d times", options->iterations);
    status = rb_share_status(worker, status);
    if (status == XM_OK) {
        status = run_all(&seat, &made);
    }
    if (status == XM_OK && (options->trace_path != NULL || options->plot_path != NULL)) {
        status = gather_records(&seat, &made);
    }
    clear_seat(&seat);
    if (status < 0) {
        rb_result_clear(&made);
        return status;
    }
    *result = made;
    return XM_OK;
}
