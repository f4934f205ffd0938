#include "bench/pipeline/passage.h"

#include <stdlib.h>

#include "bench/run.h"
#include "bench/pipeline/muster.h"

/* AHEAD: receives that wait for their message at a time; the next one must be ready when one ends.
 * MUSTERS: the channel that no executor has. */
enum { AHEAD = 2, MUSTERS = 254 };

typedef struct {
    rb_tile_buffers_t buffers;
    xm_executor_t *executor;
    bool ended; /* this rank's part of the message has passed */
    bool there; /* that of all ranks of the stage */
    int64_t when;
} slot_t;

struct rb_passage {
    xm_worker_t *worker;
    const rb_way_t *way;
    int index;
    bool sends, checked;
    int run;
    int offered, posted, ended, there, taken; /* messages so far */
    uint64_t wrong;
    rb_muster_t *muster;
    ap_pipeline_span_t *spans;
    slot_t slots[RB_PASSAGE_SLOTS];
};

static xm_status_t create_slot(rb_passage_t *passage, int number)
{
    xm_executor_params_t params = XM_EXECUTOR_PARAMS_INIT;
    const rb_case_t tensor = {0};
    const rb_prepared_t prepared = {.one = &tensor, .plan = passage->way->plan};
    slot_t *slot = &passage->slots[number];
    xm_status_t status =
        rb_tile_buffers_create(&prepared, xm_worker_rank(passage->worker), true, &slot->buffers);

    if (status < 0) {
        return status;
    }
    rb_tile_buffers_fill(&slot->buffers, 0); /* memory comes with the first touch */
    params.plan = passage->way->plan;
    params.transport = xm_worker_transport(passage->worker);
    params.buffers = slot->buffers.tensors;
    params.turns = true;
    params.channel = passage->index * RB_PASSAGE_SLOTS + number;
    return xm_executor_create(&params, &slot->executor);
}

xm_status_t rb_passage_create(xm_worker_t *worker, const rb_pipeline_t *pipeline, int index,
                              rb_passage_t **result)
{
    rb_passage_t *passage = calloc(1, sizeof(*passage));
    int rank = xm_worker_rank(worker);
    xm_status_t status = XM_OK;
    rb_muster_params_t muster;
    bool first;

    if (passage == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a passage between stages");
    }
    passage->worker = worker;
    passage->way = &pipeline->ways[index];
    passage->index = index;
    passage->sends = rb_pipeline_stage_of(pipeline, rank, &first) == passage->way->from;
    passage->spans = calloc((size_t)passage->way->messages + 1, sizeof(*passage->spans));
    if (passage->spans == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "no memory for the times of %d messages",
                              passage->way->messages);
    }
    for (int i = 0; i < RB_PASSAGE_SLOTS && status == XM_OK; ++i) {
        status = create_slot(passage, i);
    }
    if (status == XM_OK) {
        muster = (rb_muster_params_t){.transport = xm_worker_transport(worker),
                                      .ranks = passage->way->dst->devices,
                                      .count = passage->way->dst->device_count,
                                      .listeners = passage->way->src->devices,
                                      .listener_count = passage->way->src->device_count,
                                      .slots = RB_PASSAGE_SLOTS,
                                      .channel = MUSTERS,
                                      .number = index};
        status = rb_muster_create(&muster, &passage->muster);
    }
    if (status < 0) {
        rb_passage_destroy(passage);
        return status;
    }
    *result = passage;
    return XM_OK;
}

void rb_passage_begin(rb_passage_t *passage, bool checked, int run)
{
    passage->checked = checked;
    passage->run = run;
    passage->offered = passage->posted = passage->ended = passage->there = passage->taken = 0;
    passage->wrong = 0;
}

void rb_passage_offer(rb_passage_t *passage)
{
    ++passage->offered;
}

static slot_t *slot_of(rb_passage_t *passage, int message)
{
    return &passage->slots[message % RB_PASSAGE_SLOTS];
}

static uint64_t salt_of(const rb_passage_t *passage, int message)
{
    return rb_pattern_salt(passage->run, passage->index, message);
}

static bool may_post(const rb_passage_t *passage)
{
    if (!rb_muster_is_idle(passage->muster, passage->posted % RB_PASSAGE_SLOTS)) {
        return false;
    }
    if (passage->sends) {
        return passage->posted < passage->offered && passage->posted == passage->there;
    }
    return passage->posted < passage->way->messages && passage->posted - passage->ended < AHEAD &&
           passage->posted - passage->taken < RB_PASSAGE_SLOTS;
}

static xm_status_t post(rb_passage_t *passage)
{
    int message = passage->posted;
    slot_t *slot = slot_of(passage, message);
    xm_status_t status;

    slot->ended = slot->there = false;
    if (passage->checked) {
        rb_tile_buffers_fill(&slot->buffers, salt_of(passage, message));
    }
    status = rb_muster_expect(passage->muster, message % RB_PASSAGE_SLOTS, message);
    if (status == XM_OK) {
        status = xm_executor_post(slot->executor);
    }
    if (status == XM_OK) {
        passage->spans[message].start_ns = xm_worker_now(passage->worker);
        ++passage->posted;
    }
    return status;
}

/* Advances what has been posted and has not ended. */
static xm_status_t advance_posted(rb_passage_t *passage)
{
    for (int m = passage->ended; m < passage->posted; ++m) {
        slot_t *slot = slot_of(passage, m);
        xm_status_t status;

        if (slot->ended) {
            continue;
        }
        status = xm_executor_advance(slot->executor);
        if (status == XM_IN_PROGRESS) {
            continue;
        }
        if (status < 0) {
            /* This finds out who is to blame. */
            return xm_executor_wait(passage->worker, slot->executor, INT64_MAX,
                                    xm_worker_deadline(passage->worker));
        }
        slot->ended = true;
        if (!passage->sends) {
            status = rb_muster_arrive(passage->muster, m % RB_PASSAGE_SLOTS);
            if (status < 0) {
                return status;
            }
        }
    }
    while (passage->ended < passage->posted && slot_of(passage, passage->ended)->ended) {
        ++passage->ended;
    }
    return XM_OK;
}

/* Which messages are there for the whole stage that they go to. */
static xm_status_t look_for_others(rb_passage_t *passage)
{
    for (int m = passage->there; m < passage->posted; ++m) {
        slot_t *slot = slot_of(passage, m);
        xm_status_t status = slot->ended && !slot->there
                                 ? rb_muster_state(passage->muster, m % RB_PASSAGE_SLOTS)
                                 : XM_IN_PROGRESS;

        if (status < 0) {
            return status;
        }
        if (status == XM_OK) {
            slot->there = true;
            slot->when = xm_worker_now(passage->worker);
            passage->spans[m].end_ns = slot->when;
        }
    }
    while (passage->there < passage->posted && slot_of(passage, passage->there)->there) {
        ++passage->there;
    }
    return XM_OK;
}

xm_status_t rb_passage_advance(rb_passage_t *passage)
{
    xm_status_t status;

    do {
        while (may_post(passage)) {
            status = post(passage);
            if (status < 0) {
                return status;
            }
        }
        status = advance_posted(passage);
        if (status == XM_OK) {
            status = look_for_others(passage);
        }
    } while (status == XM_OK && may_post(passage));
    return status;
}

bool rb_passage_may_sleep(const rb_passage_t *passage)
{
    bool may = true;

    for (int m = passage->ended; m < passage->posted; ++m) {
        const slot_t *slot = &passage->slots[m % RB_PASSAGE_SLOTS];

        may = may && (slot->ended || xm_executor_may_sleep(slot->executor));
    }
    return may;
}

bool rb_passage_has_arrived(const rb_passage_t *passage, int64_t *when)
{
    *when = passage->slots[passage->taken % RB_PASSAGE_SLOTS].when;
    return passage->there > passage->taken;
}

void rb_passage_take(rb_passage_t *passage)
{
    int message = passage->taken++;

    if (passage->checked) {
        passage->wrong +=
            rb_tile_buffers_check(&slot_of(passage, message)->buffers, salt_of(passage, message));
    }
}

bool rb_passage_is_done(const rb_passage_t *passage)
{
    bool idle = true;

    for (int i = 0; i < RB_PASSAGE_SLOTS; ++i) {
        idle = idle && rb_muster_is_idle(passage->muster, i);
    }
    return idle && passage->there == passage->way->messages;
}

ap_pipeline_span_t rb_passage_span(const rb_passage_t *passage, int message)
{
    return passage->spans[message];
}

uint64_t rb_passage_wrong(const rb_passage_t *passage)
{
    return passage->wrong;
}

void rb_passage_destroy(rb_passage_t *passage)
{
    if (passage == NULL) {
        return;
    }
    for (int i = 0; i < RB_PASSAGE_SLOTS; ++i) {
        xm_executor_destroy(passage->slots[i].executor);
    }
    rb_muster_destroy(passage->muster);
    for (int i = 0; i < RB_PASSAGE_SLOTS; ++i) {
        rb_tile_buffers_clear(&passage->slots[i].buffers);
    }
    free(passage->spans);
    free(passage);
}
