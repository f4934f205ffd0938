/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/pipeline/simulate.h
 * Runs a pipeline schedule on given times, event by event, in whole nanoseconds.
 *
 * Each device does its list in order, one entry at a time. Between two devices there is one channel
 * in each direction; it carries one message at a time, in the order in which they are sent. What
 * passes over stages (`skips`) belongs to the entries that send to and receive from the neighbours.
 * Channels may share links, such as the NICs of a host (`uses`): messages that are on the way
 * together and want more of a link than there is take longer (planner/pipeline/share.h). Without,
 * each takes its own time.
 *
 * Overlapped: a send is handed to the channel at once, and costs the device `send` (the overhead o
 * of LogP; Culler et al., PPoPP'93); a receive waits until the message is there. Blocking, as when
 * transfers run on the device's only stream: a send keeps its device busy for the message's time,
 * for that of several one after the other; so does a receive, from when both the message is on its
 * way and the device has come to it.
 *
 * Integers only: the same input gives the same times on every machine. Threads: no shared state.
 *
 * @code
 *     ap_pipeline_times_t times = AP_PIPELINE_TIMES_INIT;
 *
 *     times.forward = forward, times.backward = backward, times.weight = weight;
 *     status = ap_schedule_create(&params, &schedule);
 *     if (status == XM_OK) {
 *         status = ap_pipeline_simulate(schedule, &times, &run);
 *     }
 *     printf("%.1f %% idle\n", 100.0 * run->bubble);
 * @endcode
 */
#pragma once

#include "planner/pipeline/schedule.h"
#include "planner/pipeline/share.h"

/** What passes over the stages between two, in nanoseconds: one message a micro-batch each way, in
 * channels of its own. It leaves with what the sender gives its neighbour, and the receiver waits
 * for it where it waits for its own neighbour. */
typedef struct ap_pipeline_skip {
    int from, to; /**< stages, from + 1 < to */
    int64_t activation, gradient;
} ap_pipeline_skip_t;

/** What passes and transfers take, in nanoseconds. Borrowed for the call. */
typedef struct ap_pipeline_times {
    const int64_t *forward;  /**< [stages][slices] */
    const int64_t *backward; /**< [stages][slices]: the input half */
    const int64_t *weight;   /**< [stages][slices]: the weight half; both run as one unless split */
    const int64_t *activation; /**< [stages - 1][slices]: from a stage to the next; NULL: no time */
    const int64_t *gradient;   /**< [stages - 1][slices]: the way back; NULL: no time */
    const int64_t *update;     /**< [stages], once a batch; NULL: no time */
    /** Only where each device has one stage of one pipeline, and micro-batches are whole. */
    const ap_pipeline_skip_t *skips;
    int skip_count;
    /** What messages take of shared links; channels as by ap_pipeline_channel(). */
    const ap_pipeline_use_t *uses;
    int use_count;
    bool blocking;
    int64_t
        send; /**< overlapped: of the sender's time for each message, while that is on its way */
    /** Passes take so much of their time more while a message is on its way from or to their device
     * (Proteus); 0: as long as ever. */
    double slowdown;
    /** Passes and messages take up to this share more or less than their time, evenly spread, the
     * same ones with the same seed whatever their order is. */
    double jitter;
    uint64_t seed;
} ap_pipeline_times_t;

#define AP_PIPELINE_TIMES_INIT                                                                     \
    {                                                                                              \
        0                                                                                          \
    }

/** When an entry ran. Of an overlapped send, when the channel carried it; of a receive, the wait.
 */
typedef struct ap_pipeline_span {
    int64_t start_ns, end_ns;
} ap_pipeline_span_t;

typedef struct ap_pipeline_device {
    int64_t first_ns, last_ns; /**< from its first pass to the end of its last entry, of a send that
                                    overlaps when it has been handed over */
    int64_t busy_ns;           /**< passes and updates */
    int64_t transfer_ns;       /**< sending, and receiving when blocking */
    int peak_in_flight;        /**< micro-batch slices between forward and backward, most at once */
    int64_t peak_bytes;        /**< activations held, most at once */
} ap_pipeline_device_t;

typedef struct ap_pipeline_run {
    int64_t makespan_ns;
    /** Of one batch: the makespan, or with several batches the mean distance of a device's updates,
     * of the device that takes longest. */
    int64_t step_ns;
    double bubble; /**< share of the devices' time in the makespan without pass or update */
    int devices;
    ap_pipeline_device_t *device; /**< [devices] */
    ap_pipeline_span_t **spans;   /**< [devices][op_count] */
    xm_arena_t arena;             /**< of the lists */
} ap_pipeline_run_t;

/**
 * Simulates. A schedule that cannot run to its end (see planner/pipeline/check.h) is an error, and
 * so are times below 0 or too large for the sum.
 */
xm_status_t ap_pipeline_simulate(const ap_schedule_t *schedule, const ap_pipeline_times_t *times,
                                 ap_pipeline_run_t **run);

/** NULL is accepted. */
void ap_pipeline_run_destroy(ap_pipeline_run_t *run);
