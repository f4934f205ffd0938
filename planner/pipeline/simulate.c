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

#include <stdlib.h>
#include <string.h>

#include "planner/pipeline/times.h"
#include "planner/pipeline/wake_queue.h"

/* A message from a stage to the next (activation) or the one before (gradient), or over stages. */
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
    message_t *messages; /* [direction][sending stage][micro-batch][slice]; then of skips,
                            [skip][direction][micro-batch] */
    channel_t *channels; /* [2 * devices], then two for each skip */
    int64_t *passed;     /* [forward, backward][stage][micro-batch][slice]: end, -1: not run */
    int64_t *clock;      /* [device]: until when it is busy, or since when it waits */
    int64_t *first_end;  /* [device]: of the first batch's update */
    int *next;           /* [device] */
    int **order;         /* [device][next]: entries in the order in which they run */
    int *in_flight;
    int *moving;                  /* [device]: messages on the way from or to it */
    ap_pipeline_span_t **running; /* [device]: of its pass, NULL: none that may be slowed down */
    int64_t **ending;             /* [device]: where else that pass' end is noted */
    int64_t now;
    xm_arena_t arena;
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

/* Of several steps it is the mean distance of their last updates on the device that takes longest:
 * how far devices are apart is no part of it. Filling and draining are none either, which with
 * twice the micro-batches under way take a step more at both ends. */
static void note_update(simulation_t *simulation, int device, int batch, int64_t end)
{
    const ap_schedule_t *schedule = simulation->schedule;
    int more = schedule->kind == AP_SCHEDULE_PIPEMARE && schedule->batches > 3 ? 1 : 0;
    int first = schedule->updates - 1 + more, last = schedule->batches - 1 - more;

    if (batch == first) {
        simulation->first_end[device] = end;
    }
    if (batch == last && last > first) {
        simulation->run->step_ns =
            later(simulation->run->step_ns,
                  (end - simulation->first_end[device]) * schedule->updates / (last - first));
    }
}

static double pace(const simulation_t *simulation, int device)
{
    return simulation->moving[device] > 0 && !simulation->times->blocking
               ? 1.0 + simulation->times->slowdown
               : 1.0;
}

/* A message begins or ends at a device, whose pass goes on at another pace. */
static void count_message(simulation_t *simulation, int device, int change)
{
    double before = pace(simulation, device), after;
    int64_t *clock = &simulation->clock[device], more;

    simulation->moving[device] += change;
    after = pace(simulation, device);
    if (before == after || simulation->running[device] == NULL || *clock <= simulation->now) {
        return;
    }
    more = (int64_t)((double)(*clock - simulation->now) * (after / before - 1.0));
    *clock += more;
    simulation->running[device]->end_ns += more;
    *simulation->ending[device] += more;
    simulation->run->device[device].busy_ns += more;
    ap_wake_queue_set(&simulation->queue, device, *clock);
}

static void note_end(simulation_t *simulation, int device, int direction,
                     const ap_schedule_op_t *op, ap_pipeline_span_t *span)
{
    int64_t *end = &simulation->passed[part_of(simulation->schedule, direction, op->stage, op)];

    *end = span->end_ns;
    simulation->running[device] = span;
    simulation->ending[device] = end;
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
    span->end_ns =
        span->start_ns + (int64_t)((double)ap_pipeline_pass_time(schedule, simulation->times, op) *
                                   pace(simulation, device));
    simulation->running[device] = NULL;
    simulation->clock[device] = span->end_ns;
    of->busy_ns += span->end_ns - span->start_ns;
    of->first_ns = of->first_ns < 0 ? span->start_ns : of->first_ns;
    if (op->pass == AP_PASS_FORWARD) {
        note_end(simulation, device, ACTIVATION, op, span);
        if (++simulation->in_flight[device] > of->peak_in_flight) {
            of->peak_in_flight = simulation->in_flight[device];
        }
    } else if (op->pass == AP_PASS_BACKWARD) {
        note_end(simulation, device, GRADIENT, op, span);
        --simulation->in_flight[device];
    } else if (op->pass == AP_PASS_UPDATE) {
        note_update(simulation, device, op->micro_batch, span->end_ns);
    }
    return true;
}

static void wake_channel(void *arg, int channel, int64_t end)
{
    simulation_t *simulation = arg;

    ap_wake_queue_set(&simulation->queue, simulation->schedule->devices + channel, end);
}

/* Message @p number of those that an entry sends or receives: 0 is that to or from the neighbour,
 * then come those over stages that end where the entry does. NULL: there are no more. */
static message_t *message_of(const simulation_t *simulation, const ap_schedule_op_t *op, int number,
                             int *skip)
{
    const ap_schedule_t *schedule = simulation->schedule;
    const ap_pipeline_times_t *times = simulation->times;
    bool sends = op->pass == AP_PASS_SEND_ACTIVATION || op->pass == AP_PASS_SEND_GRADIENT;
    int direction = op->pass == AP_PASS_SEND_ACTIVATION || op->pass == AP_PASS_RECEIVE_ACTIVATION
                        ? ACTIVATION
                        : GRADIENT;
    size_t parts = (size_t)parts_of_stage(schedule);

    *skip = -1;
    if (number == 0) {
        int from = sends ? op->stage : op->stage + (direction == ACTIVATION ? -1 : 1);

        return &simulation->messages[part_of(schedule, direction, from, op)];
    }
    while (++*skip < times->skip_count) {
        const ap_pipeline_skip_t *at = &times->skips[*skip];

        if ((sends == (direction == ACTIVATION) ? at->from : at->to) == op->stage &&
            --number == 0) {
            return &simulation->messages[(2 * ((size_t)schedule->stages + (size_t)*skip) +
                                          (size_t)direction) *
                                             parts +
                                         (size_t)op->micro_batch];
        }
    }
    return NULL;
}

/* The devices at the ends of a channel. */
static void ends_of(const simulation_t *simulation, int channel, int *from, int *to)
{
    int devices = simulation->schedule->devices, skip = channel / 2 - devices;

    if (skip >= 0) {
        const ap_pipeline_skip_t *at = &simulation->times->skips[skip];

        *from = channel % 2 == 0 ? at->from : at->to;
        *to = channel % 2 == 0 ? at->to : at->from;
        return;
    }
    *from = channel / 2;
    *to = channel % 2 == 1 ? (*from + 1) % devices : (*from + devices - 1) % devices;
}

/* The first message of a channel leaves. */
static void start_message(simulation_t *simulation, int channel)
{
    message_t *message = simulation->channels[channel].first;
    int from, to;

    ends_of(simulation, channel, &from, &to);
    count_message(simulation, from, 1);
    count_message(simulation, to, 1);
    message->start = simulation->now;
    ap_pipeline_share_begin(simulation->share, channel, simulation->now, message->time,
                            wake_channel, simulation);
}

/* Queues a message in its channel: the neighbour's, or that of a skip. */
static void hand_over(simulation_t *simulation, int device, const ap_schedule_op_t *op, int skip,
                      message_t *message)
{
    const ap_schedule_t *schedule = simulation->schedule;
    int step = op->pass == AP_PASS_SEND_ACTIVATION ? 1 : -1, channel;

    if (skip >= 0) {
        const ap_pipeline_skip_t *at = &simulation->times->skips[skip];

        message->time = step > 0 ? at->activation : at->gradient;
        channel = ap_pipeline_skip_channel(schedule->devices, skip, step < 0);
    } else {
        const int64_t *times =
            step > 0 ? simulation->times->activation : simulation->times->gradient;
        int boundary = step > 0 ? op->stage : op->stage - 1;
        int to = schedule->device_of[op->pipeline * schedule->stages + op->stage + step];

        message->time = times != NULL ? times[boundary * schedule->slices + op->slice] : 0;
        channel = ap_pipeline_channel(schedule->devices, device, to);
    }
    message->time = ap_pipeline_jittered(simulation->times, op, message->time);
    if (simulation->channels[channel].first != NULL) {
        simulation->channels[channel].last->next = message;
        simulation->channels[channel].last = message;
        return;
    }
    simulation->channels[channel] = (channel_t){message, message};
    start_message(simulation, channel);
}

/* Sends. False while a message keeps its device busy until it is there, which is only when
 * transfers block; else each keeps it busy for the time of handing it over. */
static bool run_send(simulation_t *simulation, int device, const ap_schedule_op_t *op,
                     ap_pipeline_span_t *span)
{
    int64_t start = INT64_MAX, end = 0;
    message_t *message;
    int skip;

    for (int i = 0; (message = message_of(simulation, op, i, &skip)) != NULL; ++i) {
        if (message->span == NULL) {
            message->span = span;
            hand_over(simulation, device, op, skip, message);
        }
        if (simulation->times->blocking) {
            if (message->end < 0) {
                return false;
            }
            start = message->start < start ? message->start : start;
            end = later(end, message->end);
        } else {
            start = start < INT64_MAX ? start : later(simulation->clock[device], simulation->now);
            end = later(end, start) + simulation->times->send;
        }
    }
    simulation->run->device[device].transfer_ns += end - start;
    simulation->clock[device] = end;
    return true;
}

/* Receives; false while any of the messages is not there. */
static bool run_receive(simulation_t *simulation, int device, const ap_schedule_op_t *op,
                        ap_pipeline_span_t *span)
{
    int64_t *clock = &simulation->clock[device], start = 0, end = 0, time = 0;
    const message_t *message;
    int skip;

    for (int i = 0; (message = message_of(simulation, op, i, &skip)) != NULL; ++i) {
        if (message->end < 0) {
            return false;
        }
        start = i == 0 || message->start < start ? message->start : start;
        end = later(end, message->end);
        time = end - start;
    }
    span->start_ns = *clock;
    if (simulation->times->blocking) {
        span->start_ns = later(*clock, start);
        simulation->run->device[device].transfer_ns += time;
        *clock = span->start_ns + time;
    } else {
        *clock = later(*clock, end);
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

static bool run_next(simulation_t *simulation, int device)
{
    int entry = simulation->order[device][simulation->next[device]];

    return run_entry(simulation, device, &simulation->schedule->ops[device][entry],
                     &simulation->run->spans[device][entry]);
}

/* varuna: a device that waits for a gradient has its next forward pass before it, with its
 * transfers, if the input is there and room for one more micro-batch. */
static bool seize_forward(simulation_t *simulation, int device)
{
    const ap_schedule_t *schedule = simulation->schedule;
    const ap_schedule_op_t *ops = schedule->ops[device];
    int *order = simulation->order[device], at = simulation->next[device], from = at, count = 0;
    int most = 2 * (schedule->devices - device), moved[3], skip;

    if (!ap_schedule_traits(schedule->kind)->beyond_list ||
        ops[order[at]].pass != AP_PASS_RECEIVE_GRADIENT || simulation->in_flight[device] >= most) {
        return false;
    }
    while (from < schedule->op_count[device] && ops[order[from]].pass != AP_PASS_FORWARD) {
        ++from;
    }
    if (from == schedule->op_count[device]) {
        return false;
    }
    if (device > 0) {
        const message_t *message = message_of(simulation, &ops[order[--from]], 0, &skip);

        if (message->end < 0) {
            return false;
        }
    }
    /* It gives to the next device, for it would not wait for a gradient otherwise. */
    count = device > 0 ? 3 : 2;
    memcpy(moved, order + from, (size_t)count * sizeof(*order));
    memmove(order + at + count, order + at, (size_t)(from - at) * sizeof(*order));
    memcpy(order + at, moved, (size_t)count * sizeof(*order));
    return true;
}

/* The device goes on until it is busy or has to wait; it does nothing if it is busy now. */
static void advance(simulation_t *simulation, int device)
{
    const ap_schedule_t *schedule = simulation->schedule;
    int *next = &simulation->next[device];

    while (simulation->clock[device] <= simulation->now && *next < schedule->op_count[device] &&
           (run_next(simulation, device) ||
            (seize_forward(simulation, device) && run_next(simulation, device)))) {
        ++*next;
    }
    if (simulation->clock[device] > simulation->now) {
        ap_wake_queue_set(&simulation->queue, device, simulation->clock[device]);
    }
}

/* A message is there; the next one may leave. The receiver may wait for it, and so may a blocked
 * sender. The span of several messages that left together is from the first to the last. */
static void end_message(simulation_t *simulation, int index)
{
    channel_t *channel = &simulation->channels[index];
    message_t *message = channel->first;
    ap_pipeline_span_t *span = message->span;
    int from, to;

    ends_of(simulation, index, &from, &to);
    count_message(simulation, from, -1);
    count_message(simulation, to, -1);
    message->end = simulation->now;
    span->start_ns =
        span->end_ns == 0 || message->start < span->start_ns ? message->start : span->start_ns;
    span->end_ns = message->end;
    ap_pipeline_share_end(simulation->share, index, simulation->now, wake_channel, simulation);
    channel->first = message->next;
    if (channel->first != NULL) {
        start_message(simulation, index);
    }
    if (simulation->times->blocking) {
        advance(simulation, from);
    }
    advance(simulation, to);
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
            const ap_schedule_op_t *op = &schedule->ops[device][simulation->order[device][next]];

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
        if (ap_schedule_traits(schedule->kind)->beyond_list) { /* which did not follow its list */
            of->peak_bytes = of->peak_in_flight * schedule->activation_bytes[device];
        }
    }
    if (run->makespan_ns > 0) {
        /* Idle time counts from the start of the step to the end of the last device, filling and
         * draining included. */
        run->bubble = 1.0 - busy / ((double)run->makespan_ns * run->devices);
    }
    if (schedule->batches == schedule->updates) {
        run->step_ns = run->makespan_ns;
    }
}

static bool allocate(simulation_t *simulation)
{
    const ap_schedule_t *schedule = simulation->schedule;
    size_t devices = (size_t)schedule->devices;
    size_t skips = (size_t)simulation->times->skip_count;
    size_t parts = 2 * (size_t)schedule->stages * (size_t)parts_of_stage(schedule);
    size_t messages = parts + 2 * skips * (size_t)parts_of_stage(schedule);
    ap_pipeline_run_t *run = calloc(1, sizeof(*run));
    bool all;

    simulation->run = run;
    if (run == NULL) {
        return false;
    }
    run->device = xm_arena_get(&run->arena, devices, sizeof(*run->device));
    run->spans = xm_arena_get(&run->arena, devices, sizeof(*run->spans));
    simulation->messages =
        xm_arena_get(&simulation->arena, messages, sizeof(*simulation->messages));
    simulation->channels =
        xm_arena_get(&simulation->arena, 2 * (devices + skips), sizeof(*simulation->channels));
    simulation->passed = xm_arena_get(&simulation->arena, parts, sizeof(int64_t));
    simulation->clock = xm_arena_get(&simulation->arena, devices, sizeof(int64_t));
    simulation->first_end = xm_arena_get(&simulation->arena, devices, sizeof(int64_t));
    simulation->next = xm_arena_get(&simulation->arena, devices, sizeof(int));
    simulation->in_flight = xm_arena_get(&simulation->arena, devices, sizeof(int));
    simulation->moving = xm_arena_get(&simulation->arena, devices, sizeof(int));
    simulation->running = xm_arena_get(&simulation->arena, devices, sizeof(*simulation->running));
    simulation->ending = xm_arena_get(&simulation->arena, devices, sizeof(int64_t *));
    simulation->order = xm_arena_get(&simulation->arena, devices, sizeof(int *));
    all = !run->arena.failed && !simulation->arena.failed;
    run->devices = schedule->devices;
    for (int device = 0; all && device < schedule->devices; ++device) {
        run->spans[device] = xm_arena_get(&run->arena, (size_t)schedule->op_count[device] + 1,
                                          sizeof(*run->spans[device]));
        simulation->order[device] = xm_arena_take(
            &simulation->arena, ((size_t)schedule->op_count[device] + 1) * sizeof(int));
        run->device[device].first_ns = -1;
        all = run->spans[device] != NULL && simulation->order[device] != NULL;
        for (int i = 0; all && i < schedule->op_count[device]; ++i) {
            simulation->order[device][i] = i;
        }
    }
    for (size_t i = 0; all && i < messages; ++i) {
        simulation->messages[i].end = -1;
    }
    for (size_t i = 0; all && i < parts; ++i) {
        simulation->passed[i] = -1;
    }
    return all;
}

xm_status_t ap_pipeline_simulate(const ap_schedule_t *schedule, const ap_pipeline_times_t *times,
                                 ap_pipeline_run_t **run)
{
    simulation_t simulation = {.schedule = schedule, .times = times};
    xm_status_t status;

    XM_TRY(ap_pipeline_times_check(schedule, times));
    status = ap_wake_queue_init(&simulation.queue, 3 * schedule->devices + 2 * times->skip_count,
                                &simulation.arena);
    XM_THEN(status, ap_pipeline_share_create(2 * (schedule->devices + times->skip_count),
                                             times->uses, times->use_count, &simulation.share));
    if (status == XM_OK && !allocate(&simulation)) {
        status = XM_NO_MEMORY("simulating a schedule");
    }
    XM_THEN(status, run_all(&simulation));
    if (status == XM_OK) {
        sum_up(&simulation);
        *run = simulation.run;
    } else {
        ap_pipeline_run_destroy(simulation.run);
    }
    xm_arena_clear(&simulation.arena);
    ap_pipeline_share_destroy(simulation.share);
    return status;
}

void ap_pipeline_run_destroy(ap_pipeline_run_t *run)
{
    if (run != NULL) {
        xm_arena_clear(&run->arena);
        free(run);
    }
}
