/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a pipeline: goes through its stage's list, computes, sends and receives,
 * while transfers go on in between. Its clock is the device's: where the device is
 * elsewhere, a pass begins when the one before has ended, whenever this process comes to
 * notice, so a busy core does not lengthen the step.
 */
#include "bench/pipeline/stage_rank.h"

#include <stdlib.h>

#include "bench/pipeline/stage_channel.h"

/* The channels of a stage, in the order of the entries that use them, from
 * AP_PASS_SEND_ACTIVATION on. */
enum { SEND_ACTIVATION, RECEIVE_ACTIVATION, SEND_GRADIENT, RECEIVE_GRADIENT, STAGE_CHANNELS };

struct rb_stage_rank {
    xm_worker_t *worker;
    const rb_pipeline_t *pipeline;
    rb_compute_t *compute;
    int stage;
    rb_stage_channel_t *stage_channels[STAGE_CHANNELS]; /* NULL at the ends of the pipeline */
    ap_pipeline_span_t *spans;
    int count;
    int64_t start;    /* of the run */
    int64_t clock;    /* when the device is free */
    int64_t deadline; /* of the run */
};

/* The way of a channel, −1 where the pipeline ends. */
static int way_index(const rb_stage_rank_t *rank, int stage_channel)
{
    int last = ap_plan_stages(rank->pipeline->plan) - 1;
    bool after = stage_channel == SEND_ACTIVATION || stage_channel == RECEIVE_GRADIENT;
    bool gradient = stage_channel == SEND_GRADIENT || stage_channel == RECEIVE_GRADIENT;
    int boundary = after ? rank->stage : rank->stage - 1;

    return boundary >= 0 && boundary < last ? 2 * boundary + (gradient ? 1 : 0) : -1;
}

/* A rank of no stage has nothing, and its run ends at once. */
xm_status_t rb_stage_rank_create(xm_worker_t *worker, const rb_pipeline_t *pipeline,
                                 rb_compute_t *compute, rb_stage_rank_t **result)
{
    rb_stage_rank_t *rank = calloc(1, sizeof(*rank));
    xm_status_t status = XM_OK;
    bool first;

    if (rank == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a rank of a pipeline");
    }
    rank->worker = worker;
    rank->pipeline = pipeline;
    rank->compute = compute;
    rank->stage = rb_pipeline_stage_of(pipeline, xm_worker_rank(worker), &first);
    if (pipeline->way_count > RB_STAGE_CHANNEL_WAYS) {
        status = xm_error_set(XM_ERR_UNSUPPORTED, "%d stages are too many to run: at most %d",
                              ap_plan_stages(pipeline->plan), RB_STAGE_CHANNEL_WAYS / 2 + 1);
    }
    if (status == XM_OK && rank->stage >= 0) {
        rank->count = pipeline->schedule->op_count[rank->stage];
        rank->spans = calloc((size_t)rank->count + 1, sizeof(*rank->spans));
        if (rank->spans == NULL) {
            status =
                xm_error_set(XM_ERR_NO_MEMORY, "no memory for the times of %d passes", rank->count);
        }
    }
    for (int i = 0; i < STAGE_CHANNELS && rank->stage >= 0 && status == XM_OK; ++i) {
        int way = way_index(rank, i);

        if (way >= 0) {
            status = rb_stage_channel_create(worker, pipeline, way, &rank->stage_channels[i]);
        }
    }
    if (status < 0) {
        rb_stage_rank_destroy(rank);
        return status;
    }
    *result = rank;
    return XM_OK;
}

/* All channels are advanced, as any of them may be what another stage waits for. */
static xm_status_t advance(rb_stage_rank_t *rank, bool *may_sleep)
{
    xm_status_t status = XM_OK;

    *may_sleep = true;
    for (int i = 0; i < STAGE_CHANNELS && status == XM_OK; ++i) {
        if (rank->stage_channels[i] != NULL) {
            status = rb_stage_channel_advance(rank->stage_channels[i]);
            *may_sleep = *may_sleep && rb_stage_channel_may_sleep(rank->stage_channels[i]);
        }
    }
    return status;
}

/* Sleeps until something has happened, at most until `until`. It is called after
 * advance(), when there is nothing to do but to wait. */
static xm_status_t rest(rb_stage_rank_t *rank, bool may_sleep, int64_t until)
{
    xm_status_t status;

    if (!may_sleep) {
        return xm_worker_progress(rank->worker);
    }
    status = xm_worker_wait(rank->worker, until < rank->deadline ? until : rank->deadline);
    return status == XM_ERR_TIMEOUT && until < rank->deadline ? XM_OK : status;
}

/* Waiting moves the clock by the planned time; real work takes as long as it takes. */
static xm_status_t compute(rb_stage_rank_t *rank, int64_t duration_ns)
{
    xm_status_t status = XM_OK;
    bool may_sleep;

    if (rb_compute_kind(rank->compute) == RB_COMPUTE_WAIT) {
        rank->clock += duration_ns;
        while (status == XM_OK && xm_worker_now(rank->worker) < rank->clock) {
            status = advance(rank, &may_sleep);
            if (status == XM_OK) {
                status = rest(rank, may_sleep, rank->clock);
            }
        }
        return status;
    }
    for (int64_t left = rb_compute_units(rank->compute, duration_ns); left > 0 && status == XM_OK;
         --left) {
        rb_compute_unit(rank->compute);
        status = xm_worker_progress(rank->worker);
        if (status == XM_OK) {
            status = advance(rank, &may_sleep);
        }
    }
    rank->clock = xm_worker_now(rank->worker);
    return status;
}

/* The input's arrival may be earlier than the device is free, and then it costs nothing. */
static xm_status_t receive(rb_stage_rank_t *rank, rb_stage_channel_t *stage_channel)
{
    bool may_sleep;
    int64_t when;
    xm_status_t status = advance(rank, &may_sleep);

    while (status == XM_OK && !rb_stage_channel_has_arrived(stage_channel, &when)) {
        status = rest(rank, may_sleep, INT64_MAX);
        if (status == XM_OK) {
            status = advance(rank, &may_sleep);
        }
    }
    if (status == XM_OK) {
        rb_stage_channel_take(stage_channel);
        rank->clock = when > rank->clock ? when : rank->clock;
    }
    return status;
}

/* A send is handed over and costs the device nothing. */
static xm_status_t run_entry(rb_stage_rank_t *rank, int index)
{
    const ap_schedule_op_t *op = &rank->pipeline->schedule->ops[rank->stage][index];
    const ap_pipeline_span_t *planned = &rank->pipeline->predicted->spans[rank->stage][index];
    bool may_sleep;

    switch (op->pass) {
    case AP_PASS_SEND_ACTIVATION:
    case AP_PASS_SEND_GRADIENT:
        rb_stage_channel_offer(rank->stage_channels[op->pass - AP_PASS_SEND_ACTIVATION]);
        return advance(rank, &may_sleep);
    case AP_PASS_RECEIVE_ACTIVATION:
    case AP_PASS_RECEIVE_GRADIENT:
        return receive(rank, rank->stage_channels[op->pass - AP_PASS_SEND_ACTIVATION]);
    default:
        return compute(rank, planned->end_ns - planned->start_ns);
    }
}

/* Messages that this rank has taken are done; those that it sent have arrived. */
static bool is_done(const rb_stage_rank_t *rank)
{
    bool done = true;

    for (int i = 0; i < STAGE_CHANNELS; ++i) {
        done = done && (rank->stage_channels[i] == NULL ||
                        rb_stage_channel_is_done(rank->stage_channels[i]));
    }
    return done;
}

/* After the list, transfers of this rank's last messages are still to end. */
static xm_status_t go_through(rb_stage_rank_t *rank, rb_stage_run_t *result)
{
    const ap_schedule_op_t *ops = rank->pipeline->schedule->ops[rank->stage];
    xm_status_t status = XM_OK;
    bool may_sleep;

    for (int i = 0; i < rank->count && status == XM_OK; ++i) {
        int64_t begin = rank->clock - rank->start;

        status = run_entry(rank, i);
        rank->spans[i] = (ap_pipeline_span_t){begin, rank->clock - rank->start};
        if (status < 0) {
            return xm_error_prefix(status, "stage %d, %s of micro-batch %d", rank->stage,
                                   ap_pass_name(ops[i].pass), ops[i].micro_batch);
        }
        if (ops[i].pass == AP_PASS_UPDATE) {
            result->last_update_ns = rank->clock - rank->start;
            result->first_update_ns =
                result->first_update_ns > 0 ? result->first_update_ns : result->last_update_ns;
        }
    }
    result->ns = xm_worker_now(rank->worker) - rank->start;
    status = advance(rank, &may_sleep);
    while (status == XM_OK && !is_done(rank)) {
        status = rest(rank, may_sleep, INT64_MAX);
        if (status == XM_OK) {
            status = advance(rank, &may_sleep);
        }
    }
    return status;
}

/* Replaces the spans of sends by those of their transfers. */
static void take_transfers(rb_stage_rank_t *rank)
{
    const ap_schedule_op_t *ops = rank->pipeline->schedule->ops[rank->stage];
    int sent[STAGE_CHANNELS] = {0};

    for (int i = 0; i < rank->count; ++i) {
        int stage_channel = (int)ops[i].pass - AP_PASS_SEND_ACTIVATION;

        if (stage_channel == SEND_ACTIVATION || stage_channel == SEND_GRADIENT) {
            ap_pipeline_span_t span =
                rb_stage_channel_span(rank->stage_channels[stage_channel], sent[stage_channel]++);

            rank->spans[i] =
                (ap_pipeline_span_t){span.start_ns - rank->start, span.end_ns - rank->start};
        }
    }
}

xm_status_t rb_stage_rank_run(rb_stage_rank_t *rank, bool checked, int number,
                              rb_stage_run_t *result)
{
    double timeout = xm_worker_timeout(rank->worker);
    xm_status_t status;

    *result = (rb_stage_run_t){0};
    if (rank->stage < 0) {
        return XM_OK;
    }
    for (int i = 0; i < STAGE_CHANNELS; ++i) {
        if (rank->stage_channels[i] != NULL) {
            rb_stage_channel_begin(rank->stage_channels[i], checked, number);
        }
    }
    rank->start = rank->clock = xm_worker_now(rank->worker);
    /* The timeout comes on top of twice the predicted time, since waiting for a slow
     * pipeline is no failure. */
    rank->deadline =
        rank->start + (int64_t)(timeout * 1e9) + 2 * rank->pipeline->predicted->makespan_ns;
    status = go_through(rank, result);
    if (status < 0) {
        return status;
    }
    take_transfers(rank);
    for (int i = 0; i < STAGE_CHANNELS; ++i) {
        result->wrong +=
            rank->stage_channels[i] != NULL ? rb_stage_channel_wrong(rank->stage_channels[i]) : 0;
    }
    return XM_OK;
}

const ap_pipeline_span_t *rb_stage_rank_spans(const rb_stage_rank_t *rank, int *count)
{
    *count = rank->count;
    return rank->spans;
}

void rb_stage_rank_destroy(rb_stage_rank_t *rank)
{
    if (rank == NULL) {
        return;
    }
    for (int i = 0; i < STAGE_CHANNELS; ++i) {
        rb_stage_channel_destroy(rank->stage_channels[i]);
    }
    free(rank->spans);
    free(rank);
}
