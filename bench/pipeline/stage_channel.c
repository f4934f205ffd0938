/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stage channel: one direction between two stages, seen by one rank. Each message is
 * a resharding of its own in one of a few slots with executor and buffers, so several can
 * be under way while the rank computes. The stage barrier decides when a message is there
 * for the whole stage, on both sides alike.
 */
#include "bench/pipeline/stage_channel.h"

#include <stdlib.h>

#include "bench/run.h"
#include "bench/pipeline/stage_barrier.h"

/*
 * AHEAD is how many receives wait for their message at a time; the next one must be ready
 * when one ends. STAGE BARRIERS is the channel that no executor has and that stage barriers
 * share.
 */
enum { AHEAD = 2, STAGE_BARRIERS = 254 };

typedef struct {
    rb_tile_buffers_t buffers;
    xm_executor_t *executor;
    bool ended; /* this rank's part of the message has passed */
    bool there; /* that of all ranks of the stage */
    int64_t when;
} slot_t;

struct rb_stage_channel {
    xm_worker_t *worker;
    const rb_way_t *way;
    int index;
    bool sends, checked;
    int run;
    int offered, posted, ended, there, taken; /* messages so far */
    uint64_t wrong;
    rb_stage_barrier_t *stage_barrier;
    ap_pipeline_span_t *spans;
    slot_t slots[RB_STAGE_CHANNEL_SLOTS];
};

/* Each slot has a channel of its own, so messages in different slots cannot be confused. */
static xm_status_t create_slot(rb_stage_channel_t *stage_channel, int number)
{
    xm_executor_params_t params = {0};
    const rb_case_t tensor = {0};
    const rb_prepared_t prepared = {.one = &tensor, .plan = stage_channel->way->plan};
    slot_t *slot = &stage_channel->slots[number];

    XM_TRY(rb_tile_buffers_create(&prepared, xm_worker_rank(stage_channel->worker), true,
                                  &slot->buffers));
    rb_tile_buffers_fill(&slot->buffers, 0); /* memory comes with the first touch */
    params.plan = stage_channel->way->plan;
    params.transport = xm_worker_transport(stage_channel->worker);
    params.buffers = slot->buffers.tensors;
    params.turns = true;
    params.channel = stage_channel->index * RB_STAGE_CHANNEL_SLOTS + number;
    return xm_executor_create(&params, &slot->executor);
}

/* A failure destroys what has been made so far; all of it accepts being incomplete. */
xm_status_t rb_stage_channel_create(xm_worker_t *worker, const rb_pipeline_t *pipeline, int index,
                                    rb_stage_channel_t **result)
{
    rb_stage_channel_t *stage_channel = calloc(1, sizeof(*stage_channel));
    int rank = xm_worker_rank(worker);
    xm_status_t status = XM_OK;
    rb_stage_barrier_params_t stage_barrier;
    bool first;

    XM_NEED_MEMORY(stage_channel, "a stage channel between stages");
    stage_channel->worker = worker;
    stage_channel->way = &pipeline->ways[index];
    stage_channel->index = index;
    stage_channel->sends = rb_pipeline_stage_of(pipeline, rank, &first) == stage_channel->way->from;
    stage_channel->spans =
        calloc((size_t)stage_channel->way->messages + 1, sizeof(*stage_channel->spans));
    if (stage_channel->spans == NULL) {
        status = XM_NO_MEMORY("the times of %d messages", stage_channel->way->messages);
    }
    for (int i = 0; i < RB_STAGE_CHANNEL_SLOTS && status == XM_OK; ++i) {
        status = create_slot(stage_channel, i);
    }
    if (status == XM_OK) {
        stage_barrier =
            (rb_stage_barrier_params_t){.transport = xm_worker_transport(worker),
                                        .ranks = stage_channel->way->dst->devices,
                                        .count = stage_channel->way->dst->device_count,
                                        .listeners = stage_channel->way->src->devices,
                                        .listener_count = stage_channel->way->src->device_count,
                                        .slots = RB_STAGE_CHANNEL_SLOTS,
                                        .channel = STAGE_BARRIERS,
                                        .number = index};
        status = rb_stage_barrier_create(&stage_barrier, &stage_channel->stage_barrier);
    }
    if (status < 0) {
        rb_stage_channel_destroy(stage_channel);
        return status;
    }
    *result = stage_channel;
    return XM_OK;
}

/* A run begins with empty slots: the one before has ended on all ranks. */
void rb_stage_channel_begin(rb_stage_channel_t *stage_channel, bool checked, int run)
{
    stage_channel->checked = checked;
    stage_channel->run = run;
    stage_channel->offered = stage_channel->posted = stage_channel->ended = stage_channel->there =
        stage_channel->taken = 0;
    stage_channel->wrong = 0;
}

void rb_stage_channel_offer(rb_stage_channel_t *stage_channel)
{
    ++stage_channel->offered;
}

static slot_t *slot_of(rb_stage_channel_t *stage_channel, int message)
{
    return &stage_channel->slots[message % RB_STAGE_CHANNEL_SLOTS];
}

/* The bytes depend on run, channel and message, so one that is late or doubled is found. */
static uint64_t salt_of(const rb_stage_channel_t *stage_channel, int message)
{
    return rb_pattern_salt(stage_channel->run, stage_channel->index, message);
}

/* A sender posts a message when it is offered and the one before has arrived; a receiver
 * posts ahead, as long as a slot is free. In either case the slot's notes must have gone. */
static bool may_post(const rb_stage_channel_t *stage_channel)
{
    if (!rb_stage_barrier_is_idle(stage_channel->stage_barrier,
                                  stage_channel->posted % RB_STAGE_CHANNEL_SLOTS)) {
        return false;
    }
    if (stage_channel->sends) {
        return stage_channel->posted < stage_channel->offered &&
               stage_channel->posted == stage_channel->there;
    }
    return stage_channel->posted < stage_channel->way->messages &&
           stage_channel->posted - stage_channel->ended < AHEAD &&
           stage_channel->posted - stage_channel->taken < RB_STAGE_CHANNEL_SLOTS;
}

/* The barrier's receives are posted before the message, so that no note comes early. */
static xm_status_t post(rb_stage_channel_t *stage_channel)
{
    int message = stage_channel->posted;
    slot_t *slot = slot_of(stage_channel, message);

    slot->ended = slot->there = false;
    if (stage_channel->checked) {
        rb_tile_buffers_fill(&slot->buffers, salt_of(stage_channel, message));
    }
    XM_TRY(rb_stage_barrier_expect(stage_channel->stage_barrier, message % RB_STAGE_CHANNEL_SLOTS,
                                   message));
    XM_TRY(xm_executor_post(slot->executor));
    stage_channel->spans[message].start_ns = xm_worker_now(stage_channel->worker);
    ++stage_channel->posted;
    return XM_OK;
}

/* Advances what has been posted and has not ended. Messages may end out of order; `ended`
 * counts those without a gap. */
static xm_status_t advance_posted(rb_stage_channel_t *stage_channel)
{
    for (int m = stage_channel->ended; m < stage_channel->posted; ++m) {
        slot_t *slot = slot_of(stage_channel, m);
        xm_status_t status;

        if (slot->ended) {
            continue;
        }
        status = xm_executor_advance(slot->executor);
        if (status == XM_IN_PROGRESS) {
            continue;
        }
        if (status < 0) {
            /* This wait finds out who is to blame. */
            return xm_executor_wait(stage_channel->worker, slot->executor, INT64_MAX,
                                    xm_worker_deadline(stage_channel->worker));
        }
        slot->ended = true;
        if (!stage_channel->sends) {
            XM_TRY(
                rb_stage_barrier_arrive(stage_channel->stage_barrier, m % RB_STAGE_CHANNEL_SLOTS));
        }
    }
    while (stage_channel->ended < stage_channel->posted &&
           slot_of(stage_channel, stage_channel->ended)->ended) {
        ++stage_channel->ended;
    }
    return XM_OK;
}

/* Finds the messages that are there for the whole stage that they go to, and when that
 * was. */
static xm_status_t look_for_others(rb_stage_channel_t *stage_channel)
{
    for (int m = stage_channel->there; m < stage_channel->posted; ++m) {
        slot_t *slot = slot_of(stage_channel, m);
        xm_status_t status =
            slot->ended && !slot->there
                ? rb_stage_barrier_state(stage_channel->stage_barrier, m % RB_STAGE_CHANNEL_SLOTS)
                : XM_IN_PROGRESS;

        if (status < 0) {
            return status;
        }
        if (status == XM_OK) {
            slot->there = true;
            slot->when = xm_worker_now(stage_channel->worker);
            stage_channel->spans[m].end_ns = slot->when;
        }
    }
    while (stage_channel->there < stage_channel->posted &&
           slot_of(stage_channel, stage_channel->there)->there) {
        ++stage_channel->there;
    }
    return XM_OK;
}

/* Posting and advancing make each other possible, so they alternate until neither does
 * anything. */
xm_status_t rb_stage_channel_advance(rb_stage_channel_t *stage_channel)
{
    xm_status_t status;

    do {
        while (may_post(stage_channel)) {
            status = post(stage_channel);
            if (status < 0) {
                return status;
            }
        }
        status = advance_posted(stage_channel);
        XM_THEN(status, look_for_others(stage_channel));
    } while (status == XM_OK && may_post(stage_channel));
    return status;
}

/* An executor with work left must be advanced again without sleeping. */
bool rb_stage_channel_may_sleep(const rb_stage_channel_t *stage_channel)
{
    bool may = true;

    for (int m = stage_channel->ended; m < stage_channel->posted; ++m) {
        const slot_t *slot = &stage_channel->slots[m % RB_STAGE_CHANNEL_SLOTS];

        may = may && (slot->ended || xm_executor_may_sleep(slot->executor));
    }
    return may;
}

bool rb_stage_channel_has_arrived(const rb_stage_channel_t *stage_channel, int64_t *when)
{
    *when = stage_channel->slots[stage_channel->taken % RB_STAGE_CHANNEL_SLOTS].when;
    return stage_channel->there > stage_channel->taken;
}

void rb_stage_channel_take(rb_stage_channel_t *stage_channel)
{
    int message = stage_channel->taken++;

    if (stage_channel->checked) {
        stage_channel->wrong += rb_tile_buffers_check(&slot_of(stage_channel, message)->buffers,
                                                      salt_of(stage_channel, message));
    }
}

/* The notes must have gone too, or the next run would meet them. */
bool rb_stage_channel_is_done(const rb_stage_channel_t *stage_channel)
{
    bool idle = true;

    for (int i = 0; i < RB_STAGE_CHANNEL_SLOTS; ++i) {
        idle = idle && rb_stage_barrier_is_idle(stage_channel->stage_barrier, i);
    }
    return idle && stage_channel->there == stage_channel->way->messages;
}

ap_pipeline_span_t rb_stage_channel_span(const rb_stage_channel_t *stage_channel, int message)
{
    return stage_channel->spans[message];
}

uint64_t rb_stage_channel_wrong(const rb_stage_channel_t *stage_channel)
{
    return stage_channel->wrong;
}

/* Executors before barriers before buffers: each uses what is destroyed after it. */
void rb_stage_channel_destroy(rb_stage_channel_t *stage_channel)
{
    if (stage_channel == NULL) {
        return;
    }
    for (int i = 0; i < RB_STAGE_CHANNEL_SLOTS; ++i) {
        xm_executor_destroy(stage_channel->slots[i].executor);
    }
    rb_stage_barrier_destroy(stage_channel->stage_barrier);
    for (int i = 0; i < RB_STAGE_CHANNEL_SLOTS; ++i) {
        rb_tile_buffers_clear(&stage_channel->slots[i].buffers);
    }
    free(stage_channel->spans);
    free(stage_channel);
}
