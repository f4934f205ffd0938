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

/* What a channel is for, as the entries are numbered that use it, from AP_PASS_SEND_ACTIVATION
 * on. */
enum { SEND_ACTIVATION, RECEIVE_ACTIVATION, SEND_GRADIENT, RECEIVE_GRADIENT };

/* A way that this rank's stage is at one end of. */
typedef struct end {
    rb_stage_channel_t *channel;
    int use;
    int sent; /* messages whose transfers have been looked at */
} end_t;

struct rb_stage_rank {
    xm_worker_t *worker;
    const rb_pipeline_t *pipeline;
    rb_compute_t *compute;
    int stage;
    end_t *ends;
    int end_count;
    ap_pipeline_span_t *spans;
    int count;
    int64_t start;    /* of the run */
    int64_t clock;    /* when the device is free */
    int64_t deadline; /* of the run */
};

/* Makes a channel of every way that begins or ends at the rank's stage. */
static xm_status_t make_ends(rb_stage_rank_t *rank)
{
    const rb_pipeline_t *pipeline = rank->pipeline;
    xm_status_t status = XM_OK;

    rank->ends = calloc((size_t)pipeline->way_count + 1, sizeof(*rank->ends));
    XM_NEED_MEMORY(rank->ends, "%d channels", pipeline->way_count);
    for (int w = 0; w < pipeline->way_count && status == XM_OK; ++w) {
        const rb_way_t *way = &pipeline->ways[w];
        end_t *end = &rank->ends[rank->end_count];

        if (way->from == rank->stage || way->to == rank->stage) {
            end->use = (way->from > way->to ? SEND_GRADIENT : SEND_ACTIVATION) +
                       (way->to == rank->stage ? 1 : 0);
            status = rb_stage_channel_create(rank->worker, pipeline, w, &end->channel);
            rank->end_count += status == XM_OK;
        }
    }
    return status;
}

/* A rank of no stage has nothing, and its run ends at once. */
xm_status_t rb_stage_rank_create(xm_worker_t *worker, const rb_pipeline_t *pipeline,
                                 rb_compute_t *compute, rb_stage_rank_t **result)
{
    rb_stage_rank_t *rank = calloc(1, sizeof(*rank));
    xm_status_t status = XM_OK;
    bool first;

    XM_NEED_MEMORY(rank, "a rank of a pipeline");
    rank->worker = worker;
    rank->pipeline = pipeline;
    rank->compute = compute;
    rank->stage = rb_pipeline_stage_of(pipeline, xm_worker_rank(worker), &first);
    if (pipeline->way_count > RB_STAGE_CHANNEL_WAYS) {
        status = XM_UNSUPPORTED("%d stages with %d reshardings are too many to run: at most %d",
                                ap_plan_stages(pipeline->plan), pipeline->way_count / 2,
                                RB_STAGE_CHANNEL_WAYS / 2);
    }
    if (status == XM_OK && rank->stage >= 0) {
        rank->count = pipeline->schedule->op_count[rank->stage];
        rank->spans = calloc((size_t)rank->count + 1, sizeof(*rank->spans));
        if (rank->spans == NULL) {
            status = XM_NO_MEMORY("the times of %d passes", rank->count);
        }
    }
    if (status == XM_OK && rank->stage >= 0) {
        status = make_ends(rank);
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
    for (int i = 0; i < rank->end_count && status == XM_OK; ++i) {
        status = rb_stage_channel_advance(rank->ends[i].channel);
        *may_sleep = *may_sleep && rb_stage_channel_may_sleep(rank->ends[i].channel);
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
            XM_THEN(status, rest(rank, may_sleep, rank->clock));
        }
        return status;
    }
    for (int64_t left = rb_compute_units(rank->compute, duration_ns); left > 0 && status == XM_OK;
         --left) {
        rb_compute_unit(rank->compute);
        status = xm_worker_progress(rank->worker);
        XM_THEN(status, advance(rank, &may_sleep));
    }
    rank->clock = xm_worker_now(rank->worker);
    return status;
}

/* The input's arrival may be earlier than the device is free, and then it costs nothing. */
static xm_status_t receive(rb_stage_rank_t *rank, rb_stage_channel_t *stage_channel)
{
    bool may_sleep;
    int64_t when;
    XM_TRY(advance(rank, &may_sleep));

    while (!rb_stage_channel_has_arrived(stage_channel, &when)) {
        XM_TRY(rest(rank, may_sleep, INT64_MAX));
        XM_TRY(advance(rank, &may_sleep));
    }
    rb_stage_channel_take(stage_channel);
    rank->clock = when > rank->clock ? when : rank->clock;
    return XM_OK;
}

/* A send is handed over and costs the device nothing. What passes over stages goes and comes with
 * what the neighbours get and give. */
static xm_status_t run_transfers(rb_stage_rank_t *rank, int use)
{
    bool sends = use == SEND_ACTIVATION || use == SEND_GRADIENT, may_sleep;

    for (int i = 0; i < rank->end_count; ++i) {
        if (rank->ends[i].use != use) {
            continue;
        }
        if (sends) {
            rb_stage_channel_offer(rank->ends[i].channel);
        } else {
            XM_TRY(receive(rank, rank->ends[i].channel));
        }
    }
    return sends ? advance(rank, &may_sleep) : XM_OK;
}

static xm_status_t run_entry(rb_stage_rank_t *rank, int index)
{
    const ap_schedule_op_t *op = &rank->pipeline->schedule->ops[rank->stage][index];
    const ap_pipeline_span_t *planned = &rank->pipeline->predicted->spans[rank->stage][index];

    return op->pass >= AP_PASS_SEND_ACTIVATION
               ? run_transfers(rank, (int)op->pass - AP_PASS_SEND_ACTIVATION)
               : compute(rank, planned->end_ns - planned->start_ns);
}

/* Messages that this rank has taken are done; those that it sent have arrived. */
static bool is_done(const rb_stage_rank_t *rank)
{
    bool done = true;

    for (int i = 0; i < rank->end_count; ++i) {
        done = done && rb_stage_channel_is_done(rank->ends[i].channel);
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
    XM_TRY(advance(rank, &may_sleep));
    while (!is_done(rank)) {
        XM_TRY(rest(rank, may_sleep, INT64_MAX));
        XM_TRY(advance(rank, &may_sleep));
    }
    return XM_OK;
}

/* The span of what an entry sends: from the first transfer's start to the end of the last. */
static ap_pipeline_span_t transfer_of(rb_stage_rank_t *rank, int use)
{
    ap_pipeline_span_t all = {INT64_MAX, 0};

    for (int i = 0; i < rank->end_count; ++i) {
        end_t *end = &rank->ends[i];

        if (end->use == use) {
            ap_pipeline_span_t span = rb_stage_channel_span(end->channel, end->sent++);

            all.start_ns = span.start_ns < all.start_ns ? span.start_ns : all.start_ns;
            all.end_ns = span.end_ns > all.end_ns ? span.end_ns : all.end_ns;
        }
    }
    return (ap_pipeline_span_t){all.start_ns - rank->start, all.end_ns - rank->start};
}

/* Replaces the spans of sends by those of their transfers. */
static void take_transfers(rb_stage_rank_t *rank)
{
    const ap_schedule_op_t *ops = rank->pipeline->schedule->ops[rank->stage];

    for (int i = 0; i < rank->end_count; ++i) {
        rank->ends[i].sent = 0;
    }
    for (int i = 0; i < rank->count; ++i) {
        if (ops[i].pass == AP_PASS_SEND_ACTIVATION || ops[i].pass == AP_PASS_SEND_GRADIENT) {
            rank->spans[i] = transfer_of(rank, (int)ops[i].pass - AP_PASS_SEND_ACTIVATION);
        }
    }
}

xm_status_t rb_stage_rank_run(rb_stage_rank_t *rank, bool checked, int number,
                              rb_stage_run_t *result)
{
    double timeout = xm_worker_timeout(rank->worker);

    *result = (rb_stage_run_t){0};
    if (rank->stage < 0) {
        return XM_OK;
    }
    for (int i = 0; i < rank->end_count; ++i) {
        rb_stage_channel_begin(rank->ends[i].channel, checked, number);
    }
    rank->start = rank->clock = xm_worker_now(rank->worker);
    /* The timeout comes on top of twice the predicted time, since waiting for a slow
     * pipeline is no failure. */
    rank->deadline =
        rank->start + (int64_t)(timeout * 1e9) + 2 * rank->pipeline->predicted->makespan_ns;
    XM_TRY(go_through(rank, result));
    take_transfers(rank);
    for (int i = 0; i < rank->end_count; ++i) {
        result->wrong += rb_stage_channel_wrong(rank->ends[i].channel);
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
    for (int i = 0; i < rank->end_count; ++i) {
        rb_stage_channel_destroy(rank->ends[i].channel);
    }
    free(rank->ends);
    free(rank->spans);
    free(rank);
}
