/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proves a schedule safe without knowing how it was made. Ten makers of schedules share some code,
 * and a mistake there would be in all plans; so the checker shares none of it and reads nothing but
 * the lists.
 *
 * Two passes. First the contents: every pass of every part exactly once, on its device, with its
 * transfers. Then the order: the lists are run by readiness alone, without times. An entry that is
 * ready stays ready, so running whatever is ready reaches the same end in any order, and a device
 * that is stuck then is stuck under any timing.
 */

#include "planner/pipeline/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { OP_TEXT = 96 };

typedef struct checker {
    const ap_schedule_t *schedule;
    const int64_t *limits;
    int micro_batches; /* of all batches */
    uint8_t *seen;     /* [stage][micro-batch][slice]: a bit for each pass */
    uint8_t *done;     /* the same, of the passes that have run */
    uint8_t *updated;  /* [pipeline][stage][batch] */
    int *updates;      /* [pipeline][stage]: how many have run */
    int *gradients;    /* [pipeline][stage][batch]: gradients that are still to come */
    int *pipeline_of;  /* [micro-batch], -1: not met yet */
    int *next;         /* [device]: entry to run */
    int64_t *held;     /* [device] */
    int *queue;        /* devices to look at */
    bool *queued;
    int queue_count;
    xm_arena_t arena;
} checker_t;

static char *op_text(const ap_schedule_op_t *op, char *text)
{
    if (op->pass == AP_PASS_UPDATE) {
        (void)snprintf(text, OP_TEXT, "update %d of stage %d", op->micro_batch, op->stage);
    } else {
        (void)snprintf(text, OP_TEXT, "%s of micro-batch %d, slice %d on stage %d",
                       ap_pass_name(op->pass), op->micro_batch, op->slice, op->stage);
    }
    return text;
}

static xm_status_t refuse(const ap_schedule_op_t *op, int device, int entry, const char *why)
{
    char text[OP_TEXT];

    return xm_error_set(XM_ERR_CORRUPT, "device %d, entry %d (%s): %s", device, entry,
                        op_text(op, text), why);
}

static size_t part_of(const checker_t *checker, int stage, int micro_batch, int slice)
{
    return ((size_t)stage * (size_t)checker->micro_batches + (size_t)micro_batch) *
               (size_t)checker->schedule->slices +
           (size_t)slice;
}

static int line_of(const checker_t *checker, const ap_schedule_op_t *op)
{
    return op->pipeline * checker->schedule->stages + op->stage;
}

static uint8_t bit(ap_pass_t pass)
{
    return (uint8_t)(1U << (unsigned)pass);
}

/* Whether this stage and its neighbour are on different devices. */
static bool crosses(const ap_schedule_t *schedule, int pipeline, int stage, int other)
{
    const int *device_of = schedule->device_of + (size_t)pipeline * (size_t)schedule->stages;

    return other >= 0 && other < schedule->stages && device_of[stage] != device_of[other];
}

static xm_status_t check_range(const checker_t *checker, const ap_schedule_op_t *op, int device,
                               int entry)
{
    const ap_schedule_t *schedule = checker->schedule;
    int most = op->pass == AP_PASS_UPDATE ? schedule->batches : checker->micro_batches;

    if ((int)op->pass < 0 || (int)op->pass >= AP_PASSES || op->pipeline < 0 ||
        op->pipeline >= schedule->pipelines || op->stage < 0 || op->stage >= schedule->stages ||
        op->micro_batch < 0 || op->micro_batch >= most || op->slice < 0 ||
        op->slice >= schedule->slices) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "device %d, entry %d: pass %d of pipeline %d, stage %d, micro-batch "
                            "%d, slice %d is outside the schedule",
                            device, entry, (int)op->pass, op->pipeline, op->stage, op->micro_batch,
                            op->slice);
    }
    if (schedule->device_of[line_of(checker, op)] != device) {
        return refuse(op, device, entry, "the stage is on another device");
    }
    return XM_OK;
}

/* Notes an entry in what was seen. */
static xm_status_t note(checker_t *checker, const ap_schedule_op_t *op, int device, int entry)
{
    uint8_t *seen;

    if (op->pass == AP_PASS_UPDATE) {
        seen =
            &checker->updated[line_of(checker, op) * checker->schedule->batches + op->micro_batch];
        return (*seen)++ == 0 ? XM_OK : refuse(op, device, entry, "it is there twice");
    }
    if (checker->pipeline_of[op->micro_batch] < 0) {
        checker->pipeline_of[op->micro_batch] = op->pipeline;
    }
    if (checker->pipeline_of[op->micro_batch] != op->pipeline) {
        return refuse(op, device, entry, "the micro-batch changes its pipeline");
    }
    seen = &checker->seen[part_of(checker, op->stage, op->micro_batch, op->slice)];
    if ((*seen & bit(op->pass)) != 0) {
        return refuse(op, device, entry, "it is there twice");
    }
    *seen |= bit(op->pass);
    return XM_OK;
}

/* The passes that a part must have on a stage, as bits: transfers only where the neighbour is on
 * another device. */
static unsigned expected_passes(const ap_schedule_t *schedule, int pipeline, int stage)
{
    unsigned passes = bit(AP_PASS_FORWARD) | bit(AP_PASS_BACKWARD);

    if (schedule->split) {
        passes |= bit(AP_PASS_WEIGHT);
    }
    if (crosses(schedule, pipeline, stage, stage - 1)) {
        passes |= bit(AP_PASS_RECEIVE_ACTIVATION) | bit(AP_PASS_SEND_GRADIENT);
    }
    if (crosses(schedule, pipeline, stage, stage + 1)) {
        passes |= bit(AP_PASS_SEND_ACTIVATION) | bit(AP_PASS_RECEIVE_GRADIENT);
    }
    return passes;
}

static xm_status_t check_part(const checker_t *checker, int stage, int micro_batch, int slice)
{
    const ap_schedule_t *schedule = checker->schedule;
    int pipeline = checker->pipeline_of[micro_batch];
    unsigned seen = checker->seen[part_of(checker, stage, micro_batch, slice)], wrong;
    int pass = 0;

    if (pipeline < 0) {
        return xm_error_set(XM_ERR_CORRUPT, "micro-batch %d is nowhere", micro_batch);
    }
    wrong = seen ^ expected_passes(schedule, pipeline, stage);
    if (wrong == 0) {
        return XM_OK;
    }
    while ((wrong >> pass & 1U) == 0) {
        ++pass;
    }
    return xm_error_set(XM_ERR_CORRUPT, "micro-batch %d, slice %d, stage %d: its %s is %s",
                        micro_batch, slice, stage, ap_pass_name((ap_pass_t)pass),
                        (seen >> pass & 1U) != 0 ? "not needed" : "missing");
}

/* Everything exactly once, where it belongs. The first pass that is missing or too many is
 * named. */
static xm_status_t check_contents(checker_t *checker)
{
    const ap_schedule_t *schedule = checker->schedule;

    for (int device = 0; device < schedule->devices; ++device) {
        for (int i = 0; i < schedule->op_count[device]; ++i) {
            const ap_schedule_op_t *op = &schedule->ops[device][i];

            XM_TRY(check_range(checker, op, device, i));
            XM_TRY(note(checker, op, device, i));
        }
    }
    for (int stage = 0; stage < schedule->stages; ++stage) {
        for (int k = 0; k < checker->micro_batches; ++k) {
            for (int slice = 0; slice < schedule->slices; ++slice) {
                XM_TRY(check_part(checker, stage, k, slice));
            }
        }
    }
    for (int i = 0; i < schedule->pipelines * schedule->stages * schedule->batches; ++i) {
        if (checker->updated[i] == 0) {
            return xm_error_set(XM_ERR_CORRUPT, "stage %d: update %d is missing",
                                i / schedule->batches % schedule->stages, i % schedule->batches);
        }
    }
    return XM_OK;
}

static bool is_done(const checker_t *checker, ap_pass_t pass, int stage, int micro_batch, int slice)
{
    return (checker->done[part_of(checker, stage, micro_batch, slice)] & bit(pass)) != 0;
}

/* Whether a pass has what the neighbour on @p other gives it: a message, or on one device the
 * neighbour's own pass. */
static bool has_input(const checker_t *checker, const ap_schedule_op_t *op, int other)
{
    ap_pass_t receive =
        op->pass == AP_PASS_FORWARD ? AP_PASS_RECEIVE_ACTIVATION : AP_PASS_RECEIVE_GRADIENT;

    if (other < 0 || other >= checker->schedule->stages) {
        return true;
    }
    return crosses(checker->schedule, op->pipeline, op->stage, other)
               ? is_done(checker, receive, op->stage, op->micro_batch, op->slice)
               : is_done(checker, op->pass, other, op->micro_batch, op->slice);
}

/* Whether an entry could run now, going by what has run. Slices of a micro-batch follow each other
 * forwards, and backwards in reverse. */
static bool is_ready(const checker_t *checker, const ap_schedule_op_t *op)
{
    int stage = op->stage, k = op->micro_batch, slice = op->slice;
    int batches = checker->schedule->batches;

    switch (op->pass) {
    case AP_PASS_FORWARD:
        return has_input(checker, op, stage - 1) &&
               (slice == 0 || is_done(checker, AP_PASS_FORWARD, stage, k, slice - 1));
    case AP_PASS_BACKWARD:
        return is_done(checker, AP_PASS_FORWARD, stage, k, slice) &&
               has_input(checker, op, stage + 1) &&
               (slice == checker->schedule->slices - 1 ||
                is_done(checker, AP_PASS_BACKWARD, stage, k, slice + 1));
    case AP_PASS_WEIGHT:
    case AP_PASS_SEND_GRADIENT:
        return is_done(checker, AP_PASS_BACKWARD, stage, k, slice);
    case AP_PASS_SEND_ACTIVATION:
        return is_done(checker, AP_PASS_FORWARD, stage, k, slice);
    case AP_PASS_RECEIVE_ACTIVATION:
        return is_done(checker, AP_PASS_SEND_ACTIVATION, stage - 1, k, slice);
    case AP_PASS_RECEIVE_GRADIENT:
        return is_done(checker, AP_PASS_SEND_GRADIENT, stage + 1, k, slice);
    default:
        return checker->gradients[line_of(checker, op) * batches + k] == 0 &&
               checker->updates[line_of(checker, op)] == k;
    }
}

/* Versions that are there at once: of pipedream one for each micro-batch between its two passes. */
static int kept(const ap_schedule_t *schedule, int stage)
{
    return schedule->kind == AP_SCHEDULE_PIPEDREAM ? schedule->devices - stage : schedule->versions;
}

/* The version that all micro-batches of a batch must use: the newest that the schedule's delay
 * allows. An update of batch b is made on version b. */
static int version_expected(const ap_schedule_t *schedule, const ap_schedule_op_t *op)
{
    bool update = op->pass == AP_PASS_UPDATE;
    int batch = update ? op->micro_batch : op->micro_batch / schedule->micro_batches;
    int delay = update ? 0 : kept(schedule, op->stage) - 1;

    return batch > delay ? batch - delay : 0;
}

/* Parameters of the version that a pass names must exist and still be kept. */
static xm_status_t check_version(const checker_t *checker, const ap_schedule_op_t *op, int device,
                                 int entry)
{
    const ap_schedule_t *schedule = checker->schedule;
    int updates = checker->updates[line_of(checker, op)];

    if (op->version < 0 || op->version > updates) {
        return refuse(op, device, entry, "its version of the parameters is not there yet");
    }
    if (op->version <= updates - kept(schedule, op->stage)) {
        return refuse(op, device, entry, "its version of the parameters is not kept any more");
    }
    /* Where each update overwrites the parameters, the two rules above say all there is to say. */
    if (schedule->kind != AP_SCHEDULE_PIPEMARE && op->version != version_expected(schedule, op)) {
        return refuse(op, device, entry, "its batch uses another version of the parameters");
    }
    return XM_OK;
}

/* The bytes held are computed again from the sizes of the passes and compared with what the list
 * says, before the limit is looked at. */
static xm_status_t check_memory(checker_t *checker, const ap_schedule_op_t *op, int device,
                                int entry)
{
    const ap_schedule_t *schedule = checker->schedule;
    size_t part = (size_t)op->stage * (size_t)schedule->slices + (size_t)op->slice;
    int64_t *held = &checker->held[device];

    if (op->pass == AP_PASS_FORWARD) {
        *held += schedule->activation_bytes[part];
    }
    if (op->held != *held) {
        return refuse(op, device, entry, "the bytes held are not what the passes before it leave");
    }
    if (checker->limits != NULL && *held > checker->limits[device]) {
        char text[OP_TEXT];

        return XM_NO_SOLUTION("device %d, entry %d (%s): %" PRId64
                              " bytes of activations exceed the limit of %" PRId64,
                              device, entry, op_text(op, text), *held, checker->limits[device]);
    }
    if (op->pass == AP_PASS_BACKWARD) {
        *held -= schedule->activation_bytes[part];
        *held += schedule->split ? schedule->weight_bytes[part] : 0;
    } else if (op->pass == AP_PASS_WEIGHT) {
        *held -= schedule->weight_bytes[part];
    }
    return XM_OK;
}

static void look_at(checker_t *checker, int device)
{
    if (!checker->queued[device]) {
        checker->queued[device] = true;
        checker->queue[checker->queue_count++] = device;
    }
}

/* Only a message can make another device ready, so only its receiver is looked at again. */
static void finish(checker_t *checker, const ap_schedule_op_t *op)
{
    const ap_schedule_t *schedule = checker->schedule;
    const int *device_of = schedule->device_of + (size_t)op->pipeline * (size_t)schedule->stages;
    ap_pass_t gradient = schedule->split ? AP_PASS_WEIGHT : AP_PASS_BACKWARD;

    if (op->pass == AP_PASS_UPDATE) {
        ++checker->updates[line_of(checker, op)];
        return;
    }
    checker->done[part_of(checker, op->stage, op->micro_batch, op->slice)] |= bit(op->pass);
    if (op->pass == gradient) {
        --checker->gradients[line_of(checker, op) * schedule->batches +
                             op->micro_batch / schedule->micro_batches];
    }
    if (op->pass == AP_PASS_SEND_ACTIVATION) {
        look_at(checker, device_of[op->stage + 1]);
    } else if (op->pass == AP_PASS_SEND_GRADIENT) {
        look_at(checker, device_of[op->stage - 1]);
    }
}

static xm_status_t advance(checker_t *checker, int device)
{
    const ap_schedule_t *schedule = checker->schedule;
    xm_status_t status = XM_OK;
    int *next = &checker->next[device];

    while (status == XM_OK && *next < schedule->op_count[device] &&
           is_ready(checker, &schedule->ops[device][*next])) {
        const ap_schedule_op_t *op = &schedule->ops[device][*next];

        status = check_version(checker, op, device, *next);
        XM_THEN(status, check_memory(checker, op, device, *next));
        finish(checker, op);
        ++*next;
    }
    return status;
}

/* Runs the lists; whoever cannot go on when nobody can is stuck. A device is queued at most once at
 * a time, and each visit but the last of a message runs an entry, so the loop ends. */
static xm_status_t check_order(checker_t *checker)
{
    const ap_schedule_t *schedule = checker->schedule;
    xm_status_t status = XM_OK;

    for (int k = 0; k < checker->micro_batches; ++k) {
        for (int stage = 0; stage < schedule->stages; ++stage) {
            int line = checker->pipeline_of[k] * schedule->stages + stage;

            checker->gradients[line * schedule->batches + k / schedule->micro_batches] +=
                schedule->slices;
        }
    }
    for (int device = 0; device < schedule->devices; ++device) {
        look_at(checker, device);
    }
    while (status == XM_OK && checker->queue_count > 0) {
        int device = checker->queue[--checker->queue_count];

        checker->queued[device] = false;
        status = advance(checker, device);
    }
    for (int device = 0; device < schedule->devices && status == XM_OK; ++device) {
        int next = checker->next[device];

        if (next < schedule->op_count[device]) {
            status = refuse(&schedule->ops[device][next], device, next,
                            "what it waits for never happens");
        }
    }
    return status;
}

static bool allocate(checker_t *checker)
{
    const ap_schedule_t *schedule = checker->schedule;
    size_t devices = (size_t)schedule->devices;
    size_t lines = (size_t)schedule->pipelines * (size_t)schedule->stages;
    size_t batches = (size_t)schedule->batches, micro_batches = (size_t)checker->micro_batches;
    size_t parts = (size_t)schedule->stages * micro_batches * (size_t)schedule->slices;

    checker->seen = xm_arena_get(&checker->arena, parts, 1);
    checker->done = xm_arena_get(&checker->arena, parts, 1);
    checker->updated = xm_arena_get(&checker->arena, lines * batches, 1);
    checker->updates = xm_arena_get(&checker->arena, lines, sizeof(int));
    checker->gradients = xm_arena_get(&checker->arena, lines * batches, sizeof(int));
    checker->pipeline_of = xm_arena_get(&checker->arena, micro_batches, sizeof(int));
    checker->next = xm_arena_get(&checker->arena, devices, sizeof(int));
    checker->held = xm_arena_get(&checker->arena, devices, sizeof(int64_t));
    checker->queue = xm_arena_get(&checker->arena, devices, sizeof(int));
    checker->queued = xm_arena_get(&checker->arena, devices, sizeof(bool));
    for (size_t k = 0; !checker->arena.failed && k < micro_batches; ++k) {
        checker->pipeline_of[k] = -1;
    }
    return !checker->arena.failed;
}

xm_status_t ap_schedule_check(const ap_schedule_t *schedule, const int64_t *limits)
{
    checker_t checker = {.schedule = schedule,
                         .limits = limits,
                         .micro_batches = schedule->micro_batches * schedule->batches};
    xm_status_t status;

    if (allocate(&checker)) {
        status = check_contents(&checker);
    } else {
        status = XM_NO_MEMORY("checking a schedule");
    }
    XM_THEN(status, check_order(&checker));
    xm_arena_clear(&checker.arena);
    return status;
}
