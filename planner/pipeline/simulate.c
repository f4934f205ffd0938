/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the lists of a schedule on given times, event by event. Devices and channels are the only
 * actors; each has at most one thing to do next, so the queue of events has one entry per actor.
 * Among events of one time, devices come before channels and low numbers before high ones, which
 * fixes the order and with it the result.
 *
 * A device runs on until its clock is ahead of the time or it must wait, and is woken by the end of
 * its pass or by a message. The cost is a few queue operations per entry.
 */

#include "planner/pipeline/simulate.h"

#include <inttypes.h>
#include <stdlib.h>

#include "planner/pipeline/wake_queue.h"

/* A message from a stage to the next (activation) or the one before (gradient). */
typedef struct message {
    int64_t time;             /* that it takes alone */
    int64_t start, end;       /* on the channel; end -1: not there yet */
    ap_pipeline_span_t *span; /* of the send; NULL: not sent */
    struct message *next;     /* in its channel */
} message_t;

/* Messages from a device to another, one at a time in the order in which they are sent. */
typedef struct channel {
    message_t *first, *last; /* the one on the way, and what waits behind it */
} channel_t;

/* Everything happens in the order of time. Whoever has something to do next is in `queue`: devices,
 * when their pass ends, and after them channels, when their message does. */
typedef struct simulation {
    const ap_schedule_t *schedule;
    const ap_pipeline_times_t *times;
    ap_pipeline_run_t *run;
    ap_wake_queue_t queue;
    ap_pipeline_share_t *share;
    message_t *messages; /* [direction][sending stage][micro-batch][slice] */
    channel_t *channels; /* [2 * devices] */
    int64_t *passed;     /* [forward, backward][stage][micro-batch][slice]: end, -1: not run */
    int64_t *clock;      /* [device]: until when it is busy, or since when it waits */
    int64_t *batch_end;  /* [batch] */
    int *next;           /* [device] */
    int *in_flight;
    int64_t now;
} simulation_t;

enum { ACTIVATION, GRADIENT };

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int parts_of_stage(const ap_schedule_t *schedule)
{
    return schedule->micro_batches * schedule->batches * schedule->slices;
}

/* Index by direction, stage, micro-batch, slice. */
static size_t part_of(const ap_schedule_t *schedule, int direction, int stage,
                      const ap_schedule_op_t *op)
{
    return ((size_t)direction * (size_t)schedule->stages + (size_t)stage) *
               (size_t)parts_of_stage(schedule) +
           (size_t)op->micro_batch * (size_t)schedule->slices + (size_t)op->slice;
}

/* The end of what the pass builds on in its own stage or, on one device, the neighbour; -1 when
 * that has not run. Messages from other devices are not asked for here: their receives stand before
 * the pass in the list. */
static int64_t local_input(const simulation_t *simulation, const ap_schedule_op_t *op)
{
    const ap_schedule_t *schedule = simulation->schedule;
    const int *device_of = schedule->device_of + (size_t)op->pipeline * (size_t)schedule->stages;
    int direction = op->pass == AP_PASS_FORWARD ? ACTIVATION : GRADIENT;
    int other = op->stage + (direction == ACTIVATION ? -1 : 1);
    int64_t own = 0, neighbour = 0;

    if (op->pass == AP_PASS_BACKWARD) {
        own = simulation->passed[part_of(schedule, ACTIVATION, op->stage, op)];
    }
    if (other >= 0 && other < schedule->stages && device_of[other] == device_of[op->stage]) {
        neighbour = simulation->passed[part_of(schedule, direction, other, op)];
    }
    return own < 0 || neighbour < 0 ? -1 : later(own, neighbour);
}

static int64_t pass_time(const simulation_t *simulation, const ap_schedule_op_t *op)
{
    const ap_pipeline_times_t *times = simulation->times;
    int part = op->stage * simulation->schedule->slices + op->slice;

    switch (op->pass) {
    case AP_PASS_FORWARD:
        return times->forward[part];
    case AP_PASS_BACKWARD:
        return times->backward[part] + (simulation->schedule->split ? 0 : times->weight[part]);
    case AP_PASS_WEIGHT:
        return times->weight[part];
    default:
        return times->update != NULL ? times->update[op->stage] : 0;
    }
}

/* Runs a pass; false while it has to wait for another device. */
static bool run_pass(simulation_t *simulation, int device, const ap_schedule_op_t *op,
                     ap_pipeline_span_t *span)
{
    const ap_schedule_t *schedule = simulation->schedule;
    ap_pipeline_device_t *of = &simulation->run->device[device];
    int64_t input = 0;

    if (op->pass == AP_PASS_FORWARD || op->pass == AP_PASS_BACKWARD) {
        input = local_input(simulation, op);
    } else if (op->pass == AP_PASS_WEIGHT) {
        input = simulation->passed[part_of(schedule, GRADIENT, op->stage, op)];
    }
    if (input < 0) {
        return false;
    }
    span->start_ns = later(simulation->clock[device], input);
    span->end_ns = span->start_ns + pass_time(simulation, op);
    simulation->clock[device] = span->end_ns;
    of->busy_ns += span->end_ns - span->start_ns;
    of->first_ns = of->first_ns < 0 ? span->start_ns : of->first_ns;
    if (op->pass == AP_PASS_FORWARD) {
        simulation->passed[part_of(schedule, ACTIVATION, op->stage, op)] = span->end_ns;
        if (++simulation->in_flight[device] > of->peak_in_flight) {
            of->peak_in_flight = simulation->in_flight[device];
        }
    } else if (op->pass == AP_PASS_BACKWARD) {
        simulation->passed[part_of(schedule, GRADIENT, op->stage, op)] = span->end_ns;
        --simulation->in_flight[device];
    } else if (op->pass == AP_PASS_UPDATE) {
        int64_t *end = &simulation->batch_end[op->micro_batch];

        *end = later(*end, span->end_ns);
    }
    return true;
}

static void wake_channel(void *arg, int channel, int64_t end)
{
    simulation_t *simulation = arg;

    ap_wake_queue_set(&simulation->queue, simulation->schedule->devices + channel, end);
}

/* The first message of a channel leaves. */
static void start_message(simulation_t *simulation, int channel)
{
    message_t *message = simulation->channels[channel].first;

    message->start = simulation->now;
    ap_pipeline_share_begin(simulation->share, channel, simulation->now, message->time,
                            wake_channel, simulation);
}

static void hand_over(simulation_t *simulation, int device, const ap_schedule_op_t *op,
                      message_t *message)
{
    const ap_schedule_t *schedule = simulation->schedule;
    int step = op->pass == AP_PASS_SEND_ACTIVATION ? 1 : -1;
    const int64_t *times = step > 0 ? simulation->times->activation : simulation->times->gradient;
    int boundary = step > 0 ? op->stage : op->stage - 1, channel;
    int to = schedule->device_of[op->pipeline * schedule->stages + op->stage + step];

    message->time = times != NULL ? times[boundary * schedule->slices + op->slice] : 0;
    channel = ap_pipeline_channel(schedule->devices, device, to);
    if (simulation->channels[channel].first != NULL) {
        simulation->channels[channel].last->next = message;
        simulation->channels[channel].last = message;
        return;
    }
    simulation->channels[channel] = (channel_t){message, message};
    start_message(simulation, channel);
}

/* Sends; false while the message keeps its device busy, which is only when transfers block. */
static bool run_send(simulation_t *simulation, int device, const ap_schedule_op_t *op,
                     ap_pipeline_span_t *span)
{
    int direction = op->pass == AP_PASS_SEND_ACTIVATION ? ACTIVATION : GRADIENT;
    message_t *message =
        &simulation->messages[part_of(simulation->schedule, direction, op->stage, op)];

    if (message->span == NULL) {
        message->span = span;
        hand_over(simulation, device, op, message);
    }
    if (!simulation->times->blocking) {
        return true;
    }
    if (message->end < 0) {
        return false;
    }
    simulation->run->device[device].transfer_ns += message->end - message->start;
    simulation->clock[device] = message->end;
    return true;
}

static bool run_receive(simulation_t *simulation, int device, const ap_schedule_op_t *op,
                        ap_pipeline_span_t *span)
{
    int direction = op->pass == AP_PASS_RECEIVE_ACTIVATION ? ACTIVATION : GRADIENT;
    int from = op->stage + (direction == ACTIVATION ? -1 : 1);
    const message_t *message =
        &simulation->messages[part_of(simulation->schedule, direction, from, op)];
    int64_t *clock = &simulation->clock[device];
    /* Of a message that has not left, the difference means nothing, and is not used. */
    int64_t time = message->end - message->start;

    if (message->end < 0) {
        return false;
    }
    span->start_ns = *clock;
    if (simulation->times->blocking) {
        span->start_ns = later(*clock, message->start);
        simulation->run->device[device].transfer_ns += time;
        *clock = span->start_ns + time;
    } else {
        *clock = later(*clock, message->end);
    }
    span->end_ns = *clock;
    return true;
}

static bool run_entry(simulation_t *simulation, int device, const ap_schedule_op_t *op,
                      ap_pipeline_span_t *span)
{
    switch (op->pass) {
    case AP_PASS_SEND_ACTIVATION:
    case AP_PASS_SEND_GRADIENT:
        return run_send(simulation, device, op, span);
    case AP_PASS_RECEIVE_ACTIVATION:
    case AP_PASS_RECEIVE_GRADIENT:
        return run_receive(simulation, device, op, span);
    default:
        return run_pass(simulation, device, op, span);
    }
}

/* The device goes on until it is busy or has to wait; it does nothing if it is busy now. */
static void advance(simulation_t *simulation, int device)
{
    const ap_schedule_t *schedule = simulation->schedule;
    int *next = &simulation->next[device];

    while (simulation->clock[device] <= simulation->now && *next < schedule->op_count[device] &&
           run_entry(simulation, device, &schedule->ops[device][*next],
                     &simulation->run->spans[device][*next])) {
        ++*next;
    }
    if (simulation->clock[device] > simulation->now) {
        ap_wake_queue_set(&simulation->queue, device, simulation->clock[device]);
    }
}

/* A message is there; the next one may leave. The receiver may wait for it, and so may a blocked
 * sender. */
static void end_message(simulation_t *simulation, int index)
{
    channel_t *channel = &simulation->channels[index];
    message_t *message = channel->first;
    int devices = simulation->schedule->devices, from = index / 2;

    message->end = simulation->now;
    *message->span = (ap_pipeline_span_t){message->start, message->end};
    ap_pipeline_share_end(simulation->share, index, simulation->now, wake_channel, simulation);
    channel->first = message->next;
    if (channel->first != NULL) {
        start_message(simulation, index);
    }
    if (simulation->times->blocking) {
        advance(simulation, from);
    }
    advance(simulation, index % 2 == 1 ? (from + 1) % devices : (from + devices - 1) % devices);
}

/* When nobody wakes any more, a list that has not ended never will. */
static xm_status_t run_all(simulation_t *simulation)
{
    const ap_schedule_t *schedule = simulation->schedule;
    int who;

    for (int device = 0; device < schedule->devices; ++device) {
        advance(simulation, device);
    }
    while (ap_wake_queue_take(&simulation->queue, &who, &simulation->now)) {
        if (who < schedule->devices) {
            advance(simulation, who);
        } else {
            end_message(simulation, who - schedule->devices);
        }
    }
    for (int device = 0; device < schedule->devices; ++device) {
        int next = simulation->next[device];

        if (next < schedule->op_count[device]) {
            const ap_schedule_op_t *op = &schedule->ops[device][next];

            return xm_error_set(XM_ERR_CORRUPT,
                                "device %d waits for ever at entry %d (%s of micro-batch %d on "
                                "stage %d)",
                                device, next, ap_pass_name(op->pass), op->micro_batch, op->stage);
        }
    }
    return XM_OK;
}

static void sum_up(const simulation_t *simulation)
{
    const ap_schedule_t *schedule = simulation->schedule;
    ap_pipeline_run_t *run = simulation->run;
    double busy = 0.0;

    for (int device = 0; device < run->devices; ++device) {
        ap_pipeline_device_t *of = &run->device[device];

        of->last_ns = simulation->clock[device];
        of->first_ns = later(of->first_ns, 0);
        run->makespan_ns = later(run->makespan_ns, of->last_ns);
        busy += (double)of->busy_ns;
        for (int i = 0; i < schedule->op_count[device]; ++i) {
            of->peak_bytes = later(of->peak_bytes, schedule->ops[device][i].held);
        }
    }
    if (run->makespan_ns > 0) {
        /* Idle time counts from the start of the step to the end of the last device, filling and
         * draining included. */
        run->bubble = 1.0 - busy / ((double)run->makespan_ns * run->devices);
    }
    run->step_ns = run->makespan_ns;
    if (schedule->batches > 1) {
        run->step_ns = (simulation->batch_end[schedule->batches - 1] - simulation->batch_end[0]) /
                       (schedule->batches - 1);
    }
}

static xm_status_t check_times(const char *what, const int64_t *times, int count, double *total)
{
    for (int i = 0; times != NULL && i < count; ++i) {
        if (times[i] < 0) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "%s time %d is %" PRId64 " ns", what, i,
                                times[i]);
        }
        *total += (double)times[i];
    }
    return XM_OK;
}

static xm_status_t check_all_times(const ap_schedule_t *schedule, const ap_pipeline_times_t *times)
{
    int parts = schedule->stages * schedule->slices;
    const struct {
        const char *what;
        const int64_t *times;
        int count;
    } rows[] = {{"forward", times->forward, parts},
                {"backward", times->backward, parts},
                {"weight", times->weight, parts},
                {"activation", times->activation, parts - schedule->slices},
                {"gradient", times->gradient, parts - schedule->slices},
                {"update", times->update, schedule->stages}};
    double total = 0.0;

    if (times->forward == NULL || times->backward == NULL || times->weight == NULL) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "times of forward, backward and weight passes are needed");
    }
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        xm_status_t status = check_times(rows[i].what, rows[i].times, rows[i].count, &total);

        if (status != XM_OK) {
            return status;
        }
    }
    /* Twice the total is more than any clock can reach, even if nothing overlaps; so no sum of
     * times overflows. */
    if (total * schedule->micro_batches * schedule->batches * 2.0 > (double)INT64_MAX / 4) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "the passes of %d micro-batches take %g ns: too long",
                            schedule->micro_batches * schedule->batches, total);
    }
    return XM_OK;
}

/* The channel from a device to another. Stages follow each other round a ring of devices, so two
 * channels leave a device: to the next one and to the one before. Two devices are each other's
 * next. */
int ap_pipeline_channel(int devices, int from, int to)
{
    return 2 * from + (to == (from + 1) % devices ? 1 : 0);
}

static bool allocate(simulation_t *simulation)
{
    const ap_schedule_t *schedule = simulation->schedule;
    size_t devices = (size_t)schedule->devices;
    size_t parts = 2 * (size_t)schedule->stages * (size_t)parts_of_stage(schedule);
    ap_pipeline_run_t *run = calloc(1, sizeof(*run));
    bool all;

    simulation->run = run;
    if (run == NULL) {
        return false;
    }
    run->device = calloc(devices, sizeof(*run->device));
    run->spans = calloc(devices, sizeof(*run->spans));
    simulation->messages = calloc(parts, sizeof(*simulation->messages));
    simulation->channels = calloc(2 * devices, sizeof(*simulation->channels));
    simulation->passed = malloc(parts * sizeof(int64_t));
    simulation->clock = calloc(devices, sizeof(int64_t));
    simulation->batch_end = calloc((size_t)schedule->batches, sizeof(int64_t));
    simulation->next = calloc(devices, sizeof(int));
    simulation->in_flight = calloc(devices, sizeof(int));
    all = run->device != NULL && run->spans != NULL && simulation->messages != NULL &&
          simulation->channels != NULL && simulation->passed != NULL && simulation->clock != NULL &&
          simulation->batch_end != NULL && simulation->next != NULL &&
          simulation->in_flight != NULL;
    run->devices = all ? schedule->devices : 0;
    for (int device = 0; all && device < schedule->devices; ++device) {
        run->spans[device] =
            calloc((size_t)schedule->op_count[device] + 1, sizeof(*run->spans[device]));
        run->device[device].first_ns = -1;
        all = run->spans[device] != NULL;
    }
    for (size_t i = 0; all && i < parts; ++i) {
        simulation->messages[i].end = -1;
        simulation->passed[i] = -1;
    }
    return all;
}

xm_status_t ap_pipeline_simulate(const ap_schedule_t *schedule, const ap_pipeline_times_t *times,
                                 ap_pipeline_run_t **run)
{
    simulation_t simulation = {.schedule = schedule, .times = times};
    xm_status_t status = check_all_times(schedule, times);

    if (status != XM_OK) {
        return status;
    }
    status = ap_wake_queue_init(&simulation.queue, 3 * schedule->devices);
    if (status == XM_OK) {
        status = ap_pipeline_share_create(2 * schedule->devices, times->uses, times->use_count,
                                          &simulation.share);
    }
    if (status == XM_OK && !allocate(&simulation)) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "out of memory to simulate a schedule");
    }
    if (status == XM_OK) {
        status = run_all(&simulation);
    }
    if (status == XM_OK) {
        sum_up(&simulation);
        *run = simulation.run;
    } else {
        ap_pipeline_run_destroy(simulation.run);
    }
    free(simulation.in_flight);
    free(simulation.next);
    free(simulation.batch_end);
    free(simulation.clock);
    free(simulation.passed);
    free(simulation.channels);
    free(simulation.messages);
    ap_pipeline_share_destroy(simulation.share);
    ap_wake_queue_clear(&simulation.queue);
    return status;
}

void ap_pipeline_run_destroy(ap_pipeline_run_t *run)
{
    if (run == NULL) {
        return;
    }
    for (int device = 0; run->spans != NULL && device < run->devices; ++device) {
        free(run->spans[device]);
    }
    free(run->spans);
    free(run->device);
    free(run);
}
