/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The orders of passes of the published schedules, one device at a time. An order is all that
 * distinguishes them: sends, receives, updates and memory follow from it by rules that are the same
 * for all (planner/pipeline/schedule.c). Sources are in the table of planner/pipeline/schedule.h.
 */

#include "planner/pipeline/order.h"

#include <stdlib.h>

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

void ap_order_flush(const ap_schedule_t *schedule, int device, const ap_order_sink_t *sink)
{
    for (int k = 0; k < schedule->micro_batches; ++k) {
        for (int slice = 0; slice < schedule->slices; ++slice) {
            sink->put(sink->arg, AP_PASS_FORWARD, 0, device, k, slice);
        }
    }
    for (int k = 0; k < schedule->micro_batches; ++k) {
        for (int slice = schedule->slices - 1; slice >= 0; --slice) {
            sink->put(sink->arg, AP_PASS_BACKWARD, 0, device, k, slice);
        }
    }
}

/* Forward passes before the first backward pass. The eager forms run twice as far ahead, which
 * leaves each transfer the time of a pass to hide behind. */
static int forwards_ahead(const ap_schedule_t *schedule, int device)
{
    const ap_schedule_traits_t *of = ap_schedule_traits(schedule->kind);
    int after = schedule->devices - device - 1;

    return of->beyond_list ? after + 1 : of->ahead * after + of->first;
}

/* Backward passes that run between the halves of one micro-batch: the weight halves that fill the
 * bubble at the end. */
static int weight_delay(const ap_schedule_t *schedule, int device)
{
    return ap_schedule_traits(schedule->kind)->delay * device;
}

/* `ahead` forwards, then one backward and one forward in turn until there are no more, then the
 * weight halves that were kept back. Both numbers are capped by the micro-batches there are. */
void ap_order_one_by_one(const ap_schedule_t *schedule, int device, const ap_order_sink_t *sink)
{
    int total = schedule->micro_batches * schedule->batches;
    int ahead = smaller(forwards_ahead(schedule, device), total);
    int delay = smaller(weight_delay(schedule, device), total);

    for (int k = 0; k < ahead; ++k) {
        sink->put(sink->arg, AP_PASS_FORWARD, 0, device, k, 0);
    }
    for (int k = 0; k < total; ++k) {
        sink->put(sink->arg, AP_PASS_BACKWARD, 0, device, k, 0);
        if (schedule->split && k >= delay) {
            sink->put(sink->arg, AP_PASS_WEIGHT, 0, device, k - delay, 0);
        }
        if (ahead + k < total) {
            sink->put(sink->arg, AP_PASS_FORWARD, 0, device, ahead + k, 0);
        }
    }
    for (int k = total - delay; schedule->split && k < total; ++k) {
        sink->put(sink->arg, AP_PASS_WEIGHT, 0, device, k, 0);
    }
}

/* Pass number @p index of a device: which of its virtual stages, and which micro-batch.
 * Micro-batches go through a virtual stage in groups of as many as there are devices. */
static void interleaved_pass(const ap_schedule_t *schedule, int device, int index, ap_pass_t pass,
                             const ap_order_sink_t *sink)
{
    int devices = schedule->devices, chunks = schedule->stages / devices;
    int chunk = index % schedule->stages / devices;
    int micro_batch = index / schedule->stages * devices + index % devices;

    chunk = pass == AP_PASS_FORWARD ? chunk : chunks - 1 - chunk;
    sink->put(sink->arg, pass, 0, chunk * devices + device, micro_batch, 0);
}

void ap_order_interleaved(const ap_schedule_t *schedule, int device, const ap_order_sink_t *sink)
{
    int devices = schedule->devices, chunks = schedule->stages / devices;
    int total = schedule->micro_batches * chunks;
    int ahead = smaller(2 * (devices - device - 1) + (chunks - 1) * devices, total);

    for (int k = 0; k < ahead; ++k) {
        interleaved_pass(schedule, device, k, AP_PASS_FORWARD, sink);
    }
    for (int k = 0; k < total; ++k) {
        if (ahead + k < total) {
            interleaved_pass(schedule, device, ahead + k, AP_PASS_FORWARD, sink);
        }
        interleaved_pass(schedule, device, k, AP_PASS_BACKWARD, sink);
    }
}

/* chimera. Micro-batches come in units of as many as there are devices; the first half of a unit
 * goes down the devices, the second up. In slots of one pass each, number k of its half does its
 * forward pass on stage s in slot s + 2k, its backward pass in slot 2p - 1 + 2k - s; units follow
 * each other 2p slots apart. On one device no two passes share a slot, because the directions take
 * slots of different parity. Devices run their passes in the order of these slots. */
typedef struct slot {
    int64_t number; /* stands first: slots are sorted by it */
    ap_pass_t pass;
    int pipeline, stage, micro_batch;
} slot_t;

xm_status_t ap_order_chimera(const ap_schedule_t *schedule, int device, const ap_order_sink_t *sink)
{
    int devices = schedule->devices, count = 0;
    slot_t *slots = malloc(2 * (size_t)schedule->micro_batches * sizeof(*slots));

    XM_NEED_MEMORY(slots, "a schedule of %d micro-batches", schedule->micro_batches);
    for (int first = 0; first < schedule->micro_batches; first += devices) {
        int unit = smaller(devices, schedule->micro_batches - first), down = (unit + 1) / 2;

        for (int i = 0; i < unit; ++i) {
            int pipeline = i < down ? 0 : 1, k = pipeline == 0 ? i : i - down;
            int stage = pipeline == 0 ? device : devices - 1 - device;
            int64_t start = 2 * ((int64_t)first + k);

            slots[count++] = (slot_t){start + stage, AP_PASS_FORWARD, pipeline, stage, first + i};
            slots[count++] = (slot_t){start + 2 * devices - 1 - stage, AP_PASS_BACKWARD, pipeline,
                                      stage, first + i};
        }
    }
    qsort(slots, (size_t)count, sizeof(*slots), xm_order_int64s);
    for (int i = 0; i < count; ++i) {
        sink->put(sink->arg, slots[i].pass, slots[i].pipeline, slots[i].stage, slots[i].micro_batch,
                  0);
    }
    free(slots);
    return XM_OK;
}

/* The V's. A device has stage `device` on the way down and its mirror on the way up. Each pass of a
 * stage takes its micro-batches in order, so an order only says which pass of which way comes next;
 * passes of micro-batches that are not there are left out. */
enum { DOWN, UP, WAYS };

typedef struct v_order {
    const ap_schedule_t *schedule;
    int device;
    const ap_order_sink_t *sink;
    int done[WAYS][AP_PASSES];
} v_order_t;

static void v_pass(v_order_t *v, ap_pass_t pass, int way)
{
    int k = v->done[way][pass]++;

    if (k < v->schedule->micro_batches) {
        v->sink->put(v->sink->arg, pass, 0,
                     way == DOWN ? v->device : v->schedule->stages - 1 - v->device, k, 0);
    }
}

static void v_backward(v_order_t *v, int way, bool keep_weight)
{
    v_pass(v, AP_PASS_BACKWARD, way);
    if (!keep_weight) {
        v_pass(v, AP_PASS_WEIGHT, way);
    }
}

static int v_waiting(const v_order_t *v, int way)
{
    return v->done[way][AP_PASS_BACKWARD] - v->done[way][AP_PASS_WEIGHT];
}

void ap_order_zb_v(const ap_schedule_t *schedule, int device, const ap_order_sink_t *sink)
{
    v_order_t v = {.schedule = schedule, .device = device, .sink = sink};
    int after = schedule->devices - device - 1, total = schedule->micro_batches;

    /* The pattern is that of full pipelines. */
    total = total > 2 * schedule->devices - 1 ? total : 2 * schedule->devices - 1;
    for (int i = 0; i < 2 * after + 1; ++i) {
        v_pass(&v, AP_PASS_FORWARD, DOWN);
    }
    for (int i = 0; i < device; ++i) {
        v_pass(&v, AP_PASS_FORWARD, UP);
        v_pass(&v, AP_PASS_FORWARD, DOWN);
    }
    for (int i = 0; i < after + 1; ++i) {
        v_pass(&v, AP_PASS_FORWARD, UP);
        v_backward(&v, UP, false);
    }
    while (v.done[UP][AP_PASS_FORWARD] < total) {
        if (v.done[DOWN][AP_PASS_FORWARD] < total) {
            v_pass(&v, AP_PASS_FORWARD, DOWN);
        }
        v_backward(&v, DOWN, false);
        v_pass(&v, AP_PASS_FORWARD, UP);
        v_backward(&v, UP, false);
    }
    for (int i = 0; i < device; ++i) {
        v_backward(&v, DOWN, true);
        v_backward(&v, UP, true);
    }
    for (int i = 0; i < after + 1; ++i) {
        v_backward(&v, DOWN, true);
        v_pass(&v, AP_PASS_WEIGHT, DOWN);
    }
    while (v_waiting(&v, UP) > 0) {
        v_pass(&v, AP_PASS_WEIGHT, UP);
    }
    while (v_waiting(&v, DOWN) > 0) {
        v_pass(&v, AP_PASS_WEIGHT, DOWN);
    }
}

void ap_order_dualpipev(const ap_schedule_t *schedule, int device, const ap_order_sink_t *sink)
{
    v_order_t v = {.schedule = schedule, .device = device, .sink = sink};
    int after = schedule->devices - device - 1, before = device + 1;
    int middle = before / 2, first = device % 2 == 1 ? UP : DOWN, kept;

    for (int i = 0; i < 2 * after; ++i) {
        v_pass(&v, AP_PASS_FORWARD, DOWN);
    }
    for (int i = 0; i < before; ++i) {
        v_pass(&v, AP_PASS_FORWARD, DOWN);
        v_pass(&v, AP_PASS_FORWARD, UP);
    }
    for (int i = 0; i < after; ++i) {
        v_backward(&v, UP, false);
        v_pass(&v, AP_PASS_FORWARD, UP);
    }
    for (int i = 0; i < schedule->micro_batches - 2 * schedule->devices + before; ++i) {
        v_pass(&v, AP_PASS_FORWARD, DOWN);
        v_backward(&v, UP, false);
        v_pass(&v, AP_PASS_FORWARD, UP);
        v_backward(&v, DOWN, false);
    }
    for (int i = 0; i < after; ++i) {
        v_backward(&v, UP, false);
        v_pass(&v, AP_PASS_FORWARD, UP);
        v_backward(&v, DOWN, false);
    }
    /* From the middle on weight halves are kept back. */
    for (int i = 0; i < before; ++i) {
        v_backward(&v, UP, i > middle || (i == middle && first == UP));
        v_backward(&v, DOWN, i >= middle);
    }
    /* They were kept back in turn; what waits longest is done first. */
    kept = v_waiting(&v, UP) + v_waiting(&v, DOWN);
    for (int i = 0; i < kept + after; ++i) {
        v_pass(&v, AP_PASS_WEIGHT, i < kept && (i % 2 == 0) == (first == UP) ? UP : DOWN);
        if (i < after) {
            v_backward(&v, DOWN, true);
        }
    }
}
